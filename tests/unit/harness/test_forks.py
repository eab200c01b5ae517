"""A fork begins at a boundary of another conversation and shares nothing later (seed 8.4, FK)."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest
from msgspec import UNSET

from perdure.errors import Faulted, Rejected, RejectionCode
from perdure.harness.conversation import Conversation
from perdure.kinds.states import PostToolsState
from perdure.line.command import Command
from perdure.providers.script import END, Reply, call, say
from perdure.records.addresses import (
    ACTIVE_TOOLS,
    SESSION_NAME,
    ConversationList,
    ConversationValue,
    SessionValue,
    entry_label,
    request_input,
)
from perdure.records.conversations import ParentLink
from perdure.records.messages import SummaryPayload, UserMessage
from perdure.records.models import ModelRequest
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage
from perdure.records.writes import InsertConversation, InsertTask, PatchConversation
from tests.engine import Engine, Gate, Probe, task_moves, writes

PLAN = ConversationValue[object]("test.plan")
STEPS = ConversationList[object]("test.steps")
NOTE = SessionValue[object]("test.note")


async def refused(engine: Engine, code: RejectionCode, work: Awaitable[object]) -> Rejected:
    head = engine.storage.last_seq
    with pytest.raises(Rejected) as caught:
        await work
    assert caught.value.code == code
    assert engine.storage.last_seq == head
    return caught.value


async def ids(conv: Conversation, *kinds: str) -> list[Seq]:
    return [one.id for one in await conv.entries() if not kinds or one.kind in kinds]


async def context(conv: Conversation) -> list[Seq]:
    return list((await conv.state()).context)


async def steps(conv: Conversation, **page: Any) -> list[object]:
    return [one.value for one in await conv.read_list(STEPS, ListPage(limit=100, **page))]


async def collapse(conv: Conversation, through: Seq) -> Seq:
    """Put a summary in place of a list's beginning, as a collapse does."""
    made: list[Seq] = []
    version = (await conv.state()).prefix_version

    def build(tx: Command) -> None:
        head = tx.insert_entry(
            conv.id, "summary", {"timestamp": 1}, SummaryPayload(text="so far"), through=through
        )
        tx.replace_context(conv.id, through=through, head=head, expect_prefix_version=version)
        made.append(head)

    await conv._core.submit(build)
    return made[0]


def echo(request: ModelRequest) -> Reply:
    """Answer how many messages the request held."""
    return say(str(len(request.messages)))


# What a fork is.


@pytest.mark.spec("FK-01", "FK-02", "FK-13", "VD-09", "ST-20")
async def test_a_fork_is_one_record_and_copies_nothing(engine: Engine) -> None:
    root = await engine.root([say("one"), say("two")])
    await root.set_value(PLAN, {"step": 1})
    await root.append_list(STEPS, "a")
    await root.prompt("first")
    boundary = (await root.state()).commit_end
    await root.accept("left open")
    assert await root.tasks(live=True)

    fork = await root.fork(as_of=boundary, label="try again")
    made = (await engine.commits())[-1]
    assert [type(write) for write in made.writes] == [InsertConversation, PatchConversation]
    for _ in range(2):
        state = await fork.state()
        assert state.parent == ParentLink(conv_id=root.id, as_of=boundary, inherit_values=True)
        assert state.owner is UNSET
        assert state.label == "try again"
        assert not await fork.tasks()
        assert not state.inbox
        assert await fork.get_value(PLAN, None) == {"step": 1}
        assert await steps(fork) == ["a"]
        assert list(state.context) == await ids(fork, "user", "assistant")
        listed = await engine.harness.conversations(parent=root.id)
        assert [(one.id, one.owner) for one in listed] == [(fork.id, UNSET)]
        await engine.kill()
        await engine.open()
        found = await engine.harness.conversation(fork.id)
        assert found is not None
        fork = found


@pytest.mark.spec("FK-03", "VL-28", "IV-14")
async def test_what_belongs_to_the_session_is_seen_by_all(engine: Engine) -> None:
    root = await engine.root([say("hi")])
    first = (await root.accept("hello", request_id="k")).input_id
    await root.drive()
    await engine.harness.set_value(SESSION_NAME, "trip")
    await engine.harness.set_value(entry_label(first), "start")
    await root.rewind(at=first)
    for _ in range(2):
        assert await engine.harness.get_value(SESSION_NAME, None) == "trip"
        assert await engine.harness.get_value(entry_label(first), None) == "start"
        assert await engine.harness.get_value(request_input("k"), None) == first
        await engine.kill()
        await engine.open()


# Where it begins.


@pytest.mark.spec("FK-04", "FK-06")
async def test_an_entry_means_the_boundary_it_belongs_to(engine: Engine) -> None:
    async def body(_args: Any, ctx: Any) -> None:
        ctx.out.add_tools(["other"])

    tools = [Probe("adds", body=body), Probe("other")]
    root = await engine.root([say(call("adds")), say("done")], tools=tools)
    await root.set_value(ACTIVE_TOOLS, ["adds"])
    await root.prompt("go")
    (result,) = await ids(root, "tool_result")
    entry = await root.entry(result)
    assert entry is not None
    fork = await root.fork(at=result)
    link = (await fork.state()).parent
    assert link == ParentLink(
        conv_id=root.id, at_entry=result, as_of=entry.commit_end, inherit_values=True
    )
    assert await fork.get_value(ACTIVE_TOOLS, None) == ["adds", "other"]
    assert (await ids(fork))[-1] == result

    ends = {commit.last_seq for commit in await engine.commits()}
    inside = next(seq for seq in range(1, int(engine.storage.last_seq)) if seq not in ends)
    for wrong in (inside, engine.storage.last_seq + 1, -1):
        await refused(engine, "invariant", root.fork(as_of=Seq(wrong)))
    await refused(engine, "unknown_target", root.fork(as_of=Seq(0)))
    await refused(engine, "unknown_target", root.fork(at=Seq(1)))
    await refused(engine, "invariant", root.fork(at=result, as_of=entry.commit_end))
    wild: Any = "some"
    await refused(engine, "invariant", root.fork(context=wild))


@pytest.mark.spec("FK-05")
async def test_a_commit_without_an_entry_can_be_chosen(engine: Engine) -> None:
    root = await engine.root([say("hi")])
    await root.prompt("hello")
    await root.set_value(PLAN, "draft")
    value_only = (await root.state()).commit_end
    await root.append_list(STEPS, "delta")
    delta_only = (await root.state()).commit_end
    await root.set_value(PLAN, "final")
    older, newer = await root.fork(as_of=value_only), await root.fork(as_of=delta_only)
    assert [await one.get_value(PLAN, None) for one in (older, newer)] == ["draft", "draft"]
    assert [await steps(one) for one in (older, newer)] == [[], ["delta"]]
    now = await root.fork()
    assert await now.get_value(PLAN, None) == "final"


@pytest.mark.spec("FK-12")
async def test_forks_of_forks_reach_into_their_prefixes(engine: Engine) -> None:
    root = await engine.root(echo)
    await root.prompt("one")
    first = await ids(root)
    early = (await root.state()).commit_end
    await root.prompt("two")
    chain = [root]
    for _ in range(6):
        chain.append(await chain[-1].fork())
        await chain[-1].prompt("more")
    last = chain[-1]
    await root.prompt("after the forks")
    later = (await ids(root))[-1]

    by_entry = await last.fork(at=first[1])
    by_commit = await last.fork(as_of=early)
    for fork in (by_entry, by_commit):
        link = (await fork.state()).parent
        assert link is not UNSET
        assert (link.conv_id, link.as_of) == (root.id, early)
        assert await ids(fork) == first
        assert await context(fork) == first
    await refused(engine, "unknown_target", last.fork(at=later))


@pytest.mark.spec("FK-12")
async def test_a_commit_between_the_boundary_and_the_fork_is_no_part_of_it(engine: Engine) -> None:
    root = await engine.root()
    boundary = (await root.state()).commit_end
    await root.set_value(PLAN, 1)
    between = (await root.state()).commit_end
    fork = await root.fork(as_of=boundary)
    await refused(engine, "unknown_target", fork.fork(as_of=between))
    for as_of, parent in ((boundary, root), ((await fork.state()).commit_end, fork)):
        link = (await (await fork.fork(as_of=as_of)).state()).parent
        assert link == ParentLink(conv_id=parent.id, as_of=as_of, inherit_values=True)


@pytest.mark.spec("TK-21", "VD-04")
async def test_a_task_names_what_its_conversation_inherits_and_nothing_else(engine: Engine) -> None:
    root = await engine.root(echo)
    await root.prompt("one")
    inherited = (await ids(root))[0]
    fork = await (await root.fork()).fork()
    await root.prompt("two")
    later = (await ids(root))[-1]
    state = PostToolsState(v=1, generation=Seq(1))

    def naming(at: Seq) -> Awaitable[bool]:
        return engine.line.submit(
            lambda tx: _end(
                tx.insert_task(fork.id, "post_tools", state, status="pending", at_entry=at)
            )
        )

    assert await naming(inherited)
    await refused(engine, "unknown_target", naming(later))
    assert await fork.entry(inherited) is not None
    assert await fork.entry(later) is None


def _end(_: object) -> None:
    """Turn a call with an answer into a step of a command."""


# What it begins with.


@pytest.mark.spec("FK-07", "FK-11", "IV-08")
async def test_the_context_is_that_of_the_boundary_up_to_the_entry(engine: Engine) -> None:
    root = await engine.root(echo)
    await root.prompt("one")
    await root.prompt("two")
    u1, a1, u2, a2 = await ids(root)
    head = await collapse(root, a1)
    assert await context(root) == [head, u2, a2]

    assert await context(await root.fork(at=u1)) == [u1]
    assert await context(await root.fork(at=a1)) == [u1, a1]
    assert await context(await root.fork(at=u2)) == [u1, a1, u2]
    assert await context(await root.fork(at=head)) == [head, u2, a2]
    assert await context(await root.fork()) == [head, u2, a2]
    assert await context(await root.fork(context="fresh")) == []


@pytest.mark.spec("FK-07", "BB-48")
async def test_an_exchange_left_open_at_the_boundary_is_cut_off(engine: Engine) -> None:
    gate = Gate()
    tools = [Probe("quick"), Probe("slow", gate=gate)]
    root = await engine.root([say(call("quick"), call("slow")), say("done")], tools=tools)
    driving = engine.begin(root.prompt("go"))
    await gate.reached.wait()
    await engine.storage.until(task_moves("done"))
    user, assistant, *_ = await ids(root)
    forks = [await root.fork(), await root.fork(at=assistant)]
    gate.open()
    assert (await driving).state == "answered"
    quick, slow = await ids(root, "tool_result")
    forks += [await root.fork(at=quick)]
    assert [await context(one) for one in forks] == [[user]] * 3
    assert await context(await root.fork(at=slow)) == [user, assistant, quick, slow]
    # What is cut off is still part of the transcript.
    assert assistant in await ids(forks[0])


@pytest.mark.spec("FK-02")
async def test_a_fresh_fork_starts_empty_and_keeps_its_values(engine: Engine) -> None:
    seen: list[int] = []

    def count(request: ModelRequest) -> Reply:
        seen.append(len(request.messages))
        return say("ok")

    root = await engine.root(count)
    await root.set_value(PLAN, 1)
    await root.prompt("hello")
    fork = await root.fork(context="fresh")
    assert await fork.get_value(PLAN, None) == 1
    await fork.prompt("new")
    assert seen == [1, 1]


@pytest.mark.spec("ST-34", "FK-01")
async def test_queue_modes_are_those_of_the_boundary(engine: Engine) -> None:
    root = await engine.root()
    await root.configure(label="mine", steering_mode="one-at-a-time")
    before = (await root.state()).commit_end
    await root.configure(steering_mode="all", follow_up_mode="one-at-a-time")
    state = await (await root.fork(as_of=before)).state()
    assert (state.label, state.steering_mode, state.follow_up_mode) == (
        UNSET,
        "one-at-a-time",
        "all",
    )


# Apart from each other.


@pytest.mark.spec("FK-08", "IV-11", "BB-48", "VL-14")
async def test_neither_sees_what_the_other_does_later(engine: Engine) -> None:
    root = await engine.root(echo)
    await root.set_value(PLAN, "shared")
    await root.append_list(STEPS, "shared")
    await root.prompt("one")
    await root.prompt("two")
    before = await context(root)
    forks = [await root.fork(), await root.fork()]
    left, right = forks

    await collapse(root, before[1])
    await root.set_value(PLAN, "root")
    await root.append_list(STEPS, "root")
    await root.prompt("three")
    await left.set_value(PLAN, "left")
    await left.append_list(STEPS, "left")
    await left.prompt("mine")
    assert await context(right) == before
    await left.reset_context()
    await right.delete_value(PLAN)

    for _ in range(2):
        convs = [root, left, right]
        assert [await one.get_value(PLAN, "gone") for one in convs] == ["root", "left", "gone"]
        assert [await steps(one) for one in convs] == [
            ["shared", "root"],
            ["shared", "left"],
            ["shared"],
        ]
        assert await context(right) == before
        assert await context(left) == []
        assert len(await context(root)) == 5
        assert [len(await ids(one)) for one in convs] == [7, 6, 4]
        await engine.kill()
        harness = await engine.open()
        found = [await harness.conversation(one.id) for one in convs]
        root, left, right = (one for one in found if one is not None)


@pytest.mark.spec("BB-48")
async def test_no_object_in_memory_is_shared(engine: Engine) -> None:
    root = await engine.root()
    await root.set_value(PLAN, {"steps": [1]})
    await root.append_list(STEPS, {"n": [1]})
    fork = await root.fork()
    value: Any = await fork.get_value(PLAN, None)
    value["steps"].append(2)
    element: Any = (await steps(fork))[0]
    element["n"].append(2)
    for conv in (root, fork):
        assert await conv.get_value(PLAN, None) == {"steps": [1]}
        assert await steps(conv) == [{"n": [1]}]


@pytest.mark.spec("BB-48", "FK-01", "FK-15", "OP-06", "SC-07")
async def test_tasks_queue_and_approvals_stay_and_the_others_stay_parked(engine: Engine) -> None:
    gate = Gate()
    tools = [Probe("held", approval="ask"), Probe("slow", gate=gate)]
    script = [say(call("held"), call("slow")), say("in the fork")]
    root = await engine.root(script, tools=tools)
    await root.accept("go")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.follow_up("queued")
    await engine.storage.until(writes(InsertTask, kind="approval"))
    live = [one.id for one in await root.tasks(live=True)]
    sibling, fork = await root.fork(), await root.fork()
    await sibling.accept("parked")
    parked = await sibling.tasks()

    assert not await fork.tasks()
    assert not (await fork.state()).inbox
    assert (await fork.drive()).outcome == "idle"
    answer = await fork.prompt("now here")
    assert answer.text == "in the fork"
    assert await sibling.tasks() == parked
    assert [one.id for one in await root.tasks(live=True)] == live
    # Cancelling is the fork's own too.
    await fork.abort()
    assert all(one.abort_requested is UNSET for one in await root.tasks())
    gate.open()
    assert (await driving).outcome == "suspended"


@pytest.mark.spec("FK-09", "IV-19", "IV-21")
async def test_driving_a_fork_that_ends_with_a_question_infers_nothing(engine: Engine) -> None:
    root = await engine.root([say("one"), say("other")])
    accepted = await root.accept("question")
    await root.drive()
    fork = await root.fork(at=accepted.input_id)
    assert await context(fork) == [accepted.input_id]
    head = engine.storage.last_seq
    assert (await fork.drive()).outcome == "idle"
    assert engine.storage.last_seq == head
    assert (await fork.prompt("again")).text == "other"
    asked = engine.models.requests[-1].messages
    assert [type(one) for one in asked] == [UserMessage, UserMessage]


@pytest.mark.spec("VD-06", "SC-07")
async def test_a_task_never_waits_for_one_of_an_independent_fork(engine: Engine) -> None:
    root = await engine.root()
    await root.accept("hello")
    (task,) = await root.tasks()
    fork = await root.fork()

    def waiting(conv: Conversation) -> Awaitable[bool]:
        state = PostToolsState(v=1, generation=task.id)
        return engine.line.submit(
            lambda tx: _end(
                tx.insert_task(conv.id, "post_tools", state, status="pending", after=[task.id])
            )
        )

    assert await waiting(root)
    await refused(engine, "invariant", waiting(fork))


@pytest.mark.spec("VD-03", "VD-09", "CX-06")
async def test_a_list_holds_nothing_from_beyond_the_boundary(engine: Engine) -> None:
    root = await engine.root(echo)
    await root.prompt("one")
    first = await ids(root)
    boundary = (await root.state()).commit_end
    fork = await root.fork()
    await root.prompt("two")
    later = (await ids(root))[2:]
    await fork.prompt("mine")
    mine = (await ids(fork))[2:]
    await fork.reset_context([*first, *mine])
    await refused(engine, "unknown_target", fork.reset_context(later))
    await refused(engine, "unknown_target", root.reset_context(mine))

    link = ParentLink(conv_id=root.id, as_of=boundary, inherit_values=True)
    wrong: Sequence[tuple[RejectionCode, ParentLink, Sequence[Seq]]] = (
        ("unknown_target", link, later),
        ("unknown_target", ParentLink(conv_id=fork.id, as_of=boundary, inherit_values=True), ()),
        ("unknown_target", ParentLink(conv_id=Seq(999), as_of=boundary, inherit_values=True), ()),
        (
            "unknown_target",
            ParentLink(conv_id=root.id, at_entry=later[0], as_of=boundary, inherit_values=True),
            (),
        ),
        (
            "invariant",
            ParentLink(conv_id=root.id, as_of=Seq(boundary - 1), inherit_values=True),
            (),
        ),
    )
    for code, parent, listed in wrong:
        await refused(
            engine,
            code,
            engine.harness.command(
                lambda tx, parent=parent, listed=listed: _end(
                    tx.insert_conversation(parent=parent, context=listed)
                )
            ),
        )
    live = (await root.accept("open")).input_id
    (task,) = await root.tasks(live=True)
    assert live
    await refused(
        engine,
        "invariant",
        engine.harness.command(lambda tx: _end(tx.insert_conversation(parent=link, owner=task.id))),
    )


@pytest.mark.spec("FK-17")
async def test_the_transcript_is_the_prefix_and_then_its_own(engine: Engine) -> None:
    root = await engine.root(echo)
    await root.prompt("one")
    shared = await ids(root)
    fork = await root.fork()
    await root.prompt("two")
    await fork.prompt("mine")
    inner = await fork.fork()
    await fork.prompt("later")
    await inner.prompt("inner")
    pages = [await fork.entries(), await inner.entries()]
    assert [one.id for one in pages[0]][:2] == shared
    assert [one.conv_id for one in pages[0]] == [root.id] * 2 + [fork.id] * 4
    assert [one.conv_id for one in pages[1]] == [root.id] * 2 + [fork.id] * 2 + [inner.id] * 2
    everything = [one.id for one in pages[1]]
    backwards = [one.id for one in await inner.entries(newest_first=True)]
    assert backwards == everything[::-1]
    stepwise: list[Seq] = []
    while page := await inner.entries(after=stepwise[-1] if stepwise else None, limit=1):
        stepwise += [one.id for one in page]
    assert stepwise == everything
    async with inner.watch(limit=100) as watch:
        base: Any = await anext(aiter(watch))
        assert [one.id for one in base.entries] == everything


@pytest.mark.spec("TI-05", "ST-15")
async def test_every_read_of_a_fork_answers_as_of_a_boundary(engine: Engine) -> None:
    root = await engine.root(echo)
    await root.set_value(PLAN, "root")
    await root.append_list(STEPS, 1)
    await root.prompt("one")
    fork = await root.fork()
    made = (await fork.state()).commit_end
    await fork.set_value(PLAN, "fork")
    await fork.append_list(STEPS, 2)
    answered = await fork.prompt("two")
    (task,) = await fork.tasks()
    assert answered.entry is not None
    inherited = await ids(root)

    assert list((await fork.state(as_of=made)).context) == inherited
    assert [one.id for one in await fork.entries(as_of=made)] == inherited
    assert await fork.entry(inherited[0], as_of=made) is not None
    assert await fork.entry(answered.entry.id, as_of=made) is None
    assert await fork.entry(answered.entry.id) is not None
    assert await fork.get_value(PLAN, None, as_of=made) == "root"
    assert await steps(fork, as_of=made) == [1]
    assert await fork.task(task.id, as_of=made) is None
    assert not await fork.tasks(as_of=made)
    moves = [one.last_seq for one in await engine.commits() if one.last_seq > made]
    seen = [await fork.task(task.id, as_of=boundary) for boundary in moves]
    statuses = [one.status for one in seen if one is not None]
    assert statuses == sorted(statuses, key=["pending", "streaming", "done"].index)
    assert {"pending", "streaming", "done"} == set(statuses)
    with pytest.raises(Rejected):
        await fork.state(as_of=Seq(made - 1))


# Request ids.


@pytest.mark.spec("ID-10", "ID-03", "WB-12")
@pytest.mark.parametrize("verb", ["fork", "rewind"])
async def test_a_repeat_answers_the_first_fork(engine: Engine, verb: str) -> None:
    root = await engine.root([say("one"), say("two")])
    accepted = await root.accept("hello")
    await root.drive()
    ask: dict[str, Any] = {"at": accepted.input_id, "label": "x", "request_id": "k"}
    first = await getattr(root, verb)(**ask)
    await root.accept("running")
    for _ in range(2):
        head = engine.storage.last_seq
        again = await asyncio.gather(*(getattr(root, verb)(**ask) for _ in range(3)))
        assert {one.id for one in again} == {first.id}
        assert engine.storage.last_seq == head, "nothing is forked and nothing cancelled"
        await engine.kill()
        root = await engine.root([say("two")])


@pytest.mark.spec("ID-10", "ID-06")
async def test_a_key_used_otherwise_is_a_conflict(engine: Engine) -> None:
    root = await engine.root([say("one")])
    accepted = await root.accept("hello", request_id="input")
    await root.drive()
    fork = await root.fork(at=accepted.input_id, request_id="fork")
    other = await root.fork()
    conflicts: Sequence[tuple[str, Awaitable[object]]] = (
        ("content", root.fork(request_id="fork")),
        ("content", root.fork(at=accepted.input_id, label="other", request_id="fork")),
        ("conversation", other.fork(at=accepted.input_id, request_id="fork")),
        ("verb", root.rewind(at=accepted.input_id, request_id="fork")),
        ("verb", root.accept("hello", request_id="fork")),
        ("verb", root.fork(request_id="input")),
        ("conversation", fork.accept("hello", request_id="input")),
    )
    for differs, work in conflicts:
        error = await refused(engine, "request_conflict", work)
        assert error.details["differs"] == differs
    await refused(engine, "invariant", root.fork(request_id=""))
    await refused(engine, "invariant", root.rewind(as_of=Seq(0), request_id="x" * 513))


@pytest.mark.spec("ID-10")
async def test_a_fork_and_its_key_come_together(engine: Engine) -> None:
    root = await engine.root()
    both = await asyncio.gather(*(root.fork(request_id="k") for _ in range(4)))
    assert len({one.id for one in both}) == 1
    assert (await engine.commits())[-1] in engine.storage.barriers
    assert await engine.harness.get_value(request_input("k"), None) == both[0].id


@pytest.mark.spec("ID-10", "FK-10")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_fork_that_a_crash_cut_off_is_made_once(engine: Engine, when: Any) -> None:
    gate = Gate()
    root = await engine.root([say("one"), say("never", gates={END: gate})])
    first = await root.prompt("hello")
    await root.accept("running")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    ask: dict[str, Any] = {"at": first.answer, "request_id": "k"}
    engine.storage.fail(writes(InsertConversation), OSError("power cut"), when=when)
    with pytest.raises(Faulted):
        await root.rewind(**ask)
    assert (await driving).outcome == "idle"
    await engine.kill()
    root = await engine.root()
    assert not await root.tasks(live=True), "the cancellation had ended before"
    there = await engine.harness.conversations(parent=root.id)
    assert len(there) == (when == "after")
    back = await root.rewind(**ask)
    (made,) = await engine.harness.conversations(parent=root.id)
    assert back.id == made.id
    assert list(made.context) == await ids(back, "user", "assistant")


async def test_a_fork_outlives_its_deleted_parent(engine: Engine) -> None:
    root = await engine.root(echo)
    await root.set_value(PLAN, "kept")
    middle = await root.fork()
    await middle.prompt("one")
    fork = await middle.fork(request_id="k")
    first = (await ids(middle))[0]
    await engine.line.submit(lambda tx: tx.delete_conversation(middle.id))
    await refused(engine, "deleted", middle.fork())
    await refused(engine, "deleted", middle.rewind(at=first))
    for _ in range(2):
        assert await fork.get_value(PLAN, None) == "kept"
        assert (await ids(fork))[0] == first
        assert (await (await fork.fork(at=first)).state()).context[0] == first
        await engine.kill()
        harness = await engine.open(echo)
        found = await harness.conversation(fork.id)
        assert found is not None
        fork = found


# Rewind.


@pytest.mark.spec("FK-10", "FK-16", "IV-26")
async def test_rewind_cancels_and_drains_then_forks(engine: Engine) -> None:
    gate = Gate()
    slow = Probe("slow", gate=gate)
    root = await engine.root([say("first"), say(call("slow")), say("anew")], tools=[slow])
    await root.set_value(PLAN, "old")
    first = await root.prompt("one")
    assert first.answer is not None
    await root.set_value(PLAN, "new")
    second = await root.accept("two")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.next_run("kept")
    await root.append_message("written")
    await root.follow_up("withdrawn")

    back = await root.rewind(at=first.answer, label="back")
    assert await back.get_value(PLAN, None) == "old"
    assert await root.get_value(PLAN, None) == "new"
    assert await context(back) == (await ids(root))[:2]
    assert (await root.result(second.input_id)).state == "aborted"
    assert not await root.tasks(live=True), "the fork was made after everything had ended"
    inbox = (await root.state()).inbox
    assert [one.kind for one in inbox] == ["nextRun", "write"]
    await driving
    assert (await back.prompt("other")).text == "anew"
    assert len(await ids(root)) > len(await ids(back))


@pytest.mark.spec("FK-10")
async def test_rewind_leaves_the_source_running_when_told(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("first"), say("second", gates={END: gate})])
    first = await root.prompt("one")
    accepted = await root.accept("two")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    head = await root.state()
    assert first.entry is not None
    await root.rewind(at=first.entry.id, keep_running=True)
    assert await root.state() == head
    gate.open()
    await driving
    assert (await root.result(accepted.input_id)).state == "answered"


@pytest.mark.spec("FK-10")
async def test_a_refused_target_cancels_nothing(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("first", gates={END: gate})])
    await root.accept("one")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await refused(engine, "invariant", root.rewind())
    await refused(engine, "unknown_target", root.rewind(at=Seq(1)))
    await refused(engine, "unknown_target", root.rewind(as_of=Seq(0)))
    await refused(engine, "invariant", root.rewind(as_of=Seq(10**9)))
    gate.open()
    await driving
    assert (await root.tasks())[0].status == "done"


@pytest.mark.spec("FK-10", "LN-20")
async def test_a_call_cannot_rewind_what_it_runs_in(engine: Engine) -> None:
    codes: list[str] = []

    async def body(_args: Any, _ctx: Any) -> None:
        with pytest.raises(Rejected) as caught:
            await root.rewind(as_of=boundary)
        codes.append(caught.value.code)

    root = await engine.root([say(call("back")), say("done")], tools=[Probe("back", body=body)])
    boundary = (await root.state()).commit_end
    assert (await root.prompt("go")).text == "done"
    assert codes == ["nested_command"]


@pytest.mark.spec("RC-17", "IV-11")
@pytest.mark.parametrize("is_fork_first", [True, False])
async def test_a_fork_beside_its_parents_summary(engine: Engine, is_fork_first: bool) -> None:
    root = await engine.root(echo)
    await root.prompt("one")
    await root.prompt("two")
    listed = await context(root)
    before = (await root.state()).commit_end
    gate = engine.storage.hold(lambda _: True)
    if is_fork_first:
        forking = engine.begin(root.fork(as_of=before))
        await gate.reached.wait()
        collapsing = engine.begin(collapse(root, listed[1]))
    else:
        collapsing = engine.begin(collapse(root, listed[1]))
        await gate.reached.wait()
        forking = engine.begin(root.fork(as_of=before))
    gate.open()
    fork, head = await forking, await collapsing
    assert await context(fork) == listed
    assert (fork.id < head) == is_fork_first
    assert await context(await root.fork()) == [head, *listed[2:]]
