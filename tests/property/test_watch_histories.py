"""Watches cut at random moments of a random session equal a fresh read (WT-10, WB-17, BB-45).

A host accepts, steers, withdraws, aborts and configures while replies stream and tools write. At
random moments a watcher is compared, on the line, with a base read in the same step; others are cut
off and go on after the last commit they saw. A lost, doubled or reordered event shows as a
difference.
"""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec import structs

from perdure.errors import Rejected
from perdure.harness.conversation import Conversation
from perdure.harness.watch_start import Asked
from perdure.harness.watching import Watch
from perdure.ports import ToolContext
from perdure.providers.script import END, Failure, Reply, call, say, think
from perdure.records.models import ModelRequest
from perdure.records.retry import RetryPolicy
from perdure.records.seqs import Seq
from perdure.records.view import View
from perdure.records.watch import SnapshotRequired, WatchBase, WatchEvent, read_event, wire
from perdure.testing.sim_loop import SimLoop
from perdure.toolkits.define import Output
from tests.engine import BACKENDS, Backend, Engine, Probe

LIMITS = (1, 3, 50)
WATCHERS = 4


class History:
    """One random session and its watchers."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.root: Conversation
        self.watchers: list[tuple[Watch, View]] = []
        self.cuts = 0
        self.seen: set[str] = set()

    async def jitter(self) -> None:
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(0)

    def reply(self, _: ModelRequest) -> Reply:
        """Answer anything: text that flushes at once, calls, failures after half a reply."""
        pieces: list[Any] = [think("hm" * 3_000)] if self.random.random() < 0.3 else []
        pieces += [
            self.random.choice("abcö") * self.random.randrange(1, 9_000)
            for _ in range(self.random.randrange(1, 3))
        ]
        calls = [call(self.random.choice(("head", "tail"))) for _ in range(2)]
        facts: dict[str, Any] = {"gates": dict.fromkeys(range(12), self.jitter), "chunk": 3_000}
        fate = self.random.random()
        if fate < 0.15:
            return say(*pieces, failure=Failure(code="overloaded", at=END), **facts)
        if fate < 0.2:
            return say(*pieces, failure=Failure(code="auth", at=END), **facts)
        return say(*pieces, *(calls if fate < 0.6 else []), **facts)

    async def work(self, _: Mapping[str, Any], ctx: ToolContext) -> object:
        for step in range(self.random.randrange(5)):
            ctx.out.write(self.random.choice("xyü") * self.random.randrange(1, 7_000))
            await self.jitter()
            if self.random.random() < 0.5:
                await ctx.out.progress({"step": step})
        return None

    async def run(self, cuts: int) -> None:
        tools = [
            Probe("head", body=self.work, output=Output(retain="head", bytes_max=2_000)),
            Probe("tail", body=self.work, output=Output(retain="tail", bytes_max=6_000)),
        ]
        self.root = await self.engine.root(
            self.reply, tools=tools, settings={"retry": RetryPolicy(base_delay_ms=10)}
        )
        driving = self.engine.begin(self._drive())
        while self.cuts < cuts:
            await self._step()
            await self.jitter()
            await self._cut()
        driving.cancel()
        for watch, _ in self.watchers:
            await watch.close()
        assert not [one for one in self.engine.errors if not isinstance(one, RuntimeWarning)]

    async def _drive(self) -> None:
        while True:
            await self.root.drive(wait_timers=False)
            self.engine.clock.advance(60_000)
            await asyncio.sleep(0)

    async def _step(self) -> None:
        """Do something a host would."""
        root = self.root
        queued = [item.id for item in (await root.state()).inbox]
        with suppress(Rejected):
            match self.random.randrange(9):
                case 0 | 1 | 2:
                    await root.accept("more")
                case 3:
                    await root.steer("that way")
                case 4:
                    await root.next_run("later")
                case 5:
                    await root.configure(label=self.random.choice((None, "a", "b")))
                case 6 if queued:
                    await root.cancel_queued(queued[0])
                case 7 if self.random.random() < 0.4:
                    await root.abort()
                case 8:
                    await root.reset_context((), force=self.random.random() < 0.5)
                case _:
                    await root.append_message("by the way")

    async def _cut(self) -> None:
        """Compare a watcher with a fresh read; begin one, or cut one and let it go on."""
        if len(self.watchers) < WATCHERS:
            watch = self.root.watch(limit=self.random.choice(LIMITS))
            base = over_the_wire(await anext(watch))
            assert isinstance(base, WatchBase)
            self.watchers.append((watch, View(base)))
            return
        self.cuts += 1
        watch, view = self.watchers.pop(0)
        fresh = await self._fresh(watch, view)
        assert shown(view.base(), len(view.base().entries), view.as_of) == shown(
            fresh, len(view.base().entries), view.as_of
        )
        assert view.as_of <= fresh.as_of
        if self.random.random() < 0.5:
            self.watchers.append((watch, view))
            return
        await watch.close()
        if self.random.random() < 0.5:
            await self._step()
            await self.jitter()
            self.watchers.append((self.root.watch(after=view.as_of), view))

    async def _fresh(self, watch: Watch, view: View) -> WatchBase:
        """Read a base, and everything that waits in a watch, in one step on the line."""
        await watch.__aenter__()
        reading = self.engine.harness._core.watches._reading
        read: list[WatchEvent] = []

        async def step() -> None:
            asked = Asked(conv_id=self.root.id, limit=1_000)
            read.extend(await reading.first(asked, frozenset((self.root.id,)), None))
            for event in taken(watch):
                assert not isinstance(event, SnapshotRequired)
                view.apply(over_the_wire(event))
                self.seen.add(str(event.__struct_config__.tag))

        await self.engine.line.snapshot(step)
        (base,) = read
        assert isinstance(base, WatchBase)
        return base


def taken(watch: Watch) -> list[WatchEvent]:
    """Take what waits in a watch, without letting anything else run."""
    queue = watch._queue
    assert queue is not None
    assert not queue.ended
    found: list[WatchEvent] = []
    while queue.held:
        step = queue.next()
        with pytest.raises(StopIteration) as done:
            step.send(None)
        found.append(done.value.value)
    return found


def over_the_wire(event: WatchEvent) -> WatchEvent:
    return read_event(wire(event))


def shown(base: WatchBase, entries: int, as_of: Seq) -> WatchBase:
    """Keep the newest entries of a base, at a boundary, as its JSON says it."""
    newest = base.entries[len(base.entries) - entries :]
    told = over_the_wire(structs.replace(base, as_of=as_of, entries=newest))
    assert isinstance(told, WatchBase)
    return told


async def told(backend: Backend, folder: Path, seed: int, cuts: int) -> set[str]:
    engine = Engine(backend, folder)
    try:
        history = History(engine, seed)
        await history.run(cuts)
        return history.seen
    finally:
        await engine.aclose()


def run_one(backend: Backend, seed: int, cuts: int) -> set[str]:
    """Run one history: on memory in a seeded loop with virtual time, on SQLite in a plain one."""
    factory = partial(SimLoop, seed) if backend == "memory" else None
    with TemporaryDirectory() as folder, asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(told(backend, Path(folder), seed, cuts))


@pytest.mark.spec("WT-01", "WT-06", "WT-10", "IV-13", "BB-45")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_watch_cut_anywhere_equals_a_fresh_read(backend: Backend) -> None:
    assert {"commit", "delta", "quiescent"} <= run_one(backend, seed=7, cuts=60)


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_hundred_cuts_of_each_of_many_sessions(backend: Backend, seed: int) -> None:
    run_one(backend, seed=seed, cuts=200)
