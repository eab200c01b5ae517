"""The line: one command at a time, final seqs at once, all of it or nothing (seed 7, LN)."""

import asyncio
from typing import Any

import pytest
from msgspec import Raw

from perdure.errors import Rejected
from perdure.harness.conversation import Conversation
from perdure.kinds.generation import Generation
from perdure.line.command import Command, WorkingCommand
from perdure.line.line import Delivery
from perdure.records.addresses import (
    ConversationList,
    ConversationValue,
    SessionList,
    SessionValue,
    WorkingScope,
)
from perdure.records.entries import EntryMeta
from perdure.records.messages import TextPart, UserMessage, UserPayload
from perdure.records.seqs import SEQ_MAX, Seq
from perdure.records.sessions import ListPage
from perdure.records.writes import AppendContext, InsertEntry, SetValue
from tests.engine import Engine, Gate

NOTE = SessionValue[object]("test.note")
OTHER = SessionValue[object]("test.other")
PLAN = ConversationValue[object]("test.plan")
STEPS = ConversationList[object]("test.steps")
LOG = SessionList[object]("test.log")
SCOPE = WorkingScope("work")


def hello(text: str = "hello") -> UserPayload:
    return UserPayload(messages=(UserMessage(content=(TextPart(text=text),), timestamp=1),))


@pytest.mark.spec("LN-01")
async def test_a_waiting_builder_keeps_every_other_command_out(memory_engine: Engine) -> None:
    await memory_engine.open()
    gate = Gate()
    order: list[str] = []

    async def slow(tx: Command) -> None:
        order.append("slow begins")
        await gate()
        tx.set_value(NOTE, "slow")
        order.append("slow ends")

    def quick(tx: Command) -> None:
        order.append("quick")
        tx.set_value(NOTE, "quick")

    first = memory_engine.begin(memory_engine.line.submit(slow))
    await gate.reached.wait()
    second = memory_engine.begin(memory_engine.line.submit(quick))
    working = memory_engine.begin(
        memory_engine.line.submit_working(SCOPE, lambda _: order.append("working"))
    )
    await asyncio.wait({second, working}, timeout=0)
    assert order == ["slow begins"]
    gate.open()
    await asyncio.gather(first, second, working)
    assert order == ["slow begins", "slow ends", "quick", "working"]


@pytest.mark.spec("LN-02", "LN-05")
async def test_reads_answer_the_state_before_the_command(engine: Engine) -> None:
    root = await engine.root()
    await root.set_value(PLAN, "before")

    async def build(tx: Command) -> None:
        entry_id = tx.insert_entry(root.id, "user", EntryMeta(), hello())
        tx.set_value(NOTE, "written")
        assert await tx.get_value(PLAN.bind(root.id), None) == "before"
        assert len((await tx.conversation(root.id)).context) == 0
        with pytest.raises(Rejected) as caught:
            await tx.entry(entry_id)
        assert caught.value.code == "not_found"
        assert await engine.harness.get_value(NOTE, "absent") == "absent"

    before = engine.storage.last_seq
    await engine.line.submit(build)
    assert engine.storage.last_seq == before + 3
    assert await engine.harness.get_value(NOTE, None) == "written"


@pytest.mark.spec("LN-02")
async def test_reading_what_this_command_wrote_is_refused(memory_engine: Engine) -> None:
    await memory_engine.open()

    async def build(tx: Command) -> None:
        tx.set_value(NOTE, 1)
        await tx.get_value(NOTE, None)

    with pytest.raises(Rejected, match="read it first"):
        await memory_engine.harness.command(build)
    assert await memory_engine.harness.get_value(NOTE, "absent") == "absent"


@pytest.mark.spec("LN-03", "LN-04")
async def test_every_record_takes_the_next_number_of_one_counter(engine: Engine) -> None:
    root = await engine.root()
    head = engine.storage.last_seq
    ids: list[Seq] = []

    def build(tx: Command) -> None:
        conv_id = tx.insert_conversation()
        ids.append(conv_id)
        ids.append(tx.set_value(PLAN.bind(conv_id), 1))
        ids.append(tx.insert_entry(conv_id, "user", EntryMeta(), hello()))
        tx.patch_conversation(root.id, label="x")
        ids.append(tx.append_list(STEPS.bind(conv_id), "step"))
        ids.append(tx.retire_scope(SCOPE))

    await engine.line.submit(build)
    # The entry's context append is 4, the patch is 5.
    assert ids == [head + 1, head + 2, head + 3, head + 6, head + 7]
    commit = (await engine.commits())[-1]
    assert [write.seq for write in commit.writes] == list(range(head + 1, head + 8))
    entry, append = commit.writes[2], commit.writes[3]
    assert isinstance(entry, InsertEntry)
    assert isinstance(append, AppendContext)
    assert append.ids == (entry.seq,)
    assert (await engine.line.conversation(ids[0])) is not None


@pytest.mark.spec("LN-06")
async def test_a_command_says_whether_it_wrote_and_a_silent_one_uses_no_seq(
    engine: Engine,
) -> None:
    harness = await engine.open()
    head, made = engine.storage.last_seq, len(engine.storage.commits_made)
    assert await harness.command(lambda _: None) is False
    assert await harness.working_command(SCOPE, lambda _: None) is False
    assert engine.storage.last_seq == head
    assert len(engine.storage.commits_made) == made
    assert await harness.command(lambda tx: tx.delete_value(NOTE)) is True
    assert engine.storage.last_seq == head + 1


@pytest.mark.spec("LN-07", "LN-09")
async def test_a_throw_or_a_refusal_discards_all_and_uses_no_seq(engine: Engine) -> None:
    root = await engine.root()
    head = engine.storage.last_seq
    seen: list[Delivery] = []
    engine.line.listen(seen.append)

    def raising(tx: Command) -> None:
        tx.set_value(NOTE, 1)
        raise KeyError("mine")

    def invalid(tx: Command) -> None:
        tx.set_value(NOTE, 1)
        tx.insert_entry(Seq(999), "user", EntryMeta(), hello())

    with pytest.raises(KeyError, match="mine"):
        await engine.harness.command(raising)
    with pytest.raises(Rejected):
        await engine.harness.command(invalid)
    assert engine.storage.last_seq == head
    assert await engine.harness.get_value(NOTE, "absent") == "absent"
    assert not seen
    await root.set_value(PLAN, 2)
    assert (await engine.commits())[-1].first_seq == head + 1


@pytest.mark.spec("LN-08")
async def test_a_command_kept_beyond_its_callback_refuses_everything(
    memory_engine: Engine,
) -> None:
    root = await memory_engine.root()
    kept: list[Command] = []
    kept_working: list[WorkingCommand] = []
    await memory_engine.line.submit(kept.append)
    await memory_engine.line.submit_working(SCOPE, kept_working.append)
    tx, working = kept[0], kept_working[0]
    for use in (
        lambda: tx.set_value(NOTE, 1),
        lambda: tx.insert_entry(root.id, "user", EntryMeta(), hello()),
        lambda: tx.patch_conversation(root.id, label="x"),
        lambda: tx.retire_scope(SCOPE),
        lambda: working.set_value(SCOPE.value("test.note"), 1),
        lambda: working.delete_list(SCOPE.list("test.note")),
    ):
        with pytest.raises(Rejected, match="has ended"):
            use()
    with pytest.raises(Rejected, match="has ended"):
        await tx.get_value(NOTE, None)


@pytest.mark.spec("LN-10")
async def test_validation_sees_the_records_before_each_and_none_after(engine: Engine) -> None:
    await engine.open()
    head = engine.storage.last_seq

    def good(tx: Command) -> None:
        conv_id = tx.insert_conversation()
        tx.insert_entry(conv_id, "user", EntryMeta(), hello())
        tx.set_value(PLAN.bind(conv_id), 1)

    def bad(tx: Command) -> None:
        # The conversation that the second record makes does not exist for the first.
        tx.set_value(PLAN.bind(Seq(engine.storage.last_seq + 2)), 1)
        tx.insert_conversation()

    with pytest.raises(Rejected) as caught:
        await engine.line.submit(bad)
    assert caught.value.code == "unknown_target"
    assert engine.storage.last_seq == head
    assert await engine.line.submit(good)


@pytest.mark.spec("LN-11", "IV-05")
async def test_the_caller_resumes_after_listeners_who_see_the_new_state(engine: Engine) -> None:
    root = await engine.root()
    heard: list[object] = []

    def listener(delivery: Delivery) -> None:
        state = engine.line.residency.conversation(root.id)
        assert state is not None
        assert state.commit_end == delivery.commit.last_seq
        assert delivery.commit.last_seq == engine.storage.last_seq
        heard.append([write.seq for write in delivery.commit.writes])

    engine.line.listen(listener)
    await root.set_value(PLAN, 1)
    assert len(heard) == 1
    await asyncio.gather(*(root.set_value(PLAN, number) for number in range(5)))
    head = engine.storage.last_seq
    assert heard == [[head - 5 + number] for number in range(6)]
    assert not engine.errors


@pytest.mark.spec("LN-12")
async def test_a_listener_that_opens_a_command_gets_an_error(
    memory_engine: Engine,
) -> None:
    await memory_engine.open()
    caught: list[Rejected] = []

    def listener(_: Delivery) -> None:
        opening = memory_engine.line.submit(lambda tx: _drop(tx.set_value(OTHER, 1)))
        try:
            # A listener cannot await; driving the coroutine by hand is as far as it gets.
            opening.send(None)
        except Rejected as error:
            caught.append(error)

    memory_engine.line.listen(listener)
    await memory_engine.line.submit(lambda tx: _drop(tx.set_value(NOTE, 1)))
    assert [error.code for error in caught] == ["nested_command"]
    assert await memory_engine.harness.get_value(OTHER, "absent") == "absent"


@pytest.mark.spec("LN-13", "ER-06", "IV-05")
async def test_a_listener_that_throws_harms_nobody(engine: Engine) -> None:
    await engine.open()
    heard: list[Seq] = []

    def broken(_: Delivery) -> None:
        raise ZeroDivisionError("listener")

    engine.line.listen(broken)
    engine.line.listen(lambda delivery: heard.append(delivery.commit.last_seq))
    assert await engine.harness.command(lambda tx: _drop(tx.set_value(NOTE, 1)))
    await engine.harness.working_command(
        SCOPE, lambda tx: _drop(tx.set_value(SCOPE.value("test.note"), 1))
    )
    assert heard == [engine.storage.last_seq - 1, engine.storage.last_seq]
    assert [type(error) for error in engine.errors] == [ZeroDivisionError] * 2
    assert await engine.harness.get_value(NOTE, None) == 1


@pytest.mark.spec("LN-14")
async def test_concurrent_commands_get_consecutive_ranges_that_go_on_after_reopen(
    engine: Engine,
) -> None:
    await engine.open()
    start = engine.storage.last_seq

    async def build(tx: Command) -> None:
        tx.set_value(NOTE, 1)
        await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0))])
        tx.set_value(OTHER, 2)

    await asyncio.gather(*(engine.line.submit(build) for _ in range(8)))
    ranges = [(commit.first_seq, commit.last_seq) for commit in await engine.commits()][1:]
    assert ranges == [(start + 1 + 2 * at, start + 2 + 2 * at) for at in range(8)]
    end = engine.storage.last_seq
    await engine.kill()
    await engine.open()
    assert engine.storage.last_seq == end
    await engine.line.submit(build)
    assert (await engine.commits())[-1].first_seq == end + 1


@pytest.mark.spec("LN-15")
async def test_running_out_of_seqs_rejects(memory_engine: Engine) -> None:
    await memory_engine.open()
    tx = Command(memory_engine.line, Seq(SEQ_MAX - 1), kinds=memory_engine.line.kinds, host=False)
    tx.set_value(NOTE, 1)
    assert tx.set_value(NOTE, 2) == SEQ_MAX == 2**53 - 1
    with pytest.raises(Rejected) as caught:
        tx.set_value(NOTE, 3)
    assert caught.value.code == "invariant"


@pytest.mark.spec("LN-16", "LN-17")
async def test_each_lifetime_writes_only_its_own(engine: Engine) -> None:
    harness = await engine.open()
    value, items = SCOPE.value("test.note", "k"), SCOPE.list("test.items")
    elsewhere = WorkingScope("other").value("test.note", "k")
    session_list = LOG.address()

    def fill(tx: WorkingCommand) -> None:
        tx.set_value(value, {"n": 1})
        tx.append_list(items, "one")

    await harness.working_command(SCOPE, fill)
    for wrong in (elsewhere, NOTE.address(), PLAN.bind(Seq(1))):
        with pytest.raises(Rejected, match="writes only its own"):
            await harness.working_command(SCOPE, lambda tx, at=wrong: _drop(tx.set_value(at, 1)))
    with pytest.raises(Rejected, match="writes only its own"):
        await harness.working_command(SCOPE, lambda tx: tx.delete_list(session_list))
    for write in (
        lambda tx: tx.set_value(value, 1),
        lambda tx: tx.delete_value(value),
        lambda tx: tx.append_list(items, 1),
        lambda tx: tx.delete_list(items),
    ):
        with pytest.raises(Rejected, match="writes no working value"):
            await harness.command(write)
    read: list[object] = []

    async def look(tx: Command) -> None:
        read.append(await tx.get_value(value, None))
        read.append(len(await tx.read_list(items, ListPage(limit=5))))
        tx.retire_scope(SCOPE)

    await harness.command(look)
    assert read == [{"n": 1}, 1]
    read.clear()
    await harness.command(look)
    assert read == [None, 0]


@pytest.mark.spec("LN-18", "LN-22")
async def test_a_session_command_makes_a_conversation_with_its_first_values(
    engine: Engine,
) -> None:
    harness = await engine.open()
    made: list[Seq] = []

    def build(tx: Command) -> None:
        conv_id = tx.insert_conversation()
        made.append(conv_id)
        tx.insert_entry(conv_id, "user", EntryMeta(), hello())
        tx.set_value(PLAN.bind(conv_id), "child")
        tx.append_list(STEPS.bind(conv_id), "first")
        tx.set_value(NOTE, int(conv_id))

    before = len(await engine.commits())
    await harness.command(build)
    assert len(await engine.commits()) == before + 1
    child = await harness.conversation(made[0])
    assert child is not None
    assert await child.get_value(PLAN, None) == "child"
    assert len(await child.read_list(STEPS, ListPage(limit=5))) == 1
    with pytest.raises(Rejected, match="bind it"):
        await harness.command(lambda tx: _drop(tx.set_value(PLAN, 1)))


@pytest.mark.spec("LN-18")
async def test_a_conversation_command_fills_in_its_conversation(engine: Engine) -> None:
    root = await engine.root()
    child = await _second(engine)

    async def build(tx: Command) -> None:
        steps = len(await tx.read_list(STEPS, ListPage(limit=5)))
        tx.set_value(PLAN, await tx.get_value(PLAN, 0) + 1)
        tx.append_list(STEPS, steps)

    await child.command(build)
    await child.command(build)
    assert await child.get_value(PLAN, None) == 2
    assert [one.value_json for one in await child.read_list(STEPS, ListPage(limit=5))] == [
        Raw(b"0"),
        Raw(b"1"),
    ]
    assert await root.get_value(PLAN, "absent") == "absent"
    await child.command(lambda tx: tx.delete_value(PLAN))
    assert await child.get_value(PLAN, "absent") == "absent"


@pytest.mark.spec("LN-19", "VL-09")
async def test_a_conversation_list_cannot_be_deleted_or_changed(engine: Engine) -> None:
    root = await engine.root()
    await root.append_list(STEPS, "kept")
    head = engine.storage.last_seq
    with pytest.raises(Rejected, match="keeps its history"):
        await engine.line.submit(lambda tx: tx.delete_list(STEPS.bind(root.id)))
    for write in (
        lambda tx: tx.set_value(STEPS.bind(root.id), "changed"),
        lambda tx: tx.delete_value(STEPS.bind(root.id)),
        lambda tx: tx.append_list(PLAN.bind(root.id), "wrong kind"),
    ):
        with pytest.raises(Rejected) as caught:
            await engine.line.submit(write)
        assert caught.value.code == "invariant"
    assert engine.storage.last_seq == head
    page = await root.read_list(STEPS, ListPage(limit=5))
    assert [one.value_json for one in page] == [Raw(b'"kept"')]


@pytest.mark.spec("LN-20")
@pytest.mark.parametrize("in_a_task", [False, True])
async def test_a_command_inside_a_command_is_refused(
    memory_engine: Engine, *, in_a_task: bool
) -> None:
    root = await memory_engine.root()
    codes: list[str] = []

    async def inner() -> None:
        close = memory_engine.harness.close()
        aside = (root.set_value(PLAN, 1), root.accept("x"), root.drive(), root.abort(), close)
        for opening in aside:
            try:
                await opening
            except Rejected as error:
                codes.append(error.code)

    async def build(tx: Command) -> None:
        tx.set_value(NOTE, 1)
        if in_a_task:
            await asyncio.wait_for(inner(), 5)
        else:
            await inner()

    async with asyncio.timeout(5):
        await memory_engine.line.submit(build)
    assert codes == ["nested_command"] * 5
    assert await memory_engine.harness.get_value(NOTE, None) == 1


@pytest.mark.spec("LN-21")
async def test_changing_an_object_after_handing_it_over_changes_nothing(engine: Engine) -> None:
    root = await engine.root()
    value: dict[str, list[int]] = {"numbers": [1]}
    payload: dict[str, list[object]] = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "as given"}]}]
    }
    meta: dict[str, int] = {"bytes": 1}
    ids: list[Seq] = []

    def build(tx: Command) -> None:
        tx.set_value(PLAN.bind(root.id), value)
        tx.append_list(LOG, value)
        ids.append(tx.insert_entry(root.id, "user", meta, payload))
        value["numbers"].append(2)
        payload["messages"].clear()
        meta["bytes"] = 2

    await engine.line.submit(build)
    read: Any = await root.get_value(PLAN, None)
    assert read == {"numbers": [1]}
    read["numbers"].append(3)
    assert await root.get_value(PLAN, None) == {"numbers": [1]}
    entry = await root.entry(ids[0])
    assert entry is not None
    assert entry.meta.bytes == 1
    assert entry.payload["messages"][0]["content"][0]["text"] == "as given"


@pytest.mark.spec("LN-23")
async def test_a_snapshot_of_several_reads_sees_no_commit_in_between(engine: Engine) -> None:
    root = await engine.root()
    gate = Gate()

    async def read() -> tuple[object, object]:
        first = await root.get_value(PLAN, 0)
        await gate()
        return first, await root.get_value(PLAN, 0)

    taking = engine.begin(engine.line.snapshot(read))
    await gate.reached.wait()
    setting = engine.begin(root.set_value(PLAN, 1))
    await asyncio.wait({setting}, timeout=0)
    gate.open()
    assert await taking == (0, 0)
    await setting
    assert await root.get_value(PLAN, 0) == 1


@pytest.mark.spec("VL-10")
async def test_read_modify_write_in_a_command_loses_no_update(engine: Engine) -> None:
    root = await engine.root()

    async def add(tx: Command) -> None:
        at = PLAN.bind(root.id)
        tx.set_value(at, await tx.get_value(at, 0) + 1)

    before = len(await engine.commits())
    await asyncio.gather(*(root.command(add) for _ in range(20)))
    assert await root.get_value(PLAN, 0) == 20
    assert len(await engine.commits()) == before + 20
    await root.set_value(PLAN, 0)
    await root.append_list(STEPS, 0)
    await root.delete_value(PLAN)
    writes = [len(commit.writes) for commit in (await engine.commits())[-3:]]
    assert writes == [1, 1, 1]


async def test_a_cancelled_caller_neither_loses_nor_splits_its_command(engine: Engine) -> None:
    root = await engine.root()
    gate = engine.storage.hold(
        lambda commit: any(isinstance(write, SetValue) for write in commit.writes)
    )
    setting = engine.begin(root.set_value(PLAN, 1))
    await gate.reached.wait()
    setting.cancel()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await setting

    async def add(tx: Command) -> None:
        tx.set_value(PLAN, await tx.get_value(PLAN, 0) + 1)

    await root.command(add)
    assert await root.get_value(PLAN, 0) == 2


async def test_the_generation_table_names_every_status() -> None:
    assert set(Generation.facts.transitions) <= set(Generation.facts.roles)


async def _second(engine: Engine) -> Conversation:
    made: list[Seq] = []
    await engine.line.submit(lambda tx: made.append(tx.insert_conversation()))
    found = await engine.harness.conversation(made[0])
    assert found is not None
    return found


def _drop(_: object) -> None:
    """Turn a call with an answer into a step of a command."""


async def test_a_builder_may_answer_what_it_likes(memory_engine: Engine) -> None:
    harness = await memory_engine.open()
    scope = WorkingScope("loose")
    assert await harness.working_command(scope, lambda tx: tx.set_value(scope.value("a"), 1))
    assert await harness.command(lambda tx: tx.retire_scope(scope))
