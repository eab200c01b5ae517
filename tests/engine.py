"""A harness over a real backend, with time, models and durable order in the test's hands.

`Engine` is one session on one backend. `await engine.open(…)` answers a harness; `kill` leaves the
store as a crash would and `open` goes on from there. Its storage is `WatchedStorage`: a test can
hold a commit before or after it is durable (`hold`), fail it (`fail`), count it, and wait for it
(`until`).

Time is a `ManualClock`, models are scripted, tools are `Probe`s that count their runs.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast

import msgspec
import pytest
from msgspec import Struct

from perdure.errors import Faulted
from perdure.harness.conversation import Conversation
from perdure.harness.harness import Harness
from perdure.harness.options import HarnessOptions
from perdure.hosts.threads import DaemonThreads
from perdure.line.line import Line
from perdure.opening import SilentTelemetry
from perdure.ports import Approval, Replay, Sessions, Storage, ToolContext
from perdure.providers.script import Script
from perdure.providers.scripted import ScriptedModels
from perdure.records.models import ModelInfo, parse_model
from perdure.records.seqs import NO_SEQ, Seq
from perdure.records.settings import GenerationSettings
from perdure.records.writes import Commit, InsertTask, PatchTask, SettleTask, Write
from perdure.storage.memory import MemorySessions
from perdure.storage.sqlite import SqliteSessions
from perdure.testing.manual_clock import ManualClock
from perdure.toolkits.define import Output

T = TypeVar("T")

Backend: TypeAlias = Literal["memory", "sqlite"]
Match: TypeAlias = Callable[[Commit], bool]

BACKENDS: tuple[Backend, ...] = ("memory", "sqlite")

MODEL_NAME = "scripted:test"

CAN = ModelInfo(
    model=parse_model(MODEL_NAME), deferred=True, thinking=("off", "minimal", "low", "high", "max")
)


class Gate:
    """Somebody arrives, and goes on when the test opens it; a gate may be used many times."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def __call__(self) -> None:
        """Arrive and wait."""
        self.reached.set()
        await self._opened.wait()

    def open(self) -> None:
        """Let everybody through."""
        self._opened.set()


class CountedTokens:
    """Random text that a test can foresee."""

    def __init__(self) -> None:
        self._count = 0

    def token(self, nbytes: int) -> str:
        self._count += 1
        return f"{self._count:0{2 * nbytes}x}"


def writes(kind: type[Write], /, **facts: object) -> Match:
    """Match a commit with a write of `kind` whose fields equal `facts`."""

    def match(commit: Commit) -> bool:
        return any(
            isinstance(write, kind)
            and all(getattr(write, name) == fact for name, fact in facts.items())
            for write in commit.writes
        )

    return match


def task_moves(status: str) -> Match:
    """Match a commit that creates a task in, moves it to, or settles it as a status."""

    def match(commit: Commit) -> bool:
        return any(
            isinstance(write, InsertTask | PatchTask | SettleTask) and write.status == status
            for write in commit.writes
        )

    return match


def is_main(commit: Commit) -> bool:
    """Match main commits; only they carry a wall time."""
    return commit.time_ms > 0


class _Hold(Struct, frozen=True, kw_only=True):
    match: Match
    gate: Gate
    when: Literal["before", "after"]
    error: BaseException | None = None


class WatchedStorage:
    """A storage whose commits the test watches, holds and fails; reads pass through."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.commits_made: list[Commit] = []
        self.barriers: list[Commit] = []
        self.reads: list[str] = []
        self._holds: list[_Hold] = []
        self._dead: Faulted | None = None
        self._died = asyncio.Event()
        self._changed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        self.reads.append(name)
        return getattr(self.inner, name)

    @property
    def last_seq(self) -> Seq:
        return self.inner.last_seq

    async def commit(self, commit: Commit, *, barrier: bool) -> None:
        await self._pass("before", commit)
        await self.inner.commit(commit, barrier=barrier)
        self.commits_made.append(commit)
        if barrier:
            self.barriers.append(commit)
        self._changed.set()
        await self._pass("after", commit)

    async def _pass(self, when: Literal["before", "after"], commit: Commit) -> None:
        if self._dead is not None:
            raise self._dead
        for hold in tuple(self._holds):
            if hold.when == when and hold.match(commit):
                self._holds.remove(hold)
                await self._wait(hold.gate)
                if hold.error is not None:
                    raise hold.error

    async def _wait(self, gate: Gate) -> None:
        passing = asyncio.ensure_future(gate())
        dying = asyncio.ensure_future(self._died.wait())
        await asyncio.wait({passing, dying}, return_when=asyncio.FIRST_COMPLETED)
        for waiter in (passing, dying):
            waiter.cancel()
        if self._dead is not None:
            raise self._dead

    def hold(self, match: Match, *, when: Literal["before", "after"] = "before") -> Gate:
        """Hold the next matching commit, before it is durable or after; answers the gate."""
        gate = Gate()
        self._holds.append(_Hold(match=match, gate=gate, when=when))
        return gate

    def fail(
        self,
        match: Match,
        error: BaseException,
        *,
        when: Literal["before", "after"] = "before",
    ) -> None:
        """Fail the next matching commit: nothing is durable (`before`), or all is (`after`)."""
        gate = Gate()
        gate.open()
        self._holds.append(_Hold(match=match, gate=gate, when=when, error=error))

    async def until(self, match: Match) -> Commit:
        """Wait for a matching commit, made already or yet to come."""
        while True:
            for commit in self.commits_made:
                if match(commit):
                    return commit
            self._changed.clear()
            await self._changed.wait()

    def die(self) -> None:
        """Accept nothing more, as if the process had ended."""
        self._dead = Faulted("the test killed this process", code="storage")
        self._died.set()


class Probe:
    """A tool that counts its runs, waits at a gate if it has one, and does what `body` says."""

    def __init__(
        self,
        name: str,
        *,
        replay: Replay = "never",
        approval: Approval = "allow",
        body: Callable[[Mapping[str, Any], ToolContext], Awaitable[object]] | None = None,
        gate: Gate | None = None,
        output: Output | None = None,
    ) -> None:
        self.name = name
        self.description = f"Probe {name}."
        self.parameters: Mapping[str, Any] = {"type": "object"}
        self.replay: Replay = replay
        self.approval: Approval = approval
        self.output = output or Output()
        self.runs: list[Mapping[str, Any]] = []
        self.contexts: list[ToolContext] = []
        self.gate = gate
        self._body = body

    def check(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        return args

    async def execute(self, args: Mapping[str, Any], ctx: ToolContext) -> object:
        self.runs.append(args)
        self.contexts.append(ctx)
        if self.gate is not None:
            await self.gate()
        if self._body is not None:
            return await self._body(args, ctx)
        ctx.out.write(f"{self.name} ran")
        return None


class Engine:
    """One session on one backend."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self.backend = backend
        self.clock = ManualClock()
        self.tokens = CountedTokens()
        self.models = ScriptedModels([], clock=self.clock)
        self.errors: list[BaseException] = []
        self.storage: WatchedStorage
        self.harness: Harness
        self.sessions = self._container(folder)
        self._opened = False
        self._background: list[asyncio.Task[Any]] = []

    def _container(self, folder: Path) -> Sessions:
        if self.backend == "memory":
            return MemorySessions(clock=self.clock, randomness=self.tokens)
        return SqliteSessions(
            folder / "store.db", durability="process", clock=self.clock, randomness=self.tokens
        )

    async def open(
        self,
        script: Script | ScriptedModels = (),
        *,
        session: str = "test",
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Harness:
        """Open the session with a script; `settings` are fields of `GenerationSettings`, `options`
        those of `HarnessOptions`.
        """
        self.models = (
            script
            if isinstance(script, ScriptedModels)
            else ScriptedModels(script, clock=self.clock, can=CAN)
        )
        self.storage = WatchedStorage(await self.sessions.open(session, create=True))
        initial = GenerationSettings(model=parse_model(MODEL_NAME))
        given: dict[str, Any] = {
            "models": self.models,
            "clock": self.clock,
            "randomness": self.tokens,
            "threads": DaemonThreads(),
            "telemetry": SilentTelemetry(),
            "initial": msgspec.structs.replace(initial, **(settings or {})),
            "on_error": lambda error, _task: self.errors.append(error),
            **options,
        }
        try:
            self.harness = await Harness.open(
                cast("Storage", self.storage), HarnessOptions(**given)
            )
        except BaseException:
            await self.storage.inner.close()
            raise
        self._opened = True
        return self.harness

    async def root(self, script: Script | ScriptedModels = (), **options: Any) -> Conversation:
        """Open the session and answer its root conversation."""
        harness = await self.open(script, **options)
        return await harness.root()

    @property
    def line(self) -> Line:
        """Answer the open session's line."""
        return self.harness._core.line

    def begin(self, work: Awaitable[T]) -> "asyncio.Task[T]":
        """Run something beside the test; `aclose` ends it."""

        async def run() -> T:
            return await work

        task = asyncio.create_task(run())
        self._background.append(task)
        return task

    async def kill(self) -> None:
        """End as SIGKILL would: no commit after this is durable, nothing is settled."""
        self.storage.die()
        await self._end_background()
        await self.harness.close(grace=0)
        self._opened = False

    async def close(self) -> None:
        """Close the harness properly."""
        await self.harness.close(grace=0)
        self._opened = False

    async def commits(self) -> Sequence[Commit]:
        """Answer every main commit of the open session."""
        return await self.harness.commits(after=NO_SEQ, limit=1000)

    async def _end_background(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()

    async def aclose(self) -> None:
        """End everything."""
        await self._end_background()
        if self._opened:
            self.storage.die()
            await self.close()
        await self.sessions.close()


@pytest.fixture(params=BACKENDS)
def unopened_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """Make the container outside the loop: naming a file may block."""
    return Engine(request.param, tmp_path)


@pytest.fixture
async def engine(unopened_engine: Engine) -> AsyncIterator[Engine]:
    """Answer an engine on every backend; import both fixtures into a `conftest.py`."""
    yield unopened_engine
    await unopened_engine.aclose()


@pytest.fixture
async def memory_engine(tmp_path: Path) -> AsyncIterator[Engine]:
    """Answer an engine on the reference backend alone."""
    made = Engine("memory", tmp_path)
    yield made
    await made.aclose()
