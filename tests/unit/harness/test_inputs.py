"""What becomes of an input: one test a row of its table, most with a kill at the commit (D01)."""

from collections.abc import Mapping
from typing import Any

import pytest

from perdure.errors import Closed, Faulted, Rejected
from perdure.harness.conversation import Conversation
from perdure.ports import ToolContext
from perdure.providers.script import END, Deferred, call, fail, say
from perdure.records.codec import encode
from perdure.records.inputs import InputResult
from perdure.records.messages import (
    AssistantMessage,
    TextPart,
    ToolCallPart,
    UserMessage,
)
from perdure.records.models import parse_model
from perdure.records.seqs import Seq
from perdure.records.writes import (
    Commit,
    InsertEntry,
    InsertTask,
    PatchConversation,
    SettleTask,
)
from tests.engine import Engine, Gate, Match, Probe, is_main, task_moves
from tests.unit.harness.holders import Holders, records_in

DISK = OSError("power cut")


async def ended(conv: Conversation, input_id: Seq) -> tuple[str, str]:
    result = await conv.result(input_id)
    return result.state, result.text


def decides(state: str) -> Match:
    """Match the commit that gives some input this state."""
    return lambda commit: any(one.state == state for one in records_in(commit).values())


async def cut(engine: Engine, conv: Conversation, match: Match, when: Any) -> None:
    """Drive into a power cut at the matching commit, before or after it is durable."""
    engine.storage.fail(match, DISK, when=when)
    with pytest.raises(Faulted):
        await conv.drive()
    await engine.kill()


def kinds_of(commit: Commit) -> set[type]:
    return {type(write) for write in commit.writes}


async def last_with(engine: Engine, match: Match) -> Commit:
    return [commit for commit in await engine.commits() if match(commit)][-1]


WHEN = pytest.mark.parametrize("when", ["before", "after"])


@pytest.mark.spec("QU-01", "QU-13", "QU-17")
@WHEN
async def test_idle_acceptance_opens_one_input_and_its_generation(
    engine: Engine, when: Any
) -> None:
    root = await engine.root([say("done")])
    engine.storage.fail(is_main, DISK, when=when)
    with pytest.raises(Faulted):
        await root.accept("hello")
    await engine.kill()
    root = await engine.root([say("done")])
    entries = await root.entries()
    if when == "before":
        assert not entries
        assert not await root.tasks()
        return
    input_id = entries[0].id
    commit = await last_with(engine, decides("open"))
    record = records_in(commit)[input_id]
    assert (record.mode, record.entry, record.conv_id) == ("prompt", input_id, root.id)
    assert {InsertEntry, InsertTask} <= kinds_of(commit)
    Holders(engine).records[input_id] = record
    await root.drive()
    assert await ended(root, input_id) == ("answered", "done")


@pytest.mark.spec("QU-01", "QU-13", "QU-17", "QU-18", "ID-08")
@WHEN
async def test_input_while_busy_waits_and_gets_its_own_answer(engine: Engine, when: Any) -> None:
    gate = Gate()
    root = await engine.root([say("for A", gates={END: gate}), say("for B")])
    first = await root.accept("A")
    tasks = len(await root.tasks())
    second = await root.accept("B")
    assert len(await root.tasks()) == tasks
    queued = await root.result(second.input_id)
    assert (queued.state, queued.mode, queued.final, queued.text) == ("queued", "prompt", False, "")
    commit = await last_with(engine, decides("queued"))
    assert {InsertEntry, PatchConversation} <= kinds_of(commit)
    assert not {InsertTask} & kinds_of(commit)
    item = (await root.state()).inbox[0]
    assert (item.id, item.kind, item.entry) == (second.input_id, "followUp", second.input_id)
    gate.open()
    await cut(engine, root, decides("answered"), when)

    root = await engine.root([say("for A"), say("for B")] if when == "before" else [say("for B")])
    assert (await root.result(second.input_id)).state == ("queued" if when == "before" else "open")
    assert (await root.result(first.input_id)).state == ("open" if when == "before" else "answered")
    driving = engine.begin(root.drive())
    if when == "before":
        await engine.clock.until_asleep()
        engine.clock.advance(60_000)
    await driving
    assert await ended(root, first.input_id) == ("answered", "for A")
    assert await ended(root, second.input_id) == ("answered", "for B")
    commit = next(one for one in await engine.commits() if decides("answered")(one))
    states = {seq: record.state for seq, record in records_in(commit).items()}
    assert states == {first.input_id: "answered", second.input_id: "open"}
    assert {SettleTask, InsertEntry, PatchConversation, InsertTask} <= kinds_of(commit)


@pytest.mark.spec("QU-13", "QU-15")
async def test_a_placed_input_is_a_fresh_entry_with_the_admitted_payload(engine: Engine) -> None:
    root = await engine.root([say("one"), say("two")])
    await root.accept("A")
    queued = await root.accept("B")
    await root.drive()
    kinds = [(entry.kind, entry.ref) for entry in await root.entries()]
    assert [kind for kind, _ in kinds] == ["user", "input", "assistant", "user", "assistant"]
    assert kinds[3][1] == queued.input_id
    result = await root.result(queued.input_id)
    assert result.entry is not None
    assert result.entry.id > queued.input_id
    assert result.entry.payload["messages"][0]["content"][0]["text"] == "B"
    writes = [
        write
        for commit in await engine.commits()
        for write in commit.writes
        if isinstance(write, InsertEntry) and write.payload_json
    ]
    assert sum(b'"B"' in encode(write) for write in writes) == 1
    context = list((await root.state()).context)
    assert queued.input_id not in context
    assert context == sorted(context)


@pytest.mark.spec("QU-17")
@WHEN
async def test_a_generation_with_calls_hands_its_inputs_to_the_join(
    engine: Engine, when: Any
) -> None:
    root = await engine.root([say(call("look"))], tools=[Probe("look", replay="safe")])
    accepted = await root.accept("hello")
    await cut(engine, root, task_moves("planned"), when)
    root = await engine.root(
        [say(call("look")), say("done")] if when == "before" else [say("done")],
        tools=[Probe("look", replay="safe")],
    )
    holders = Holders(engine)
    holders.records[accepted.input_id] = records_in(await last_with(engine, decides("open")))[
        accepted.input_id
    ]
    assert (await root.result(accepted.input_id)).state == "open"
    driving = engine.begin(root.drive())
    if when == "before":
        await engine.clock.until_asleep()
        engine.clock.advance(60_000)
    await driving
    assert await ended(root, accepted.input_id) == ("answered", "done")
    assert not engine.errors
    assert holders.boundaries >= 3


@pytest.mark.spec("QU-05", "QU-17", "QU-18")
@WHEN
async def test_steering_joins_the_group_and_shares_its_answer(engine: Engine, when: Any) -> None:
    gate = Gate()
    tools = [Probe("look", replay="safe", gate=gate)]
    root = await engine.root([say(call("look"))], tools=tools)
    first = await root.accept("A")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    steered = await root.steer("B")
    later = await root.follow_up("C")
    engine.storage.fail(
        lambda commit: any(
            isinstance(write, InsertTask) and write.kind == "generation" for write in commit.writes
        ),
        DISK,
        when=when,
    )
    gate.open()
    with pytest.raises(Faulted):
        await driving
    await engine.kill()
    root = await engine.root([say("for A and B"), say("for C")], tools=tools)
    assert (await root.result(steered.input_id)).state == ("queued" if when == "before" else "open")
    await root.drive()
    assert await ended(root, first.input_id) == ("answered", "for A and B")
    assert await ended(root, steered.input_id) == ("answered", "for A and B")
    assert await ended(root, later.input_id) == ("answered", "for C")
    one, two = await root.result(first.input_id), await root.result(steered.input_id)
    assert one.answer == two.answer


@pytest.mark.spec("QU-17", "QU-12")
@WHEN
async def test_a_run_a_tool_ends_stops_its_inputs(engine: Engine, when: Any) -> None:
    async def finish(_: Mapping[str, Any], ctx: ToolContext) -> object:
        ctx.out.write("finished")
        ctx.out.terminate()
        return None

    tools = [Probe("finish", body=finish)]
    root = await engine.root([say("the end", call("finish"))], tools=tools)
    first = await root.accept("A")
    queued = await root.accept("B")
    write = await root.append_message("context only")
    await cut(engine, root, decides("stopped"), when)
    root = await engine.root([], tools=tools)
    assert (await root.result(first.input_id)).state == ("open" if when == "before" else "stopped")
    await root.drive()
    result = await root.result(first.input_id)
    assert (result.state, result.text, result.final) == ("stopped", "the end", True)
    assistant = next(one for one in await root.entries() if one.kind == "assistant")
    assert result.answer == assistant.id
    assert (await root.result(queued.input_id)).state == "queued"
    assert (await root.result(write.input_id)).state == "placed"
    assert [item.id for item in (await root.state()).inbox] == [queued.input_id]


@pytest.mark.spec("QU-17")
async def test_the_group_survives_a_handoff(engine: Engine) -> None:
    async def hand_off(_: Mapping[str, Any], ctx: ToolContext) -> object:
        ctx.out.handoff("start from here")
        return None

    root = await engine.root(
        [say(call("hand_off")), say("fresh")], tools=[Probe("hand_off", body=hand_off)]
    )
    holders = Holders(engine)
    result = await root.prompt("hello")
    assert (result.state, result.text) == ("answered", "fresh")
    assert not engine.errors
    assert holders.boundaries
    assert len(engine.models.requests[-1].messages) == 1


@pytest.mark.spec("QU-17", "QU-12", "QU-18")
@WHEN
async def test_a_failed_generation_fails_its_inputs_and_keeps_the_queue(
    engine: Engine, when: Any
) -> None:
    root = await engine.root([fail("auth", "half", message="no key")])
    first = await root.accept("A")
    queued = await root.accept("B")
    run = await root.next_run("C")
    write = await root.append_message("context")
    await cut(engine, root, decides("failed"), when)
    root = await engine.root([fail("auth", "half", message="no key")])
    if when == "before":
        assert (await root.result(first.input_id)).state == "open"
        driving = engine.begin(root.drive())
        await engine.clock.until_asleep()
        engine.clock.advance(60_000)
        await driving
    result = await root.result(first.input_id)
    assert result.state == "failed"
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("auth", "no key")
    assert result.message is None
    assert result.partial is not None
    assert result.partial.text == "half"
    states = [(await root.result(one.input_id)).state for one in (queued, run, write)]
    assert states == ["queued", "queued", "placed"]
    assert not await root.tasks(live=True)


@pytest.mark.spec("QU-17", "QU-07", "CN-02")
@WHEN
async def test_an_abort_aborts_the_group_and_withdraws_the_queue(engine: Engine, when: Any) -> None:
    gate = Gate()
    root = await engine.root([say("half an answer " * 500, chunk=500, gates={END: gate})])
    first = await root.accept("A")
    waiting = {
        "follow_up": (await root.follow_up("B")).input_id,
        "steer": (await root.steer("C")).input_id,
        "next_run": (await root.next_run("D")).input_id,
        "write": (await root.append_message("E")).input_id,
        "prompt": (await root.accept("F")).input_id,
    }
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    report = await root.abort()
    assert [one.input_id for one in report.drained] == [
        waiting["follow_up"], waiting["steer"], waiting["prompt"],
    ]  # fmt: skip
    assert [one.messages[0].content for one in report.drained] == [
        (TextPart(text=text),) for text in ("B", "C", "F")
    ]
    assert [one.mode for one in report.drained] == ["followUp", "steer", "prompt"]
    states = {name: (await root.result(seq)).state for name, seq in waiting.items()}
    assert states == {
        "follow_up": "withdrawn", "steer": "withdrawn", "prompt": "withdrawn",
        "next_run": "queued", "write": "queued",
    }  # fmt: skip
    withdrawn = await root.result(waiting["steer"])
    assert withdrawn.withdrawn_by == "abort"
    assert (await root.result(first.input_id)).state == "open"
    engine.storage.fail(decides("aborted"), DISK, when=when)
    with pytest.raises(Faulted):
        await driving
    await engine.kill()
    root = await engine.root()
    assert (await root.result(first.input_id)).state == ("open" if when == "before" else "aborted")
    await root.drive()
    result = await root.result(first.input_id)
    assert (result.state, result.message) == ("aborted", None)
    kept = (await root.state()).inbox
    assert [item.id for item in kept] == [waiting["next_run"], waiting["write"]]


@pytest.mark.spec("QU-17", "CN-06")
async def test_an_aborted_exchange_aborts_its_inputs_at_the_join(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say(call("wait"))], tools=[Probe("wait", gate=gate)])
    holders = Holders(engine)
    accepted = await root.accept("hello")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    await driving
    assert await ended(root, accepted.input_id) == ("aborted", "")
    assert holders.boundaries
    assert not engine.errors
    assert not await root.tasks(live=True)


@pytest.mark.spec("QU-17", "GN-29")
async def test_retry_and_deferral_leave_the_group_on_its_task(engine: Engine) -> None:
    root = await engine.root(
        [fail("overloaded"), say("late", deferred=Deferred(polls=1, poll_after_ms=1_000))]
    )
    holders = Holders(engine)
    accepted = await root.accept("hello")
    driving = engine.begin(root.drive(poll_deferred=True))
    for _ in range(3):
        await engine.clock.until_asleep()
        assert (await root.result(accepted.input_id)).state == "open"
        engine.clock.advance(120_000)
    await driving
    assert await ended(root, accepted.input_id) == ("answered", "late")
    assert len(await root.tasks()) == 1
    assert holders.boundaries
    assert not engine.errors


@pytest.mark.spec("QU-14", "QU-17")
@WHEN
async def test_a_cancelled_input_is_withdrawn_and_never_placed(engine: Engine, when: Any) -> None:
    root = await engine.root([say("for A")])
    await root.accept("A")
    queued = await root.accept("secret B")
    engine.storage.fail(is_main, DISK, when=when)
    with pytest.raises(Faulted):
        await root.cancel_queued(queued.input_id)
    await engine.kill()
    root = await engine.root([say("for A"), say("again")])
    assert await root.cancel_queued(queued.input_id) == "cancelled"
    head = engine.storage.last_seq
    assert await root.cancel_queued(queued.input_id) == "cancelled"
    assert engine.storage.last_seq == head
    await root.drive()
    await root.prompt("later")
    result = await root.result(queued.input_id)
    assert (result.state, result.withdrawn_by, result.entry) == ("withdrawn", "cancel", None)
    sent = repr([list(one.messages) for one in engine.models.requests])
    assert "secret" not in sent
    assert await root.cancel_queued(Seq(999)) == "not_found"
    current = await root.accept("open")
    head = engine.storage.last_seq
    assert await root.cancel_queued(current.input_id) == "already_consumed"
    assert engine.storage.last_seq == head
    first = (await root.entries())[0].id
    assert await root.cancel_queued(first) == "already_consumed"


@pytest.mark.spec("QU-17", "QU-20", "CN-07")
@pytest.mark.parametrize("fails", [True, False])
async def test_what_was_left_behind_is_taken_up(engine: Engine, *, fails: bool) -> None:
    """By a flush after a failure, by the last settlement after an abort (D38)."""
    root = await engine.root([fail("auth"), say("for B and C")] if fails else [say("for B and C")])
    holders = Holders(engine)
    first = await root.accept("A")
    if not fails:
        await root.abort()
    queued = [await root.accept("B"), await root.accept("C")]
    assert [task.kind for task in await root.tasks()] == ["generation"]
    await root.drive()
    assert (await root.result(first.input_id)).state == ("failed" if fails else "aborted")
    if fails:
        assert await root.flush() == tuple(one.input_id for one in queued)
        live = await root.tasks(live=True)
        assert [task.kind for task in live] == ["generation"]
        await root.drive()
    for one in queued:
        assert await ended(root, one.input_id) == ("answered", "for B and C")
    assert holders.boundaries
    assert not engine.errors


@pytest.mark.spec("QU-18", "ER-08", "ID-08")
async def test_prompt_answers_for_its_own_input_only(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root(
        [say("for A", gates={END: gate}), say("for B"), fail("auth"), say("unreached")]
    )
    first = engine.begin(root.prompt("A"))
    await gate.reached.wait()
    second = engine.begin(root.prompt("B"))
    await engine.storage.until(decides("queued"))
    gate.open()
    one, two = await first, await second
    assert (one.text, two.text) == ("for A", "for B")
    assert isinstance(one.message, AssistantMessage)
    failed = await root.prompt("C")
    assert (failed.state, failed.message, failed.text) == ("failed", None, "")


@pytest.mark.spec("ER-08", "ER-09")
async def test_result_and_wait_observe_only(engine: Engine) -> None:
    root = await engine.root([say("done")])
    accepted = await root.accept("hello")
    head = engine.storage.last_seq
    waiting = engine.begin(root.wait(accepted.input_id))
    result = await root.result(accepted.input_id)
    assert isinstance(result, InputResult)
    assert (result.input_id, result.conv_id, result.state) == (
        accepted.input_id, root.id, "open",
    )  # fmt: skip
    assert engine.storage.last_seq == head
    assert not engine.models.requests
    for wrong, code in ((Seq(999), "not_found"),):
        with pytest.raises(Rejected) as caught:
            await root.result(wrong)
        assert caught.value.code == code
    await root.drive()
    assert (await waiting).text == "done"
    other = engine.begin(root.wait(accepted.input_id))
    assert (await other).final


async def test_a_wait_ends_with_the_session(engine: Engine) -> None:
    root = await engine.root([say("done")])
    accepted = await root.accept("hello")
    waits = [engine.begin(root.wait(accepted.input_id)), engine.begin(root.wait_for_idle())]
    await engine.close()
    for waiting in waits:
        with pytest.raises(Closed):
            await waiting


@pytest.mark.spec("QU-19")
async def test_inputs_come_in_three_forms_and_no_other(engine: Engine) -> None:
    root = await engine.root([say("ok")] * 8)
    text = UserMessage(content=(TextPart(text=" not trimmed \n"),))
    other = UserMessage(content=(TextPart(text="second"),), timestamp=7)
    engine.clock.set_now_ms(1_000)
    for given, wanted in (
        (" not trimmed \n", [" not trimmed \n"]),
        (text, [" not trimmed \n"]),
        ([text, other], [" not trimmed \n", "second"]),
    ):
        await root.prompt(given)
        user = [one for one in await root.entries() if one.kind == "user"][-1]
        messages = user.payload["messages"]
        assert [one["content"][0]["text"] for one in messages] == wanted
        assert messages[0]["timestamp"] == 1_000
        sent = list(engine.models.requests[-1].messages)[-len(wanted) :]
        assert [
            part.text for one in sent for part in one.content if isinstance(part, TextPart)
        ] == wanted
    assert messages[1]["timestamp"] == 7
    call_part = ToolCallPart(call_id="x", name="x", args={})
    assistant = AssistantMessage(
        content=(TextPart(text="x"),), api="x", model=parse_model("scripted:x"), stop="stop"
    )
    head = engine.storage.last_seq
    wrong: list[Any] = [
        "", [], [""], 7, None, assistant, [assistant], {"text": "x"}, b"bytes",
        UserMessage(content=()), UserMessage(content=(TextPart(text=""),)),
        UserMessage(content=(call_part,)),
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(Rejected) as caught:
            await root.accept(given)
        assert caught.value.code == "invariant"
    assert engine.storage.last_seq == head
