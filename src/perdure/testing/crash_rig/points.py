"""Named points: wrappers of the ports that say where a life is, and end it where it is planned.

A wrapper changes nothing but the moment of death. What is in flight stands in memory shared with
the parent, which reads it when the child is gone; the points reached are lines in a file.
"""

import mmap
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from perdure.errors import ProviderError
from perdure.ports import Models, ModelStream, ProcessHost, Storage
from perdure.records.frames import Frame
from perdure.records.launches import Exited, LaunchRef, LaunchSpec, Lost, NeverRan, Running
from perdure.records.models import ModelOutcome, ModelRequest
from perdure.records.writes import Commit, scope_of
from perdure.testing.crash_rig.trial import PHASES, Kill, Phase


class Board:
    """What is in flight, one byte a phase, in memory that outlives the child that writes it."""

    def __init__(self) -> None:
        self._bytes = mmap.mmap(-1, mmap.PAGESIZE)

    def clear(self) -> None:
        """Say that nothing is in flight."""
        self._bytes[: len(PHASES)] = bytes(len(PHASES))

    def add(self, phase: Phase, count: int) -> None:
        """Count one more, or one less."""
        at = PHASES.index(phase)
        self._bytes[at] = self._bytes[at] + count

    def in_flight(self) -> tuple[Phase, ...]:
        """Name the phases in flight."""
        return tuple(phase for at, phase in enumerate(PHASES) if self._bytes[at])


class Points:
    """Where a life is."""

    def __init__(self, board: Board, trace: Path, kill: Kill | None) -> None:
        """Take the board, the file of reached points, and where to die by name."""
        self._board = board
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._kill = kill
        self._reached: Counter[str] = Counter()

    def close(self) -> None:
        """Close the file of points."""
        os.close(self._trace)

    def is_next(self, name: str) -> bool:
        """Say whether this life ends when it reaches `name` the next time."""
        kill = self._kill
        return kill is not None and kill.point == name and self._reached[name] + 1 == kill.nth

    def reach(self, name: str) -> None:
        """Note the point; die here if it was planned."""
        fatal = self.is_next(name)
        self._reached[name] += 1
        os.write(self._trace, f"{name}\n".encode())
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def in_flight(self, phase: Phase) -> Generator[None]:
        """Say on the board that something is in flight."""
        self._board.add(phase, 1)
        try:
            yield
        finally:
            self._board.add(phase, -1)


class PointedStorage:
    """Name the moments of every commit; pass everything else on."""

    def __init__(self, inner: Storage, points: Points) -> None:
        self._inner = inner
        self._points = points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, commit: Commit, *, barrier: bool) -> None:
        """Commit, with a point on each side of persistence and of a barrier's sync."""
        points = self._points
        kind = "main" if scope_of(commit) is None else "working"
        points.reach(f"{kind}.before")
        with points.in_flight("commit"):
            if barrier:
                if points.is_next("barrier.unsynced"):
                    await self._inner.commit(commit, barrier=False)
                points.reach("barrier.unsynced")
            await self._inner.commit(commit, barrier=barrier)
            if barrier:
                points.reach("barrier.synced")
        points.reach(f"{kind}.after")

    async def close(self) -> None:
        """Close, with a point before it."""
        self._points.reach("close.storage")
        await self._inner.close()


class PointedModels:
    """Name the moments of every request; `check` judges requests, `report` hears of usage."""

    def __init__(
        self,
        inner: Models,
        points: Points,
        *,
        check: Callable[[ModelRequest], None],
        report: Callable[[ModelRequest], None],
    ) -> None:
        self._inner = inner
        self._points = points
        self._check = check
        self._report = report

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def stream(self, request: ModelRequest) -> "PointedStream":
        """Start one request, judged as a strict provider would."""
        self._points.reach("request.before")
        self._check(request)
        return PointedStream(
            self._inner.stream(request), self._points, lambda: self._report(request)
        )


class PointedStream:
    """One request: context manager, stream and iterator in one."""

    def __init__(
        self,
        manager: AbstractAsyncContextManager[ModelStream],
        points: Points,
        report: Callable[[], None],
    ) -> None:
        self._manager = manager
        self._points = points
        self._report = report
        self._flight = points.in_flight("request")

    async def __aenter__(self) -> "PointedStream":
        self._flight.__enter__()
        self._stream = await self._manager.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._flight.__exit__(None, None, None)
        await self._manager.__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[Frame]:
        first = True
        async for frame in self._stream:
            yield frame
            if first:
                self._points.reach("request.first_frame")
                first = False

    async def outcome(self) -> ModelOutcome:
        """Answer the outcome, or raise the failure; what reported usage is noted outside."""
        try:
            outcome = await self._stream.outcome()
        except ProviderError as error:
            self._ended(has_usage=error.usage is not None)
            raise
        self._ended(has_usage=outcome.usage is not None)
        return outcome

    def _ended(self, *, has_usage: bool) -> None:
        if has_usage:
            self._report()
        self._points.reach("request.last_frame")


class PointedProcesses:
    """Name the moments of every launch."""

    def __init__(self, inner: ProcessHost, points: Points) -> None:
        self._inner = inner
        self._points = points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def launch(self, spec: LaunchSpec) -> Running | Exited:
        """Launch between two points."""
        self._points.reach("launch.before")
        with self._points.in_flight("command"):
            started = await self._inner.launch(spec)
            self._points.reach("launch.after")
        return started

    async def wait(self, ref: LaunchRef) -> Exited | Lost:
        """Wait; the end is known at the point and not committed yet."""
        with self._points.in_flight("command"):
            ended = await self._inner.wait(ref)
        self._points.reach("exit.uncommitted")
        return ended

    async def reconcile(self, ref: LaunchRef) -> NeverRan | Running | Exited | Lost:
        """Find out between two points."""
        self._points.reach("reconcile.before")
        found = await self._inner.reconcile(ref)
        self._points.reach("reconcile.after")
        return found

    async def stop(self, ref: LaunchRef, *, grace_ms: int) -> Exited | Lost:
        """Stop between two points."""
        self._points.reach("stop.before")
        ended = await self._inner.stop(ref, grace_ms=grace_ms)
        self._points.reach("stop.after")
        return ended
