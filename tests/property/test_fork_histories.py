"""Random trees of forks against copies: context, values, list pages, transcript (IV-16, IV-27).

A session is driven by random commands over all its conversations, with forks of forks at random
entries and boundaries, calls left waiting, summaries and kills. `Forest` copies everything at each
boundary; at the end every conversation is compared with its copy at every boundary, through pages
of random sizes, and again after the store was opened anew.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import Rejected
from perdure.harness.conversation import Conversation
from perdure.line.command import Command
from perdure.line.line import Delivery
from perdure.providers.script import Reply, call, newest_text, say
from perdure.records.addresses import ConversationList, ConversationValue
from perdure.records.messages import SummaryPayload
from perdure.records.models import ModelRequest
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage
from tests.engine import BACKENDS, Backend, Engine, Probe
from tests.property.forest import Asked, Copy, Forest

KEYS = tuple(ConversationValue[object]("test.value", key) for key in "ab")
STEPS = ConversationList[object]("test.steps")
CHECKPOINT = ConversationValue[object]("test.checkpoint")


def reply(request: ModelRequest) -> Reply:
    """Answer by the words of the newest text."""
    text = newest_text(request)
    if "tools" in text:
        return say(call("look"), call("held" if "held" in text else "look"))
    return say("answer")


class Grove:
    """One random session beside its copies."""

    def __init__(self, engine: Engine, random: Random) -> None:
        self.engine = engine
        self.random = random
        self.forest = Forest()
        self.asked: Asked | None = None
        self.convs: dict[Seq, Conversation] = {}

    async def open(self) -> None:
        tools = [Probe("look", replay="safe"), Probe("held", approval="ask")]
        harness = await self.engine.open(reply, tools=tools)
        if not self.forest.past:
            for commit in await self.engine.commits():
                self.forest.commit(commit, None)
        self.engine.line.listen(self._on_commit)
        self.convs = {}
        for state in await harness.conversations(limit=1000):
            found = await harness.conversation(state.id)
            assert found is not None
            self.convs[state.id] = found

    def _on_commit(self, delivery: Delivery) -> None:
        if delivery.scope is None:
            self.forest.commit(delivery.commit, self.asked)

    async def act(self, name: str) -> None:
        conv = self.random.choice(list(self.convs.values()))
        number = self.random.randrange(1_000)
        acts: dict[str, Callable[[], Awaitable[object]]] = {
            "prompt": lambda: conv.prompt(self.random.choice(["plain", "tools", "plain"])),
            "leave open": lambda: conv.prompt("held tools"),
            "set": lambda: conv.set_value(self.random.choice(KEYS), number),
            "delete": lambda: conv.delete_value(self.random.choice(KEYS)),
            "append": lambda: conv.append_list(STEPS, number, tag=[None, "mark"][number % 2]),
            "checkpoint": lambda: self._checkpoint(conv),
            "reset": lambda: self._reset(conv, number),
            "summarize": lambda: self._summarize(conv, number),
            "abort": lambda: self._abort(conv),
            "queue": lambda: self._queue(conv),
            "kill": self._kill,
        }
        if name not in acts:
            await self.fork(conv, name)  # nothing that can be seen is refused
            return
        with suppress(Rejected):  # busy while a call is open
            await acts[name]()

    async def _reset(self, conv: Conversation, number: int) -> None:
        context = list((await conv.state()).context)
        await conv.reset_context(context[number % (len(context) + 1) :], force=True)

    async def _abort(self, conv: Conversation) -> None:
        await conv.abort()
        await conv.drive()

    async def _queue(self, conv: Conversation) -> None:
        """Have several entries placed in one commit."""
        for text in ("one", "two"):
            await conv.next_run(text)
        await conv.prompt("three")

    async def _kill(self) -> None:
        await self.engine.kill()
        await self.open()

    async def _checkpoint(self, conv: Conversation) -> None:
        """Set a value to the sum of a list beside its last element, in one commit."""
        page = await conv.read_list(STEPS, ListPage(limit=1000))

        def build(tx: Command) -> None:
            seq = tx.append_list(STEPS, 1, tag="mark")
            total = sum(int(one.value_json) for one in page) + 1
            tx.set_value(CHECKPOINT, {"through": seq, "sum": total})

        await conv.command(build)

    async def _summarize(self, conv: Conversation, number: int) -> None:
        state = await conv.state()
        context = list(state.context)
        if not context:
            return
        through = context[number % len(context)]

        def build(tx: Command) -> None:
            head = tx.insert_entry(
                conv.id, "summary", {"timestamp": 1}, SummaryPayload(text="s"), through=through
            )
            tx.replace_context(
                conv.id,
                through=through,
                head=head,
                expect_prefix_version=state.prefix_version,
            )

        await conv._core.submit(build)

    async def fork(self, conv: Conversation, name: str) -> None:
        at = as_of = None
        forest = self.forest
        if name == "fork at entry":
            seen = forest.now[conv.id].entries
            if not seen:
                return
            at = self.random.choice(seen)
        elif name == "fork at commit":
            as_of = self.random.choice([one for one in forest.past if forest.reaches(conv.id, one)])
        fresh = name == "fork fresh"
        self.asked = Asked(conv.id, at, as_of, is_fresh=fresh)
        made = await conv.fork(at=at, as_of=as_of, context="fresh" if fresh else "inherit")
        self.asked = None
        self.convs[made.id] = made

    # What holds at the end.

    async def compare(self) -> None:
        for as_of, copies in self.forest.past.items():
            for conv_id, copy in copies.items():
                await self._compare(self.convs[conv_id], copy, as_of)
        for conv_id, copy in self.forest.now.items():
            await self._compare(self.convs[conv_id], copy, None)

    async def _compare(self, conv: Conversation, copy: Copy, as_of: Seq | None) -> None:
        assert list((await conv.state(as_of=as_of)).context) == copy.context
        for token in (*KEYS, CHECKPOINT):
            expected = copy.values.get(token.namespace + token.key)
            assert await conv.get_value(token, None, as_of=as_of) == expected
        limit = self.random.choice([1, 2, 7, 1000])
        order: Any = self.random.choice(["asc", "desc"])
        entries = copy.entries if order == "asc" else copy.entries[::-1]
        page = await conv.entries(limit=limit, newest_first=order == "desc", as_of=as_of)
        assert [one.id for one in page] == entries[:limit]
        elements = copy.elements if order == "asc" else copy.elements[::-1]
        assert await self._elements(conv, limit=limit, order=order, as_of=as_of) == elements[:limit]
        if elements:
            turn = self.random.choice(elements)[0]
            bound = {"after": turn} if order == "asc" else {"before": turn}
            rest = [one for one in elements if (one[0] > turn) == (order == "asc")]
            rest = [one for one in rest if one[0] != turn]
            found = await self._elements(conv, limit=limit, order=order, as_of=as_of, **bound)
            assert found == rest[:limit]
        marked = [place for place, one in enumerate(elements[:limit]) if one[2] == "mark"]
        upto = marked[0] + 1 if marked else limit
        found = await self._elements(
            conv, limit=limit, order=order, as_of=as_of, stop_at_tag="mark"
        )
        assert found == elements[:upto]
        checkpoint = copy.values.get("test.checkpoint")
        if checkpoint is not None:
            suffix = await self._elements(
                conv, limit=1000, as_of=as_of, after=Seq(checkpoint["through"])
            )
            total = sum(value for _, value, _ in copy.elements)
            assert checkpoint["sum"] + sum(value for _, value, _ in suffix) == total

    async def _elements(self, conv: Conversation, **page: Any) -> list[tuple[Seq, Any, str | None]]:
        found = await conv.read_list(STEPS, ListPage(**page))
        return [(one.seq, one.value, one.tag) for one in found]


NAMES = (
    "prompt", "prompt", "queue", "leave open", "set", "set", "delete", "append", "append", "append",
    "checkpoint", "reset", "summarize", "abort", "kill", "fork", "fork at entry", "fork at entry",
    "fork at commit", "fork at commit", "fork fresh",
)  # fmt: skip

histories = st.lists(st.sampled_from(NAMES), min_size=15, max_size=40)
seeds = st.integers(0, 2**32)


async def _run(engine: Engine, history: list[str], seed: int) -> None:
    grove = Grove(engine, Random(seed))
    try:
        await grove.open()
        for name in history:
            await grove.act(name)
        assert not engine.errors, engine.errors
        await grove.compare()
        await engine.kill()
        await grove.open()
        await grove.compare()
    finally:
        await engine.aclose()


@pytest.mark.spec(
    "IV-16", "IV-27", "FK-02", "FK-07", "FK-08", "FK-12", "FK-17", "CX-15", "CX-17", "VL-27"
)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.timeout(120)
@settings(max_examples=25, deadline=None)
@given(history=histories, seed=seeds)
def test_every_fork_reads_as_a_copy_would(backend: Backend, history: list[str], seed: int) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(_run(Engine(backend, Path(folder)), history, seed))


@pytest.mark.deep
@pytest.mark.timeout(1800)
@settings(max_examples=1_000, deadline=None)
@given(history=histories, seed=seeds)
def test_they_do_so_at_length(history: list[str], seed: int) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(_run(Engine("memory", Path(folder)), history, seed))
