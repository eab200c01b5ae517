"""Random sessions against a naive reading of their own journal (IV-01, CX-17, D01).

A session is driven by random commands of a host, with random kills between them. At the end every
main boundary is rebuilt from the commits alone and compared with what storage answers there; at
every commit the context list keeps its shape and the input records keep their holders.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from perdure.errors import Rejected
from perdure.harness.conversation import Conversation
from perdure.line.command import Command
from perdure.line.line import Delivery
from perdure.providers.script import Reply, call, fail, newest_text, say
from perdure.records.addresses import (
    ConversationList,
    ConversationValue,
    WorkingScope,
    input_record,
)
from perdure.records.codec import decode_json
from perdure.records.models import ModelRequest
from perdure.records.seqs import Seq
from perdure.records.sessions import EntryScan, ListPage, TaskScan
from perdure.storage.memory import replay
from perdure.testing.storage_model import ReferenceModel
from tests.engine import BACKENDS, Backend, Engine, Probe
from tests.unit.harness.holders import Holders

PLAN = ConversationValue[object]("test.plan")
STEPS = ConversationList[object]("test.steps")
SCOPE = WorkingScope("work")


def reply(request: ModelRequest) -> Reply:
    """Answer by the words of the newest text, so that a history needs no script."""
    text = newest_text(request)
    if "fail" in text:
        return fail("auth", "half" if "partial" in text else "")
    if "tools" in text:
        return say(call("look"), call("pay"))
    return say(f"answer to {len(request.messages)}")


class Session:
    """One random session and what holds of it at every boundary."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.root: Conversation
        self.holders: Holders
        self.faults: list[str] = []

    async def open(self) -> None:
        tools = [Probe("look", replay="safe"), Probe("pay")]
        harness = await self.engine.open(reply, tools=tools)
        self.root = await harness.root()
        await self.root.set_value(PLAN, "open")
        fresh = Holders(self.engine)
        fresh.records = getattr(self, "holders", fresh).records
        self.holders = fresh
        self.engine.line.listen(self._check_list)

    def _check_list(self, delivery: Delivery) -> None:
        state = self.engine.line.residency.conversation(self.root.id)
        assert state is not None
        rest = list(state.context)[1:]
        assert rest == sorted(set(rest)), "an optional head, then ascending ids"
        assert len(set(state.context)) == len(state.context)
        mine = [getattr(write, "conv_id", None) for write in delivery.commit.writes]
        mine += [task.conv_id for task in delivery.tasks]
        if delivery.scope is None and self.root.id in mine:
            assert state.commit_end == delivery.commit.last_seq

    async def act(self, name: str, number: int) -> None:
        words = ["plain", "tools", "fail", "fail partial"][number % 4]
        root = self.root
        acts: dict[str, Callable[[], Awaitable[Any]]] = {
            "accept": lambda: root.accept(words, request_id=f"k{number}" if number % 3 else None),
            "follow_up": lambda: root.follow_up(words),
            "steer": lambda: root.steer(words),
            "next_run": lambda: root.next_run(words),
            "append_message": lambda: root.append_message(words),
            "drive": lambda: root.drive(wait_timers=False),
            "abort": root.abort,
            "flush": root.flush,
            "cancel": lambda: root.cancel_queued(Seq(number * 7)),
            "set": lambda: root.set_value(PLAN, number),
            "delete": lambda: root.delete_value(PLAN),
            "append": lambda: root.append_list(STEPS, number),
            "mode": lambda: root.configure(
                follow_up_mode="one-at-a-time" if number % 2 else "all", label=str(number)
            ),
            "reset": lambda: self._reset(number),
            "working": lambda: self.engine.harness.working_command(
                SCOPE, lambda tx: _end(tx.append_list(SCOPE.list("test.items"), number))
            ),
            "retire": lambda: self.engine.harness.command(lambda tx: _end(tx.retire_scope(SCOPE))),
            "refused": lambda: self.engine.line.submit(_refused),
            "kill": self._kill,
        }
        with suppress(Rejected):  # busy, nothing to do, a key used twice: all part of a history
            await acts[name]()

    async def _reset(self, number: int) -> None:
        context = list((await self.root.state()).context)
        await self.root.reset_context(context[number % (len(context) + 1) :], force=True)

    async def _kill(self) -> None:
        await self.engine.kill()
        await self.open()


def _refused(tx: Command) -> None:
    tx.append_list(STEPS.bind(Seq(1)), "never")
    tx.set_value(PLAN.bind(Seq(999_999)), 1)


NAMES = (
    "accept", "accept", "follow_up", "steer", "next_run", "append_message", "drive", "drive",
    "drive", "abort", "flush", "cancel", "set", "delete", "append", "mode", "reset", "working",
    "retire", "refused", "kill",
)  # fmt: skip

histories = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 40)), min_size=25, max_size=60
)


@pytest.mark.spec("IV-01", "IV-05", "IV-08", "CX-06", "CX-17", "QU-17")
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=30)
@given(history=histories)
def test_the_journal_says_what_every_read_says(
    backend: Backend, history: list[tuple[str, int]]
) -> None:
    with TemporaryDirectory() as folder:
        engine = Engine(backend, Path(folder))
        asyncio.run(_run(engine, history))


@pytest.mark.deep
@pytest.mark.timeout(1800)
@settings(max_examples=2_000)
@given(history=histories)
def test_the_journal_says_so_at_length(history: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(_run(Engine("memory", Path(folder)), history))


async def _run(engine: Engine, history: list[tuple[str, int]]) -> None:
    session = Session(engine)
    try:
        await session.open()
        for name, number in history:
            await session.act(name, number)
        assert not engine.errors, engine.errors
        assert engine.line.fault is None
        await _compare(engine)
    finally:
        await engine.aclose()


async def _compare(engine: Engine) -> None:
    storage = engine.storage.inner
    commits: list[Any] = []
    while page := await storage.commits(
        after=commits[-1].last_seq if commits else Seq(0), limit=100
    ):
        commits.extend(page)
    reference = ReferenceModel(commits)
    replayed = replay(commits)
    for commit in commits:
        as_of = commit.last_seq
        for conv_id, facts in reference.conversations(as_of).items():
            for source in (storage, replayed):
                state = (await source.conversations([conv_id], as_of=as_of))[conv_id]
                assert list(state.context) == facts["context"]
                assert state.prefix_version == facts["prefix_version"]
                assert state.inbox == facts["inbox"]
                assert (state.label, state.follow_up_mode) == (
                    facts["label"], facts["follow_up_mode"],
                )  # fmt: skip
        stored = await storage.value(PLAN.bind(Seq(1)), as_of=as_of)
        value = UNSET if stored is None else decode_json(stored.value_json)
        assert value == reference.value(Seq(1), "test.plan", "", as_of)
        page = await storage.elements(STEPS.bind(Seq(1)), ListPage(limit=1000, as_of=as_of))
        assert [one.seq for one in page] == [
            one.seq for one in reference.elements(Seq(1), "test.steps", "", as_of)
        ]
    await _compare_current(engine, reference, replayed)


async def _compare_current(engine: Engine, reference: ReferenceModel, replayed: Any) -> None:
    """What memory holds, storage answers and a replay builds are one state (IV-01)."""
    storage = engine.storage.inner
    head = reference.commits[-1].last_seq
    entries = await storage.scan_entries(EntryScan(conv_id=Seq(1), limit=1000))
    assert list(entries) == list(await replayed.scan_entries(EntryScan(conv_id=Seq(1), limit=1000)))
    assert [one.id for one in entries] == list(reference.entries(head))
    tasks = await storage.scan_tasks(TaskScan(limit=1000))
    assert list(tasks) == list(await replayed.scan_tasks(TaskScan(limit=1000)))
    expected = reference.tasks(head)
    assert {task.id: task.status for task in tasks} == {
        seq: facts["status"] for seq, facts in expected.items()
    }
    live = {task.id for task in engine.line.residency.live_tasks()}
    assert live == {seq for seq, facts in expected.items() if facts["live"]}
    held = engine.line.residency.conversation(Seq(1))
    assert held == (await storage.conversations([Seq(1)]))[Seq(1)]
    for (namespace, key), value in reference.session_values().items():
        if namespace == "perdure.input":
            assert decode_json((await storage.value(_input(key))).value_json) == value  # pyright: ignore[reportOptionalMemberAccess]


def _input(key: str) -> Any:
    return input_record(Seq(int(key))).address()


def _end(_: object) -> None:
    """Turn a call with an answer into a step of a command."""
