"""A watch: base, batches, deltas, signals; nothing lost, nothing twice (WT)."""

import gc
import weakref
from typing import Any

import pytest
from msgspec import UNSET

from perdure.drive.outcomes import DriveOutcome
from perdure.errors import Faulted, Rejected
from perdure.harness.watching import QUEUE_BATCHES_MAX
from perdure.kinds.secrets import Secrets
from perdure.line.command import Command
from perdure.providers.script import END, Failure, call, say
from perdure.records.addresses import MODEL, SessionValue
from perdure.records.codec import decode, decode_json
from perdure.records.entries import EntryMeta
from perdure.records.messages import TextPart, UserMessage, UserPayload
from perdure.records.models import parse_model
from perdure.records.scratch import GenerationScratch
from perdure.records.seqs import Seq
from perdure.records.watch import (
    ClosedSignal,
    FaultSignal,
    HandlerError,
    Overflow,
    Quiescent,
    WatchBase,
    WatchDelta,
    WatchInput,
    wire,
)
from perdure.records.writes import RetireScope, SettleTask
from tests.engine import Engine, Gate, Probe, task_moves
from tests.unit.harness.watched import commits, fork, fresh, stored, viewed, waiting
from tests.unit.kinds.turns import USED

NOTE = SessionValue[Any]("notes")


@pytest.mark.spec("WT-01", "WT-10")
async def test_every_commit_after_the_base_comes_once_and_none_before(engine: Engine) -> None:
    tool = Probe("look")
    root = await engine.root([say("one"), say(call("look")), say("two")], tools=[tool])
    await root.prompt("first")
    async with root.watch() as watch:
        before = len(engine.storage.commits_made)
        await root.prompt("second")
        events = await waiting(watch)
    base = events[0]
    assert isinstance(base, WatchBase)
    later = [one for one in engine.storage.commits_made[before:] if one.time_ms]
    assert base.as_of < later[0].first_seq
    assert [(one.first_seq, one.last_seq) for one in commits(events)] == [
        (one.first_seq, one.last_seq) for one in later
    ]
    assert viewed(events).base() == await fresh(engine, root.id)


@pytest.mark.spec("WT-02", "QU-16")
async def test_the_base_holds_state_newest_entries_live_tasks_scratch_and_queue(
    engine: Engine,
) -> None:
    gate = Gate()

    async def body(_: Any, ctx: Any) -> object:
        ctx.out.write("half")
        await ctx.out.progress({"done": 1})
        await gate()
        return None

    tool = Probe("work", body=body)
    root = await engine.root([say(call("work")), say("ok"), say("more")], tools=[tool])
    await root.accept("go")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await stored(root, "output")
    await root.steer("and this")
    async with root.watch(limit=2, values=[MODEL, NOTE]) as watch:
        base = await anext(watch)
    assert isinstance(base, WatchBase)
    state = await root.state()
    assert base.conversation == state
    assert [one.id for one in base.entries] == [one.id for one in await root.entries()][-2:]
    assert base.entries[-1].payload["messages"]
    assert [one.kind for one in base.tasks] == ["tool", "post_tools"]
    live = base.tasks[0].id
    assert decode_json(base.scratch[live]) == {"output": "half", "progress": {"done": 1}}
    assert [(one.kind, one.mode, said(one)) for one in base.inbox] == [
        ("steer", "steer", "and this")
    ]
    assert [(one.namespace, one.conv_id) for one in base.values] == [
        ("perdure.model", root.id),
        ("notes", NOTE.address().conv_id),
    ]
    model = base.values[0].value_json
    assert model is not UNSET
    assert decode_json(model) == {"provider": "scripted", "modelId": "test"}
    gate.open()
    await driving


def user(text: str) -> UserPayload:
    return UserPayload(messages=(UserMessage(content=(TextPart(text=text),), timestamp=1),))


def said(item: WatchInput) -> str:
    part = item.messages[0].content[0]
    assert isinstance(part, TextPart)
    return part.text


@pytest.mark.spec("WT-03", "WT-04", "WT-05", "IV-13")
async def test_a_batch_is_one_commit_with_the_seq_of_each_write(engine: Engine) -> None:
    tool = Probe("look")
    root = await engine.root([say(call("look"), usage=USED), say("done")], tools=[tool])
    async with root.watch() as watch:
        await root.prompt("go")
        await root.set_value(MODEL, parse_model("scripted:test"))
        await root.configure(label="mine")
        await root.reset_context(())
        events = await waiting(watch)
    made = {one.first_seq: one for one in engine.storage.commits_made if one.time_ms}
    kinds: set[str] = set()
    for event in commits(events):
        commit = made[event.first_seq]
        assert [one.seq for one in event.writes] == [one.seq for one in commit.writes]
        assert event.time_ms == commit.time_ms
        kinds |= {str(one.change.__struct_config__.tag) for one in event.writes}
        settled = {one.change.task_id for one in event.writes if isinstance(one.change, SettleTask)}
        retired = {
            one.change.working_scope for one in event.writes if isinstance(one.change, RetireScope)
        }
        assert retired == {str(task) for task in settled}
    assert kinds == {
        "ins_entry", "ins_task", "set", "settle", "set_conv", "ctx_append", "ctx_reset",
        "value_set", "list_append", "scope_retire",
    }  # fmt: skip


@pytest.mark.spec("WT-03", "WT-16")
async def test_a_watch_gets_its_own_conversations_alone_and_the_session_all(
    engine: Engine,
) -> None:
    root = await engine.root([])
    other = await fork(engine)
    near, whole = root.watch(), engine.harness.watch()
    await near.__aenter__()
    await whole.__aenter__()
    seqs: list[Seq] = []

    def build(tx: Command) -> None:
        seqs.append(tx.insert_entry(root.id, "user", EntryMeta(), user("near")))
        seqs.append(tx.insert_entry(other.id, "user", EntryMeta(), user("far")))
        tx.set_value(NOTE, "shared")

    await engine.harness.command(build)
    await other.append_message("only far")
    (one,) = commits((await waiting(near))[1:])
    assert [w.change.__struct_config__.tag for w in one.writes] == [
        "ins_entry", "ctx_append", "value_set",
    ]  # fmt: skip
    assert b"far" not in wire(one)
    assert len(commits((await waiting(whole))[1:])) == 2
    await near.close()
    await whole.close()


@pytest.mark.spec("WT-06", "WT-02", "PV-13")
async def test_frames_and_progress_come_as_deltas_after_their_working_commit(
    engine: Engine,
) -> None:
    gate = Gate()
    root = await engine.root([say("Hello", gates={2: gate})])
    await root.accept("hi")
    async with root.watch() as watch:
        driving = engine.begin(root.drive())
        events: list[Any] = []
        async for event in watch:
            events.append(event)
            if isinstance(event, WatchDelta):
                break
        assert any(not one.time_ms for one in engine.storage.commits_made)
        base = await fresh(engine, root.id)
        (task,) = base.tasks
        assert events[-1].task_id == task.id
        assert decode(base.scratch[task.id], GenerationScratch).parts[0].text == "Hello"
        assert viewed(events).base() == base
        gate.open()
        await driving
        rest = await waiting(watch)
    assert viewed([*events, *rest]).base() == await fresh(engine, root.id)
    assert not (await fresh(engine, root.id)).scratch


@pytest.mark.spec("WT-01", "WT-06", "RC-15")
async def test_a_base_read_while_a_working_commit_is_under_way_shows_its_text_once(
    engine: Engine,
) -> None:
    gate = Gate()
    root = await engine.root([say("Hello", gates={2: gate})])
    await root.accept("hi")
    held = engine.storage.hold(lambda one: not one.time_ms, when="after")
    driving = engine.begin(root.drive())
    await held.reached.wait()
    watch = root.watch()
    begun = engine.begin(watch.__aenter__())
    held.open()
    await begun
    gate.open()
    await driving
    events = await waiting(watch)
    await watch.close()
    assert isinstance(events[0], WatchBase)
    (reply,) = events[0].scratch.values()
    assert decode(reply, GenerationScratch).parts[0].text == "Hello"
    assert not [one for one in events if isinstance(one, WatchDelta)]


@pytest.mark.spec("WT-06")
async def test_a_retry_resets_what_was_streamed(engine: Engine) -> None:
    failing = say("half", failure=Failure(code="overloaded", at=END), gates={2: (gate := Gate())})
    root = await engine.root([failing, say("whole")])
    await root.accept("hi")
    async with root.watch() as watch:
        driving = engine.begin(root.drive(wait_timers=False))
        events: list[Any] = [await anext(watch)]
        while not isinstance(events[-1], WatchDelta):
            events.append(await anext(watch))
        gate.open()
        assert (await driving).outcome is DriveOutcome.SUSPENDED
        events += await waiting(watch)
        assert [one.kind for one in events if isinstance(one, WatchDelta)] == ["frame", "reset"]
        assert viewed(events).base() == await fresh(engine, root.id)


@pytest.mark.spec("WT-07")
async def test_a_conversation_that_finished_its_work_is_quiescent(engine: Engine) -> None:
    root = await engine.root([say("ok")])
    async with root.watch() as watch:
        await root.prompt("hi")
        events = await waiting(watch)
    assert isinstance(events[-1], Quiescent)
    assert events[-1].conv_id == root.id
    assert sum(isinstance(one, Quiescent) for one in events) == 1


@pytest.mark.spec("WT-07", "FT-06")
async def test_a_fault_is_the_last_item_of_every_watch(engine: Engine) -> None:
    root = await engine.root([say("ok")])
    await root.accept("hi")
    watches = [root.watch(), engine.harness.watch()]
    for one in watches:
        await one.__aenter__()
    engine.storage.fail(task_moves("streaming"), OSError("disk full"))
    with pytest.raises(Faulted):
        await root.drive()
    for one in watches:
        events = [event async for event in one]
        assert isinstance(events[-1], FaultSignal)
        assert "disk full" in events[-1].message
    with pytest.raises(Faulted):
        await root.watch().__aenter__()


@pytest.mark.spec("WT-07")
async def test_closing_ends_a_watch_with_closed(engine: Engine) -> None:
    root = await engine.root([])
    watch = root.watch()
    await watch.__aenter__()
    await root.append_message("note")
    await engine.close()
    events = [event async for event in watch]
    assert isinstance(events[-1], ClosedSignal)
    assert len(commits(events)) == 1


@pytest.mark.spec("WT-07", "LN-13", "ER-06")
async def test_a_listener_that_throws_is_told_as_handler_error(engine: Engine) -> None:
    root = await engine.root([], secrets=Secrets({"KEY": "very-secret-text"}))

    def broken(_: object) -> None:
        raise ValueError("very-secret-text is broken")

    async with root.watch() as watch:
        stop = engine.harness.on_commit(broken)
        await root.append_message("note")
        stop()
        events = await waiting(watch)
    (told,) = [one for one in events if isinstance(one, HandlerError)]
    assert told.message == "ValueError: [secret KEY] is broken"
    assert len(commits(events)) == 1


@pytest.mark.spec("WT-07")
async def test_a_watcher_that_does_not_read_is_dropped_and_holds_nothing(engine: Engine) -> None:
    root = await engine.root([])
    slow, quick = root.watch(), root.watch()
    await slow.__aenter__()
    await quick.__aenter__()
    await anext(quick)
    for number in range(QUEUE_BATCHES_MAX + 1):
        await engine.harness.set_value(NOTE, number)
        await anext(quick)
    assert len(engine.harness._core.watches) == 1
    (told,) = engine.errors
    assert "of conversation 1 was dropped" in str(told)
    queue: Any = slow._queue
    assert queue.held == 1
    assert [event async for event in slow] == [Overflow()]
    await quick.close()


@pytest.mark.spec("WT-09")
async def test_deleting_the_conversation_ends_its_watch(engine: Engine) -> None:
    await engine.root([])
    other = await fork(engine)
    watch = other.watch()
    await watch.__aenter__()
    await engine.harness.command(lambda tx: tx.delete_conversation(other.id))
    events = [event async for event in watch]
    assert len(events) == 2
    assert len(engine.harness._core.watches) == 0
    with pytest.raises(Rejected) as refused:
        await other.watch().__aenter__()
    assert refused.value.code == "deleted"


@pytest.mark.spec("WT-15", "WT-14")
async def test_a_closed_watch_gets_nothing_and_nobody_listens(engine: Engine) -> None:
    root = await engine.root([])
    watch = root.watch()
    async with watch:
        await root.append_message("one")
        await root.append_message("two")
        events = await waiting(watch)
        seqs = [one.last_seq for one in commits(events)]
        assert seqs == sorted(seqs)
        await root.append_message("three")
    assert [event async for event in watch] == []
    assert len(engine.harness._core.watches) == 0
    left = weakref.ref(root.watch())
    gc.collect()
    assert left() is None


@pytest.mark.spec("HK-13", "WT-14")
async def test_listeners_may_not_issue_commands(engine: Engine) -> None:
    root = await engine.root([say("ok")])
    refusals: list[str] = []

    def listener(_: object) -> None:
        step = engine.line.submit(lambda tx: None)
        with pytest.raises(Rejected) as refused:
            step.send(None)
        refusals.append(refused.value.code)

    stop = engine.harness.on_commit(listener)
    await root.append_message("note")
    stop()
    assert refusals == ["nested_command"]
