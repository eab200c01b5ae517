"""A bad day, drawn from one seed: one conversation, a moody model, clumsy hands, a failing store.

Everything runs on `SimLoop`: time is virtual and the order of what is ready is drawn from the seed.
The day has several lives. Each ends by a close, a crash, or a storage fault that struck before or
after persistence; the next one opens what is left. In the end the session is driven to idle, its
journal is audited, and one more message must be accepted.
"""

import asyncio
import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar, cast

import msgspec
from msgspec import Struct

from perdure.drive.outcomes import DriveOutcome
from perdure.errors import FailureCode, Faulted, PerdureError, Rejected, ToolFailed
from perdure.harness.conversation import Conversation
from perdure.harness.harness import Harness
from perdure.opening import Ports
from perdure.ports import Storage, Tool, ToolContext
from perdure.providers.script import Deferred, Reply, call, fail, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.addresses import USAGE as USAGE_ADDRESS
from perdure.records.addresses import Address
from perdure.records.messages import (
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from perdure.records.models import DeferredHandle, ModelOutcome, ModelRequest
from perdure.records.seqs import NO_SEQ, Seq
from perdure.records.sessions import (
    ConversationScan,
    EntryScan,
    ListPage,
    TaskScan,
)
from perdure.records.writes import Commit
from perdure.storage.memory import MemorySessions, replay
from perdure.testing.crash_rig.audit import (
    TaskRow,
    end_faults,
    outcome_faults,
    usage_faults,
)
from perdure.testing.crash_rig.story import options, read_journal
from perdure.testing.sim_loop import SimClock, SimLoop
from perdure.testing.strict_wire import refusals
from perdure.toolkits.define import tool

T = TypeVar("T")

USAGE_LIST: Final = USAGE_ADDRESS.address()

ACTIONS: Final[dict[str, int]] = {
    "accept": 6,
    "accept twice": 2,
    "follow up": 3,
    "steer": 3,
    "next run": 1,
    "append message": 1,
    "cancel": 1,
    "flush": 1,
    "abort": 2,
    "prompt": 2,
    "give up": 1,
    "again": 1,
    "configure": 1,
    "reset": 1,
}
"""What hands do, and how often."""

LIVES: Final = 5
ACTIONS_MAX: Final = 8
LAST: Final = "one more message"
USAGE: Final = Usage(input=7, output=3)
ROUNDS_MAX: Final = 3
"""Exchanges after which the model answers in words."""

SAFE: Final = frozenset({"look", "slow"})
CURABLE: Final[tuple[FailureCode, ...]] = (
    "rate_limited",
    "overloaded",
    "server",
    "network",
    "timeout",
)
FATAL: Final[tuple[FailureCode, ...]] = ("auth", "billing", "content_filter", "invalid_request")


class InlineThreads:
    """The `Threads` port where there are no threads: blocking work is quick here."""

    async def run(self, name: str, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return work()

    def stuck(self) -> Sequence[str]:
        return ()


class SeededTokens:
    """The `Randomness` port, from the seed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def token(self, nbytes: int) -> str:
        return self._chance.randbytes(nbytes).hex()


class Strike(Struct, frozen=True, kw_only=True):
    """How a life's storage fails: at which of its commits, and on which side of persistence."""

    at: int
    side: Literal["before", "after"]


class FailingStorage:
    """A storage that takes its time and fails once; after that, or a crash, it takes nothing."""

    def __init__(self, inner: Storage, chance: random.Random, strike: Strike | None) -> None:
        self._inner = inner
        self._chance = chance
        self._strike = strike
        self._commits = 0
        self._dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def die(self) -> None:
        """Take no commit from now on."""
        self._dead = True

    async def commit(self, commit: Commit, *, barrier: bool) -> None:
        await asyncio.sleep(self._chance.choice((0, 0, 0.001, 0.05)))
        self._commits += 1
        strike = self._strike
        struck = strike is not None and self._commits == strike.at
        if self._dead or (struck and strike is not None and strike.side == "before"):
            self._dead = True
            raise Faulted("the simulated disk failed")
        await self._inner.commit(commit, barrier=barrier)
        await asyncio.sleep(self._chance.choice((0, 0, 0.001)))
        if struck or self._dead:
            self._dead = True
            raise Faulted("the simulated disk failed after it wrote")


class World:
    """One seeded day."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.ports = Ports(
            clock=SimClock(),
            randomness=SeededTokens(random.Random(seed + 1)),
            threads=cast("Any", InlineThreads()),
        )
        self.sessions = MemorySessions(clock=self.ports.clock, randomness=self.ports.randomness)
        self.effects: Counter[str] = Counter()
        self.reported: list[tuple[int, int]] = []
        self.acks: dict[str, int] = {}
        self.queued: dict[str, int] = {}
        self.faults: list[str] = []
        self.said = 0
        self.trace: list[str] = []

    # The day.

    async def day(self) -> list[str]:
        """Live all lives, then the last one; answers every broken law."""
        for life in range(self.chance.randint(1, LIVES)):
            await self._live(life)
        return [*self.faults, *await self._evening()]

    async def _live(self, life: int) -> None:
        strike: Strike | None = None
        if self.chance.random() < 0.5:
            side: Literal["before", "after"] = self.chance.choice(("before", "after"))
            strike = Strike(at=self.chance.randint(1, 60), side=side)
        storage = await self._storage(strike)
        try:
            harness = await self._open(storage)
        except Faulted:
            await storage.close()
            return
        hands = asyncio.create_task(self._hands(harness, life))
        driver = asyncio.create_task(self._driver(harness))
        with contextlib.suppress(PerdureError):
            await hands
        if self.chance.random() < 0.5:
            self.trace.append("crash")
            storage.die()
        else:
            self.trace.append("close")
        await harness.close(grace=self.chance.choice((0, 1, 100)))
        driver.cancel()
        await asyncio.wait({driver})

    async def _storage(self, strike: Strike | None) -> FailingStorage:
        inner = await self.sessions.open("day", create=True)
        return FailingStorage(inner, self.chance, strike)

    async def _open(self, storage: FailingStorage) -> Harness:
        head, effects = storage.last_seq, sum(self.effects.values())
        harness = await Harness.open(cast("Storage", storage), self._options())
        if self.chance.random() < 0.5:
            await asyncio.sleep(100)  # what an opening has started by mistake shows itself
        if head and (storage.last_seq, sum(self.effects.values())) != (head, effects):
            self.faults.append(f"opening moved the head from {head} or had an effect")
        return harness

    async def _evening(self) -> list[str]:
        storage = await self._storage(None)
        harness = await self._open(storage)
        root = await harness.root()
        for request_id, text in [(key, self._text(key)) for key in self.acks]:
            again = await root.accept(text, request_id=request_id)
            if (again.input_id, again.duplicate) != (self.acks[request_id], True):
                self.faults.append(f"{request_id} was accepted twice: {again}")
        await self._idle(harness)
        last = await root.prompt(LAST)
        if last.state != "answered":
            self.faults.append(f"the last message ended {last.state}: {last.error}")
        journal = await read_journal(cast("Storage", storage))
        self.faults += await _replay_faults(cast("Storage", storage))
        await harness.close()
        said = {**self.acks, **self.queued}
        lost = [key for key, seq in said.items() if journal.requests.get(key) != seq]
        return [
            *(f"the accepted input {key} is lost" for key in lost),
            *end_faults(journal),
            *outcome_faults(journal, self._count_of, safe=SAFE),
            *usage_faults(journal, self.reported),
        ]

    async def _idle(self, harness: Harness) -> None:
        """Drive until nothing is left; a queued follow-up of an idle conversation needs a nudge."""
        root = await harness.root()
        for _ in range(50):
            result = await harness.drive(poll_deferred=True)
            if result.outcome is DriveOutcome.IDLE and not (await root.state()).inbox:
                return
            if result.outcome is DriveOutcome.IDLE:
                await root.accept("go on")
            elif result.outcome is DriveOutcome.CLOSED:
                break
        self.faults.append("the session does not become idle")

    # Hands.

    async def _driver(self, harness: Harness) -> None:
        """Drive all day long; what a driver is told must be one of the known ends."""
        with contextlib.suppress(Faulted):
            while True:
                result = await harness.drive(
                    poll_deferred=self.chance.random() < 0.5,
                    wait_timers=self.chance.random() < 0.8,
                )
                if result.outcome is DriveOutcome.CLOSED:
                    return
                await asyncio.sleep(self.chance.random() * 3)

    async def _hands(self, harness: Harness, life: int) -> None:
        root = await harness.root()
        for number in range(self.chance.randint(1, ACTIONS_MAX)):
            await asyncio.sleep(self.chance.choice((0, 0.01, 0.5, 5, 40)))
            await self._act(harness, root, f"r{life}-{number}")

    async def _act(self, harness: Harness, root: Conversation, key: str) -> None:
        action = self.chance.choices(tuple(ACTIONS), weights=tuple(ACTIONS.values()))[0]
        self.trace.append(action)
        match action:
            case "accept":
                await self._say(root, key)
            case "accept twice":
                await asyncio.gather(self._say(root, key), self._say(root, key))
            case "follow up" | "steer" | "next run" | "append message":
                await self._queue(root, action, key)
            case "abort":
                await root.abort()
            case "prompt":
                await root.prompt(self._text(key))
            case "give up":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await root.prompt(self._text(key))
            case "again":
                await self._again(root)
            case _:
                await self._change(root, action)

    async def _change(self, root: Conversation, action: str) -> None:
        match action:
            case "cancel":
                inbox = (await root.state()).inbox
                await root.cancel_queued(self.chance.choice(inbox).id if inbox else Seq(1))
            case "flush":
                with contextlib.suppress(Rejected):
                    await root.flush()
            case "reset":
                with contextlib.suppress(Rejected):
                    await root.reset_context((), force=self.chance.random() < 0.5)
            case "configure":
                mode = self.chance.choice(("all", "one-at-a-time"))
                await root.configure(steering_mode=mode, follow_up_mode=mode)
            case _:
                raise AssertionError(action)

    async def _queue(self, root: Conversation, action: str, key: str) -> None:
        verb = action.replace(" ", "_")
        accepted = await getattr(root, verb)(self._text(key), request_id=key)
        self.queued[key] = accepted.input_id

    async def _say(self, root: Conversation, key: str) -> None:
        accepted = await root.accept(self._text(key), request_id=key)
        if self.acks.setdefault(key, accepted.input_id) != accepted.input_id:
            self.faults.append(f"{key} was accepted as {accepted.input_id} and {self.acks[key]}")

    async def _again(self, root: Conversation) -> None:
        """Repeat an old request with other words: refused, and nothing changes."""
        for key in list(self.acks)[:1]:
            try:
                await root.accept("other words", request_id=key)
                self.faults.append(f"{key} was accepted with other words")
            except Rejected as error:
                if error.code != "request_conflict":
                    self.faults.append(f"{key} with other words: {error.code}")

    def _text(self, key: str) -> str:
        return f"message {key}"

    # The model and its tools.

    def _options(self) -> Any:
        return options(
            ports=self.ports,
            models=cast(
                "Any", StrictModels(self, ScriptedModels(self._reply, clock=self.ports.clock))
            ),
            tools=self._tools(),
            on_error=lambda error, task: self.faults.append(f"task {task}: {error!r}"),
        )

    def _reply(self, request: ModelRequest) -> Reply:
        """Answer by chance, but the same for the same request of the same day."""
        seed = f"{self.seed}.{request.task_id}.{request.attempt}.{len(request.messages)}"
        chance = random.Random(hashlib.sha256(seed.encode()).digest())
        newest = request.messages[len(request.messages) - 1]
        if isinstance(newest, UserMessage) and newest.content == (TextPart(text=LAST),):
            return say("yes", usage=USAGE)
        mood = chance.random()
        if mood < 0.15:
            return self._failure(chance, CURABLE)
        if mood < 0.18:
            return self._failure(chance, FATAL)
        if mood < 0.21:
            return Reply(parts=(TextPart(text="odd"),), raises={0: RuntimeError("a vendor bug")})
        reply = self._calls(chance) if _rounds(request) < ROUNDS_MAX and mood < 0.7 else None
        reply = reply or say("words " * chance.randint(1, 900), usage=USAGE)
        if mood > 0.93:
            deferred = Deferred(polls=chance.randint(0, 2), poll_after_ms=2_000)
            return msgspec.structs.replace(reply, deferred=deferred)
        return msgspec.structs.replace(
            reply,
            chunk=chance.choice((0, 10, 500)),
            delay_ms=chance.choice((0, 0, 1, 30)),
            usage=chance.choice((USAGE, USAGE, None)),
            stop="length" if mood > 0.66 and reply.parts[-1:] else None,
        )

    def _failure(self, chance: random.Random, codes: Sequence[FailureCode]) -> Reply:
        failure = fail(
            chance.choice(codes),
            *chance.choice(((), ("half of it",), ("half", call("pay", {"amount": 5})))),
            retry_after_ms=chance.choice((None, None, 1_500)),
        )
        return msgspec.structs.replace(failure, usage=chance.choice((USAGE, None)))

    def _calls(self, chance: random.Random) -> Reply:
        kinds: list[ToolCallPart] = [
            call("look", {"at": 1}),
            call("pay", {"amount": 1}),
            call("pay", {"amount": 2}),
            call("slow", {}),
            call("boom", {}),
            call("ask", {}),
            call("unknown", {}),
            call("pay", {"amount": "much"}),
            call("pay", args_text='{"amount": 1,'),
            call("stop", {}),
        ]
        weights = (8, 8, 8, 4, 2, 1, 1, 1, 1, 0.4)
        chosen = chance.choices(kinds, weights=weights, k=chance.randint(1, 4))
        return say("I will.", *chosen, usage=USAGE)

    def _tools(self) -> Sequence[Tool]:
        async def act(name: str, ctx: ToolContext, seconds: float) -> str:
            await asyncio.sleep(seconds)
            self.effects[f"{name}:{ctx.invocation_id}"] += 1
            await ctx.out.progress({"at": 1})
            await asyncio.sleep(seconds)
            return f"{name} is done"

        @tool(replay="safe")
        async def look(at: int, ctx: ToolContext) -> str:
            """Look."""
            return await act("look", ctx, 0.01)

        @tool
        async def pay(amount: int, ctx: ToolContext) -> str:
            """Pay."""
            return await act("pay", ctx, 0.02)

        @tool(replay="safe")
        async def slow(ctx: ToolContext) -> str:
            """Take long."""
            return await act("slow", ctx, 15)

        @tool
        async def boom(ctx: ToolContext) -> str:
            """Act, then fail."""
            await act("boom", ctx, 0.01)
            raise ToolFailed("it broke")

        @tool(approval="deny")
        async def ask(ctx: ToolContext) -> str:
            """Never run."""
            return await act("ask", ctx, 0)

        @tool
        async def stop(ctx: ToolContext) -> str:
            """End the run."""
            ctx.out.terminate()
            return await act("stop", ctx, 0)

        return (look, pay, slow, boom, ask, stop)

    def _count_of(self, task: TaskRow) -> int:
        return self.effects[f"{task.state['name']}:{task.id}"]


class StrictModels:
    """Judge each request as a strict provider would; note which ones reported usage."""

    def __init__(self, world: World, inner: ScriptedModels) -> None:
        self._world = world
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def stream(self, request: ModelRequest) -> Any:
        # A reset before the request leaves nothing to send: the provider says so, the input fails.
        if request.messages:
            self._world.faults += [f"strict wire: {refusal}" for refusal in refusals(request)]
        return _Noted(self._inner.stream(request), self._world, (request.task_id, request.attempt))

    async def poll(self, handle: DeferredHandle) -> ModelOutcome:
        # The scripted model names a handle after the request it answers.
        task_id, attempt = handle.id.removeprefix("deferred-").split(".")
        noted = _Noted(None, self._world, (int(task_id), int(attempt)))
        return await noted.ended(self._inner.poll(handle))


class _Noted:
    def __init__(self, inner: Any, world: World, attempt: tuple[int, int]) -> None:
        self._inner = inner
        self._world = world
        self._attempt = attempt

    async def __aenter__(self) -> "_Noted":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *facts: Any) -> None:
        await self._inner.__aexit__(*facts)

    def __aiter__(self) -> Any:
        return aiter(self._inner)

    async def outcome(self) -> Any:
        return await self.ended(self._inner.outcome())

    async def ended(self, work: Awaitable[ModelOutcome]) -> ModelOutcome:
        try:
            outcome = await work
        except PerdureError as error:
            self._note(getattr(error, "usage", None))
            raise
        self._note(outcome.usage)
        return outcome

    def _note(self, usage: Usage | None) -> None:
        if usage is not None:
            self._world.reported.append(self._attempt)


def _plain(found: object) -> bytes:
    return msgspec.json.encode(found, enc_hook=list)


async def _replay_faults(storage: Storage) -> list[str]:
    """A fresh store made of the journal alone gives every answer the session gives (IV-01)."""
    commits = await storage.commits(after=NO_SEQ, limit=1_000)
    while page := await storage.commits(after=commits[-1].last_seq, limit=1_000):
        commits = [*commits, *page]
    fresh = cast("Storage", replay(commits))
    inputs = Address(kind="value", namespace="perdure.input")
    faults: list[str] = []
    for what, read in (
        ("conversations", lambda one: one.scan_conversations(ConversationScan(limit=1_000))),
        ("entries", lambda one: one.scan_entries(EntryScan(limit=10_000))),
        ("tasks", lambda one: one.scan_tasks(TaskScan(limit=10_000))),
        ("inputs", lambda one: one.scan_values(inputs, after=None, limit=1_000)),
        ("usage", lambda one: one.elements(USAGE_LIST, ListPage(limit=1_000))),
    ):
        if _plain(await read(storage)) != _plain(await read(fresh)):
            faults.append(f"{what} replayed from the journal differ from the session's")
    return faults


def _rounds(request: ModelRequest) -> int:
    """Count the exchanges since the newest message of a person."""
    rounds = 0
    for at in range(len(request.messages) - 1, -1, -1):
        message = request.messages[at]
        if isinstance(message, UserMessage):
            break
        rounds += not isinstance(message, ToolResultMessage)
    return rounds


def simulate(seed: int) -> list[str]:
    """Live the day of one seed; answers every broken law."""
    with asyncio.Runner(loop_factory=partial(SimLoop, seed)) as runner:
        return runner.run(World(seed).day())
