"""What one invocation of a kind is given: its signal, its commits, its outside calls.

The context is fenced: once the claim's invocation ended, every commit through it is refused, so a
late producer can never write into a later lifetime (WS-10). It reaches only its own task; other
tasks change through `commit` (TK-15).
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from perdure.drive.signals import InvocationSignal
from perdure.errors import Closed, Interrupted, StrayCancellation
from perdure.line.command import Command
from perdure.line.line import Build, BuildWorking, Line, Preview
from perdure.line.spans import NO_SPAN
from perdure.ports import Clock, Span
from perdure.records.addresses import Address, task_scope
from perdure.records.seqs import Seq
from perdure.records.sessions import ListElement, ListPage
from perdure.records.tasks import Task

T = TypeVar("T")


class TaskContext:
    """The hands of one invocation of one task."""

    def __init__(self, task: Task, signal: InvocationSignal, *, line: Line, clock: Clock) -> None:
        """Bind the invocation to its task."""
        self.task_id: Seq = task.id
        self.conv_id: Seq = task.conv_id
        self.signal = signal
        self.clock = clock
        self.line = line
        self.scope = task_scope(task.id)
        self._inner: set[asyncio.Task[Any]] = set()
        self._stubborn: set[asyncio.Task[Any]] = set()
        self._abandoned = False
        self._ended = False
        self._was_marked = task.abort_requested is not UNSET

    # Committing.

    async def commit(
        self, build: Build, *, barrier: bool = False, shows: Preview | None = None
    ) -> bool:
        """Run one main command; True after a commit, False when nothing was recorded (TK-16).

        `shows` is what watchers are shown in the same step.
        """
        self._check_running()
        return await self.line.submit(build, barrier=barrier, shows=shows)

    async def commit_working(self, build: BuildWorking, *, shows: Preview | None = None) -> bool:
        """Run one command of this task's working scope, and show what it stored (WS-08)."""
        self._check_running()
        return await self.line.submit_working(self.scope, build, shows=shows)

    def shown(self, kind: str, payload: object) -> Preview:
        """Answer something of this task to show with a commit."""
        return Preview(task_id=self.task_id, kind=kind, payload=payload)

    async def patch(
        self,
        *,
        status: str | UnsetType = UNSET,
        unset: Sequence[str] = (),
        after: Sequence[Seq] | UnsetType = UNSET,
        barrier: bool = False,
        shows: Preview | None = None,
        **state: Any,
    ) -> bool:
        """Change this task, unless it was marked meanwhile; says whether it did."""

        async def build(tx: Command) -> None:
            task = await tx.task(self.task_id)
            if task.abort_requested is UNSET:
                tx.patch(task, status=status, unset=unset, after=after, **state)

        return await self.commit(build, barrier=barrier, shows=shows)

    async def settle(self, status: str, *, unset: Sequence[str] = (), **state: Any) -> bool:
        """Give this task its terminal status and retire its scope; says whether it was live."""

        async def build(tx: Command) -> None:
            task = await tx.task(self.task_id)
            if self.line.residency.is_live(task):
                tx.settle(task, status, unset=unset, **state)
                tx.retire_scope(self.scope)

        return await self.commit(build)

    # Reading.

    async def task(self) -> Task:
        """Read this task again."""
        task = await self.line.task(self.task_id)
        assert task is not None, f"task {self.task_id} vanished"
        return task

    async def elements(self, address: Address, page: ListPage) -> Sequence[ListElement]:
        """Read a page of a list."""
        return await self.line.elements(address, page)

    def span(self, name: str, /, **facts: str | int | float | bool) -> AbstractContextManager[Span]:
        """Open a span around work of this invocation; none once its signal fired (TM-03).

        Facts are ids, names, counts, durations, statuses and usage, never content (TM-02).
        """
        telemetry = self.line.telemetry
        if not telemetry.is_on or self.signal.is_set:
            return NO_SPAN
        return telemetry.span(name, **facts)

    def emit(self, kind: str, payload: object) -> None:
        """Show watchers something that is stored nowhere; it is lost on who was not there."""
        if not self._ended:
            self.line.preview(self.shown(kind, payload))

    # Acting.

    async def outside(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one outside call as an asyncio task of its own; only that task is cancelled (SC-24).

        Raises:
            Interrupted: the signal fired before or during the call, and the call has ended.
            StrayCancellation: the call was cancelled by itself.
        """
        try:
            self.check_signal()
        except Interrupted:
            work.close()
            raise
        return await self.join(self.start(work))

    def check_signal(self) -> None:
        """Raise Interrupted when the signal fired, or a mark was committed that will fire it.

        A mark is on disk before anybody is signalled; what asks here starts nothing in between.
        """
        if self.signal.reason is not None:
            raise Interrupted(self.signal.reason)
        task = self.line.residency.task(self.task_id)
        if task is not None and task.abort_requested is not UNSET and not self._was_marked:
            raise Interrupted("abort")

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start an outside call; the caller must `join` it."""
        inner = asyncio.create_task(work)  # noqa: TID251 - inner tasks are made here and joined below (K54)
        self._inner.add(inner)
        return inner

    async def join(self, inner: "asyncio.Task[T]") -> T:
        """Wait for an outside call to end; raises as `outside` does."""
        try:
            return await inner
        except asyncio.CancelledError:
            if not inner.done():
                inner.cancel()
                raise
            if self.signal.reason is not None:
                raise Interrupted(self.signal.reason) from None
            raise StrayCancellation("the call was cancelled from inside") from None
        finally:
            if inner.done():
                self._inner.discard(inner)

    async def sleep(self, ms: int) -> None:
        """Wait; raises Interrupted when the signal fires (TK-17)."""
        await self.outside(self.clock.sleep(ms))

    async def unstoppable(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work that cancelling cannot stop, such as a thread, inside an outside call.

        A signal does not end the wait, so nobody takes the task over while the work runs (CN-11);
        only a close whose grace is over abandons it (D08, SC-26). A cancellation that no signal
        caused is the caller's own time limit, and abandons it too.
        """
        inner = asyncio.create_task(work)  # noqa: TID251 - joined below, or abandoned by close (K54)
        self._stubborn.add(inner)
        cancelled = False
        while not inner.done():
            try:
                await asyncio.wait({inner})
            except asyncio.CancelledError:
                cancelled = True
                if self._abandoned or self.signal.reason is None:
                    inner.cancel()
                    raise
        self._stubborn.discard(inner)
        if cancelled and not inner.cancelled():
            inner.exception()
            raise asyncio.CancelledError
        return inner.result()

    # For the claim.

    def cancel_inner(self) -> None:
        """Cancel what runs outside; the claim calls it after firing the signal."""
        for inner in tuple(self._inner):
            inner.cancel()

    async def end(self) -> None:
        """Refuse every later commit through this context; see every outside call end."""
        self._ended = True
        while self._inner:
            self.cancel_inner()
            await asyncio.wait(self._inner)
            self._inner = {inner for inner in self._inner if not inner.done()}

    def abandon(self) -> bool:
        """Let go of work that nothing can stop; says whether there is any."""
        self._abandoned = True
        return bool(self._stubborn)

    def _check_running(self) -> None:
        if self._ended:
            raise Closed(f"the invocation of task {self.task_id} has ended")
