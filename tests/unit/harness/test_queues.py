"""Queues: what waits, what each boundary takes, and in which order (seed 18, D20, QU)."""

from typing import Any

import pytest

from perdure.errors import Faulted, Rejected
from perdure.harness.conversation import Conversation
from perdure.harness.overview import overview
from perdure.kinds.queues import Boundary, select
from perdure.kinds.secrets import Secrets
from perdure.providers.script import END, call, fail, say
from perdure.records.conversations import (
    ConversationState,
    InboxItem,
    InboxTag,
    ParentLink,
    QueueMode,
)
from perdure.records.messages import TextPart, text_message
from perdure.records.seqs import Seq
from perdure.records.writes import InsertEntry, InsertTask, PatchConversation, PatchTask
from tests.engine import Engine, Gate, Probe, is_main
from tests.unit.harness.holders import Holders

DISK = OSError("power cut")


def sent(engine: Engine, request: int) -> list[str]:
    """Answer the user texts of one request."""
    return [
        part.text
        for message in engine.models.requests[request].messages
        if type(message).__name__ == "UserMessage"
        for part in message.content
        if isinstance(part, TextPart)
    ]


async def waiting(conv: Conversation) -> list[str]:
    return [item.kind for item in (await conv.state()).inbox]


@pytest.mark.spec("QU-02", "QU-10", "IV-21")
async def test_a_context_message_asks_for_no_answer(engine: Engine) -> None:
    root = await engine.root([say("one"), say("two")])
    first = await root.append_message("context")
    result = await root.result(first.input_id)
    assert (result.state, result.mode, result.final) == ("placed", "write", True)
    for _ in range(2):
        assert (await root.drive()).outcome == "idle"
        assert not await root.tasks()
        await engine.kill()
        root = await engine.root([say("one"), say("two")])
    await root.prompt("question")
    assert sent(engine, 0) == ["context", "question"]
    await root.accept("again")
    late = await root.append_message("more context")
    assert (await root.result(late.input_id)).state == "queued"
    assert await waiting(root) == ["write"]
    await root.drive()
    assert (await root.result(late.input_id)).state == "placed"
    assert not await root.tasks(live=True)
    assert (await root.drive()).outcome == "idle"
    kinds = [entry.kind for entry in await root.entries()]
    assert kinds == ["user", "user", "assistant", "user", "input", "assistant", "user"]


@pytest.mark.spec("QU-02")
async def test_earlier_writes_are_placed_before_a_new_one(engine: Engine) -> None:
    root = await engine.root([fail("auth")])
    await root.accept("question")
    await root.abort()
    await root.append_message("first")
    assert await waiting(root) == ["write"]
    await root.drive()
    assert await waiting(root) == ["write"], "an abort keeps writes"
    await root.append_message("second")
    assert await waiting(root) == []
    users = [one for one in await root.entries() if one.kind == "user"]
    texts = [one.payload["messages"][0]["content"][0]["text"] for one in users]
    assert texts == ["question", "first", "second"]


@pytest.mark.spec("QU-03", "QU-13")
@pytest.mark.parametrize("busy", [False, True])
async def test_steer_follow_up_and_next_run_only_wait(engine: Engine, *, busy: bool) -> None:
    root = await engine.root()
    if busy:
        await root.accept("working")
    tasks = len(await root.tasks())
    for verb in ("steer", "follow_up", "next_run"):
        accepted = await getattr(root, verb)(verb)
        assert (await root.result(accepted.input_id)).state == "queued"
        commit = (await engine.commits())[-1]
        kinds = {type(write) for write in commit.writes}
        assert {InsertEntry, PatchConversation} <= kinds
        assert not {InsertTask, PatchTask} & kinds
    assert await waiting(root) == ["steer", "followUp", "nextRun"]
    assert len(await root.tasks()) == tasks


@pytest.mark.spec("QU-04", "QU-08", "QU-11")
async def test_an_idle_acceptance_takes_everything_then_itself(engine: Engine) -> None:
    root = await engine.root([say("done")])
    holders = Holders(engine)
    queued = [
        (await getattr(root, verb)(f"{number} {verb}")).input_id
        for number, verb in enumerate(["next_run", "steer", "follow_up", "next_run", "steer"])
    ]
    accepted = await root.accept("itself")
    commit = (await engine.commits())[-1]
    assert sum(isinstance(write, InsertTask) for write in commit.writes) == 1
    await root.drive()
    assert sent(engine, 0) == [
        "0 next_run", "1 steer", "2 follow_up", "3 next_run", "4 steer", "itself",
    ]  # fmt: skip
    for input_id in (*queued, accepted.input_id):
        assert (await root.result(input_id)).text == "done"
    assert not engine.errors
    assert holders.boundaries


@pytest.mark.spec("QU-05", "QU-06", "QU-08", "QU-11", "CX-21")
async def test_each_boundary_takes_its_own_tags(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root(
        [say(call("wait")), say("one"), say("two"), say("three")],
        tools=[Probe("wait", gate=gate)],
    )
    holders = Holders(engine)
    await root.accept("start")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    for verb in ("next_run", "follow_up", "steer", "append_message"):
        await getattr(root, verb)(verb)
    gate.open()
    await driving
    assert sent(engine, 1) == ["start", "steer", "append_message"]
    assert sent(engine, 2) == ["start", "steer", "append_message", "follow_up"]
    assert await waiting(root) == ["nextRun"]
    await root.prompt("last")
    assert sent(engine, 3)[-2:] == ["next_run", "last"]
    assert not engine.errors
    assert holders.boundaries


@pytest.mark.spec("QU-05")
async def test_after_tools_one_steer_at_a_time_is_taken(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root(
        [say(call("wait")), say("one"), say("two")], tools=[Probe("wait", gate=gate)]
    )
    await root.configure(steering_mode="one-at-a-time")
    await root.accept("start")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    for text in ("first", "second"):
        await root.steer(text)
    gate.open()
    await driving
    assert sent(engine, 1) == ["start", "first"]
    assert sent(engine, 2) == ["start", "first", "second"]


@pytest.mark.spec("QU-06")
@pytest.mark.parametrize("verb", ["steer", "follow_up", "next_run", "append_message"])
async def test_a_final_answer_continues_for_steer_and_follow_up_alone(
    engine: Engine, verb: str
) -> None:
    root = await engine.root([say("one"), say("two")])
    await root.accept("start")
    await getattr(root, verb)("queued")
    await root.drive()
    continues = verb in ("steer", "follow_up")
    assert len(engine.models.requests) == (2 if continues else 1)
    assert await waiting(root) == (["nextRun"] if verb == "next_run" else [])


@pytest.mark.spec("QU-07")
async def test_an_abort_of_an_idle_conversation_still_drains(engine: Engine) -> None:
    root = await engine.root()
    for verb in ("next_run", "follow_up", "steer", "append_message"):
        await getattr(root, verb)(verb)
    report = await root.abort()
    assert not report.marked
    assert [one.mode for one in report.drained] == ["followUp", "steer"]
    assert await waiting(root) == ["nextRun"]


@pytest.mark.spec("QU-09", "OP-26")
async def test_one_at_a_time_takes_the_oldest_of_its_tag(engine: Engine) -> None:
    root = await engine.root([say("one"), say("two"), say("three"), say("four")])
    assert (await root.state()).steering_mode == "all"
    assert (await root.state()).follow_up_mode == "all"
    before = await root.state()
    await root.configure(follow_up_mode="one-at-a-time", label="mine")
    writes = (await engine.commits())[-1].writes
    assert [type(write) for write in writes] == [PatchConversation]
    state = await root.state()
    assert (state.follow_up_mode, state.steering_mode, state.label) == (
        "one-at-a-time", "all", "mine",
    )  # fmt: skip
    old = (await engine.storage.conversations([root.id], as_of=before.commit_end))[root.id]
    assert (old.follow_up_mode, old.label) == (before.follow_up_mode, before.label)
    await root.accept("start")
    for text in ("f1", "f2"):
        await root.follow_up(text)
    for text in ("s1", "s2"):
        await root.steer(text)
    await root.drive()
    assert sent(engine, 1)[1:] == ["f1", "s1", "s2"]
    assert sent(engine, 2)[4:] == ["f2"]
    assert len(engine.models.requests) == 3
    await root.configure(label=None)
    assert not isinstance((await root.state()).label, str)
    head = engine.storage.last_seq
    for wrong in ("one", "", 1):
        with pytest.raises(Rejected) as caught:
            await root.configure(steering_mode=wrong)  # pyright: ignore[reportArgumentType]
        assert caught.value.code == "invariant"
    assert engine.storage.last_seq == head


@pytest.mark.spec("QU-09")
async def test_the_mode_is_read_at_the_boundary(engine: Engine) -> None:
    """Not when the input was queued, nor when the generation was created (D20)."""
    root = await engine.root([say("one"), say("two"), say("three")])
    await root.accept("start")
    for text in ("f1", "f2"):
        await root.follow_up(text)
    await root.configure(follow_up_mode="one-at-a-time")
    await root.drive()
    assert [sent(engine, number)[1:] for number in (1, 2)] == [["f1"], ["f1", "f2"]]


@pytest.mark.spec("QU-16")
async def test_the_inbox_survives_restart_and_stands_in_the_state(engine: Engine) -> None:
    root = await engine.root([say("one"), say("two")])
    await root.accept("start")
    queued = await root.follow_up("later")
    for _ in range(2):
        inbox = (await root.state()).inbox
        assert [(item.id, item.kind) for item in inbox] == [(queued.input_id, "followUp")]
        await engine.kill()
        root = await engine.root([say("one"), say("two")])
    made: list[Seq] = []
    link = ParentLink(conv_id=root.id, as_of=(await root.state()).commit_end, inherit_values=True)
    await engine.line.submit(lambda tx: made.append(tx.insert_conversation(parent=link)))
    fork = await engine.harness.conversation(made[0])
    assert fork is not None
    assert not (await fork.state()).inbox
    await root.drive()
    assert (await root.result(queued.input_id)).text == "two"


@pytest.mark.spec("QU-20", "BR-02")
@pytest.mark.parametrize("when", ["before", "after", None])
async def test_flush_starts_one_run_of_what_was_left(engine: Engine, when: Any) -> None:
    root = await engine.root([fail("auth")])
    await root.accept("fails")
    verbs = ("next_run", "follow_up", "steer", "append_message")
    ids = [(await getattr(root, verb)(verb)).input_id for verb in verbs]
    await root.drive()
    assert await waiting(root) == ["nextRun", "followUp", "steer"]
    if when is not None:
        engine.storage.fail(is_main, DISK, when=when)
        with pytest.raises(Faulted):
            await root.flush()
        await engine.kill()
        root = await engine.root([say("done")])
    if when != "after":
        assert await root.flush() == tuple(ids[:3])
        assert engine.storage.barriers[-1] == (await engine.commits())[-1]
    if when is None:
        await engine.kill()
        root = await engine.root([say("done")])
    live = await root.tasks(live=True)
    assert [task.kind for task in live] == ["generation"]
    await root.drive()
    for input_id in ids[:3]:
        assert (await root.result(input_id)).text == "done"
    assert sent(engine, 0) == ["fails", "append_message", "next_run", "follow_up", "steer"]


@pytest.mark.spec("QU-21")
async def test_flush_refuses_when_busy_or_when_there_is_nothing(engine: Engine) -> None:
    root = await engine.root([say("done")])
    codes: list[str] = []

    async def refuse() -> None:
        head = engine.storage.last_seq
        with pytest.raises(Rejected) as caught:
            await root.flush()
        codes.append(caught.value.code)
        assert engine.storage.last_seq == head

    await refuse()
    await root.accept("working")
    await root.append_message("only a write")
    await refuse()
    await root.abort()
    await refuse()
    await root.drive()
    assert await waiting(root) == ["write"]
    await refuse()
    assert codes == ["nothing_to_do", "busy", "busy", "nothing_to_do"]


@pytest.mark.spec("CN-03")
async def test_abort_only_if_its_input_still_matters(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("done"), say("more", gates={END: gate})])
    old = await root.prompt("old")
    current = await root.accept("current")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    head = engine.storage.last_seq
    for wrong in (old.input_id, Seq(999)):
        with pytest.raises(Rejected) as caught:
            await root.abort(only_if=wrong)
        assert caught.value.code == "version_mismatch"
    assert engine.storage.last_seq == head
    report = await root.abort(only_if=current.input_id)
    assert len(report.marked) == 1
    await driving
    assert (await root.result(current.input_id)).state == "aborted"


@pytest.mark.spec("FM-02", "SX-05", "QU-16")
async def test_what_waits_can_be_told_by_how_it_begins(engine: Engine) -> None:
    key = "sk-marker-123456"
    root = await engine.root(secrets=Secrets({"KEY": key}))
    await root.accept("go")
    await root.follow_up(f"use {key}\nnow")
    await root.follow_up("x" * 5_000)
    await root.steer([text_message("one"), text_message("two")])
    await root.append_message(" " * 400 + key)
    entries = {entry.id: entry for entry in await root.entries()}
    metas = [entries[item.entry].meta for item in (await root.state()).inbox]
    previews = ["use [secret KEY] now", "x" * 120, "one two", "[secret KEY]"]
    assert [meta.preview for meta in metas] == previews
    assert [meta.mode for meta in metas] == ["followUp", "followUp", "steer", "write"]
    assert {meta.as_kind for meta in metas} == {"user"}
    seen = await overview(engine.storage.inner)
    assert [item.preview for item in seen.queue] == previews


@pytest.mark.spec("QU-08", "QU-09")
def test_one_at_a_time_counts_each_verb_by_itself() -> None:
    def item(number: int, tag: InboxTag) -> InboxItem:
        return InboxItem(id=Seq(number), kind=tag, entry=Seq(number))

    tags: list[InboxTag] = ["followUp", "write", "steer", "followUp", "steer", "write", "nextRun"]
    inbox = tuple(item(n, tag) for n, tag in enumerate(tags, 1))

    def taken(boundary: Boundary, steering: QueueMode, follow_up: QueueMode) -> list[int]:
        state = ConversationState(
            id=Seq(1), inbox=inbox, steering_mode=steering, follow_up_mode=follow_up,
            commit_end=Seq(1),
        )  # fmt: skip
        return [int(one.id) for one in select(state, boundary)]

    one: QueueMode = "one-at-a-time"
    assert taken("accept", one, one) == [1, 2, 3, 6, 7]
    assert taken("accept", one, "all") == [1, 2, 3, 4, 6, 7]
    assert taken("accept", "all", one) == [1, 2, 3, 5, 6, 7]
    assert taken("answer", one, one) == [1, 2, 3, 6]
    assert taken("post_tools", one, one) == [2, 3, 6]
    assert taken("post_tools", "all", one) == [2, 3, 5, 6]
    assert taken("write_only", one, one) == [2, 6]


@pytest.mark.spec("QU-14")
async def test_another_conversation_cannot_withdraw_what_waits_here(engine: Engine) -> None:
    root = await engine.root([say("one"), say("two")])
    made: list[Seq] = []
    await engine.harness.command(lambda tx: made.append(tx.insert_conversation()))
    other = await engine.harness.conversation(made[0])
    assert other is not None
    await root.accept("A")
    waits = (await root.follow_up("B")).input_id
    head = engine.storage.last_seq
    assert await other.cancel_queued(waits) == "not_found"
    assert engine.storage.last_seq == head
    await root.drive()
    assert (await root.result(waits)).text == "two"
