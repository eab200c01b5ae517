"""What a command may not do: each rule rejects the whole of it, with its code (seed 7.2, VD)."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from perdure.errors import Rejected, RejectionCode
from perdure.harness.conversation import Conversation
from perdure.kinds.states import GenerationState, PostToolsState, ToolState
from perdure.line.command import Command, WorkingCommand
from perdure.records.addresses import ConversationList, ConversationValue, SessionValue
from perdure.records.conversations import InboxItem, ParentLink
from perdure.records.entries import EntryMeta
from perdure.records.messages import (
    AssistantMessage,
    AssistantPayload,
    SummaryPayload,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    ToolResultPayload,
    UserMessage,
    UserPayload,
)
from perdure.records.models import parse_model
from perdure.records.seqs import Seq
from tests.engine import Engine

Build = Callable[[Command], Any]

NOTE = SessionValue[object]("test.note")
PLAN = ConversationValue[object]("test.plan")
STEPS = ConversationList[object]("test.steps")
NOWHERE = Seq(999)
META = EntryMeta(timestamp=1)
USER = UserPayload(messages=(UserMessage(content=(TextPart(text="hi"),), timestamp=1),))
GENERATION = GenerationState(v=1, settings="0" * 64)


def asking(*names: str) -> AssistantPayload:
    """Make an assistant message with one call a name."""
    calls = tuple(ToolCallPart(call_id=name, name=name, args={}) for name in names)
    return AssistantPayload(
        message=AssistantMessage(
            content=calls, api="test", model=parse_model("scripted:test"), stop="toolUse"
        )
    )


def answering(name: str) -> ToolResultPayload:
    return ToolResultPayload(
        message=ToolResultMessage(
            call_id=name, tool_name=name, content=(TextPart(text="ok"),), is_error=False
        )
    )


class Exchange:
    """An assistant entry with its tools and join, as a generation's settlement leaves it."""

    def __init__(self) -> None:
        self.generation = self.entry = self.join = Seq(0)
        self.tools: list[Seq] = []


async def exchange(engine: Engine, conv_id: Seq, *names: str) -> Exchange:
    made = Exchange()

    async def generation(tx: Command) -> None:
        made.generation = tx.insert_task(conv_id, "generation", GENERATION, status="pending")

    async def answer(tx: Command) -> None:
        task = await tx.task(made.generation)
        tx.patch(task, status="streaming")
        made.entry = tx.insert_entry(
            conv_id, "assistant", EntryMeta(stop="toolUse"), asking(*names), written_by=task.id
        )
        for index, name in enumerate(names):
            made.tools.append(
                tx.insert_task(
                    conv_id,
                    "tool",
                    ToolState(v=1, call_index=index, call_id=name, name=name),
                    status="planned",
                    spawned_by=task.id,
                    at_entry=made.entry,
                )
            )
        made.join = tx.insert_task(
            conv_id,
            "post_tools",
            PostToolsState(v=1, generation=task.id),
            status="pending",
            spawned_by=task.id,
            at_entry=made.entry,
            after=made.tools,
        )
        tx.settle(task, "done")

    await engine.line.submit(generation)
    await engine.line.submit(answer)
    return made


def result(tx: Command, conv_id: Seq, done: Exchange, index: int, *, by: Seq | None = None) -> Seq:
    return tx.insert_entry(
        conv_id,
        "tool_result",
        EntryMeta(answers=done.entry, is_error=False),
        answering("x"),
        written_by=done.tools[index] if by is None else by,
        call_index=index,
    )


async def settle_tool(engine: Engine, conv_id: Seq, done: Exchange, index: int) -> Seq:
    made: list[Seq] = []

    async def build(tx: Command) -> None:
        made.append(result(tx, conv_id, done, index))
        tx.settle(await tx.task(done.tools[index]), "done")

    await engine.line.submit(build)
    return made[0]


async def settle_join(engine: Engine, done: Exchange) -> None:
    async def build(tx: Command) -> None:
        tx.settle(await tx.task(done.join), "done")

    await engine.line.submit(build)


async def refused(engine: Engine, build: Any) -> RejectionCode:
    """Run a command that must be refused whole; answers the code."""
    head = engine.storage.last_seq
    with pytest.raises(Rejected) as caught:
        await engine.line.submit(build)
    assert engine.storage.last_seq == head
    assert engine.line.fault is None
    assert str(caught.value)
    return caught.value.code


async def table(engine: Engine, rows: list[tuple[RejectionCode, Any]]) -> None:
    for number, (code, build) in enumerate(rows):
        assert await refused(engine, build) == code, f"row {number}"


async def entry_of(engine: Engine, conv: Conversation, kind: str = "user") -> Seq:
    made: list[Seq] = []
    payloads = {"user": USER, "summary": SummaryPayload(v=1, text="so far")}
    await engine.line.submit(
        lambda tx: made.append(tx.insert_entry(conv.id, kind, META, payloads[kind]))
    )
    return made[0]


async def second(engine: Engine) -> Conversation:
    made: list[Seq] = []
    root = await engine.harness.root()
    link = ParentLink(conv_id=root.id, as_of=(await root.state()).commit_end, inherit_values=False)
    await engine.line.submit(lambda tx: made.append(tx.insert_conversation(parent=link)))
    found = await engine.harness.conversation(made[0])
    assert found is not None
    return found


@pytest.mark.spec("VD-01", "VD-13")
async def test_an_entry_needs_its_conversation_its_kind_and_a_visible_through(
    engine: Engine,
) -> None:
    root = await engine.root()
    other = await second(engine)
    foreign = await entry_of(engine, other)
    gone = await second(engine)
    await _delete(engine, gone.id)
    await table(
        engine,
        [
            ("unknown_target", lambda tx: _end(tx.insert_entry(NOWHERE, "user", META, USER))),
            ("deleted", lambda tx: _end(tx.insert_entry(gone.id, "user", META, USER))),
            ("invariant", lambda tx: _end(tx.insert_entry(root.id, "unheard", META, USER))),
            (
                "unknown_target",
                lambda tx: _end(
                    tx.insert_entry(
                        root.id, "summary", META, SummaryPayload(v=1, text="x"), through=foreign
                    )
                ),
            ),
        ],
    )

    def early(tx: Command) -> None:
        conv_id = tx.insert_conversation()
        first = tx.insert_entry(conv_id, "user", META, USER)
        tx.insert_entry(conv_id, "summary", META, SummaryPayload(v=1, text="x"), through=first)

    assert await engine.line.submit(early)


@pytest.mark.spec("VD-04", "VD-13")
async def test_a_new_task_needs_a_conversation_a_legal_start_and_a_valid_state(
    engine: Engine,
) -> None:
    root = await engine.root()
    other = await second(engine)
    foreign = await entry_of(engine, other)

    def make(**changes: Any) -> Build:
        facts: dict[str, Any] = {
            "conv_id": root.id,
            "kind": "generation",
            "state": GENERATION,
            "status": "pending",
            **changes,
        }
        conv_id, kind, state = (facts.pop(name) for name in ("conv_id", "kind", "state"))
        return lambda tx: _end(tx.insert_task(conv_id, kind, state, **facts))

    await table(
        engine,
        [
            ("unknown_target", make(conv_id=NOWHERE)),
            ("unknown_target", make(at_entry=foreign)),
            ("unknown_target", make(at_entry=NOWHERE)),
            ("unknown_target", make(spawned_by=NOWHERE)),
            ("unknown_target", make(after=[NOWHERE])),
            ("invariant", make(status="streaming")),
            ("invariant", make(status="done")),
            ("invariant", make(status="unheard")),
            ("invariant", make(kind="unheard")),
            ("invariant", make(state={"v": 1})),
            ("invariant", make(state={"v": 1, "settings": 7})),
            ("invariant", make(state={"v": 1, "settings": "x", "extra": 1})),
            ("invariant", make(state={"v": 2, "settings": "x"})),
        ],
    )
    assert await engine.line.submit(make())


@pytest.mark.spec("VD-05")
async def test_dependencies_exist_and_never_form_a_circle(engine: Engine) -> None:
    root = await engine.root()
    done = await exchange(engine, root.id, "a", "b", "c")
    first, second_, third = done.tools

    async def wait_for(tx: Command, task_id: Seq, *targets: Seq) -> None:
        tx.patch(await tx.task(task_id), after=targets)

    def made_after(tx: Command, conv_id: Seq, *targets: Seq) -> Seq:
        state = ToolState(v=1, call_index=0, call_id="x", name="x")
        return tx.insert_task(conv_id, "tool", state, status="planned", after=targets)

    apart = await second(engine)
    made: list[Seq] = []
    await engine.line.submit(lambda tx: made.append(made_after(tx, apart.id)))
    (elsewhere,) = made

    async def circle_in_one_command(tx: Command) -> None:
        await wait_for(tx, first, second_)
        await wait_for(tx, second_, third)
        await wait_for(tx, third, first)

    await table(
        engine,
        [
            ("unknown_target", lambda tx: wait_for(tx, first, NOWHERE)),
            ("invariant", lambda tx: wait_for(tx, first, first)),
            ("invariant", lambda tx: wait_for(tx, first, done.join)),
            ("invariant", circle_in_one_command),
            ("unknown_target", lambda tx: _end(made_after(tx, root.id, NOWHERE))),
            ("invariant", lambda tx: _end(made_after(tx, apart.id, first))),
            ("invariant", lambda tx: wait_for(tx, first, elsewhere)),
        ],
    )
    await engine.line.submit(lambda tx: wait_for(tx, second_, first))
    assert await refused(engine, lambda tx: wait_for(tx, first, second_)) == "invariant"

    def made_here(tx: Command) -> None:
        conv_id = tx.insert_conversation()
        one = tx.insert_task(conv_id, "generation", GENERATION, status="pending")
        tx.insert_task(
            conv_id,
            "tool",
            ToolState(v=1, call_index=0, call_id="x", name="x"),
            status="planned",
            after=[one],
        )

    assert await engine.line.submit(made_here)


@pytest.mark.spec("VD-07", "VD-13", "IV-07")
async def test_a_task_moves_only_as_its_table_says_and_a_settled_one_never(
    engine: Engine,
) -> None:
    root = await engine.root()
    made: list[Seq] = []
    await engine.line.submit(
        lambda tx: made.append(tx.insert_task(root.id, "generation", GENERATION, status="pending"))
    )

    def with_task(act: Callable[[Command, Any], object]) -> Any:
        async def build(tx: Command) -> None:
            act(tx, await tx.task(made[0]))

        return build

    async def nobody(tx: Command) -> None:
        task = msgspec.structs.replace(await tx.task(made[0]), id=NOWHERE)
        tx.patch(task, status="streaming")

    await table(
        engine,
        [
            ("not_found", nobody),
            ("invariant", with_task(lambda tx, task: tx.patch(task, status="deferred"))),
            ("invariant", with_task(lambda tx, task: tx.patch(task, status="unheard"))),
            ("invariant", with_task(lambda tx, task: tx.patch(task, status="failed"))),
            ("invariant", with_task(lambda tx, task: tx.settle(task, "streaming"))),
            ("invariant", with_task(lambda tx, task: tx.settle(task, "done"))),
            ("invariant", with_task(lambda tx, task: tx.patch(task, unheard=1))),
            ("invariant", with_task(lambda tx, task: tx.patch(task, unset=("unheard",)))),
            ("invariant", with_task(lambda tx, task: tx.patch(task, attempt="one"))),
            ("invariant", with_task(lambda tx, task: tx.patch(task, unset=("settings",)))),
        ],
    )
    await engine.line.submit(with_task(lambda tx, task: tx.settle(task, "failed")))
    for act in (
        lambda tx, task: tx.patch(task, attempt=2),
        lambda tx, task: tx.settle(task, "failed"),
        lambda tx, task: tx.settle(task, "aborted"),
        lambda tx, task: tx.mark_abort(task.id),
    ):
        assert await refused(engine, with_task(act)) == "invariant"
    await engine.kill()
    await engine.open()
    assert (
        await refused(engine, with_task(lambda tx, task: tx.settle(task, "failed"))) == "invariant"
    )


@pytest.mark.spec("VD-08")
async def test_values_and_lists_need_their_conversation(engine: Engine) -> None:
    await engine.open()
    gone = await second(engine)
    await _delete(engine, gone.id)
    await table(
        engine,
        [
            ("unknown_target", lambda tx: _end(tx.set_value(PLAN.bind(NOWHERE), 1))),
            ("unknown_target", lambda tx: tx.delete_value(PLAN.bind(NOWHERE))),
            ("unknown_target", lambda tx: _end(tx.append_list(STEPS.bind(NOWHERE), 1))),
            ("deleted", lambda tx: _end(tx.set_value(PLAN.bind(gone.id), 1))),
            ("deleted", lambda tx: _end(tx.append_list(STEPS.bind(gone.id), 1))),
        ],
    )


@pytest.mark.spec("VD-13")
async def test_one_bad_record_among_good_ones_rejects_them_all(engine: Engine) -> None:
    root = await engine.root()

    async def build(tx: Command) -> None:
        tx.set_value(NOTE, 1)
        tx.insert_entry(root.id, "user", META, USER)
        tx.patch_conversation(root.id, label="x")
        tx.set_value(PLAN.bind(NOWHERE), 1)
        tx.set_value(NOTE, 2)

    assert await refused(engine, build) == "unknown_target"
    assert await engine.harness.get_value(NOTE, "absent") == "absent"
    assert len(await root.entries()) == 0
    assert len((await root.state()).context) == 0


@pytest.mark.spec("VD-13")
async def test_busy_and_stale_have_codes_of_their_own(engine: Engine) -> None:
    root = await engine.root()
    first = await entry_of(engine, root)
    other = await second(engine)
    await exchange(engine, other.id, "a")

    def stale(tx: Command) -> None:
        head = tx.insert_entry(
            root.id, "summary", META, SummaryPayload(v=1, text="x"), through=first
        )
        tx.replace_context(root.id, through=first, head=head, expect_prefix_version=7)

    def again(tx: Command) -> None:
        tx.insert_task(root.id, "generation", GENERATION, status="pending")
        tx.insert_task(root.id, "generation", GENERATION, status="pending")

    await table(
        engine,
        [
            ("version_mismatch", stale),
            ("busy", lambda tx: tx.reset_context(other.id, ())),
            ("busy", again),
            ("busy", lambda tx: tx.delete_conversation(other.id)),
            ("invariant", lambda tx: tx.delete_conversation(root.id)),
        ],
    )


@pytest.mark.spec("VD-14", "CX-21")
async def test_nothing_stands_between_a_call_and_its_result(engine: Engine) -> None:
    root = await engine.root()
    done = await exchange(engine, root.id, "a", "b")

    def user(tx: Command) -> None:
        tx.insert_entry(root.id, "user", META, USER)

    assert await refused(engine, user) == "busy"
    await settle_tool(engine, root.id, done, 1)
    assert await refused(engine, user) == "busy"

    async def inside(tx: Command) -> None:
        # The last result, then a message: legal only in this order.
        user(tx)
        result(tx, root.id, done, 0)
        tx.settle(await tx.task(done.tools[0]), "done")

    assert await refused(engine, inside) == "busy"
    await engine.line.submit(lambda tx: _end(tx.insert_entry(root.id, "input", META, USER)))
    await settle_tool(engine, root.id, done, 0)
    await engine.line.submit(user)
    kinds = [entry.kind for entry in await root.entries()]
    assert kinds == ["assistant", "tool_result", "input", "tool_result", "user"]


@pytest.mark.spec("VD-15")
async def test_every_call_has_exactly_one_result(engine: Engine) -> None:
    root = await engine.root()
    done = await exchange(engine, root.id, "a", "b")
    first, second_ = done.tools

    async def twice_in_one(tx: Command) -> None:
        result(tx, root.id, done, 0)
        result(tx, root.id, done, 0)
        tx.settle(await tx.task(first), "done")

    async def without_settling(tx: Command) -> None:
        result(tx, root.id, done, 0)

    async def for_another(tx: Command) -> None:
        result(tx, root.id, done, 1, by=first)
        tx.settle(await tx.task(first), "done")

    async def nameless(tx: Command) -> None:
        tx.insert_entry(root.id, "tool_result", EntryMeta(), answering("x"), written_by=first)
        tx.settle(await tx.task(first), "done")

    async def by_nobody(tx: Command) -> None:
        tx.insert_entry(
            root.id,
            "tool_result",
            EntryMeta(answers=done.entry),
            answering("x"),
            call_index=0,
        )

    wrong = [twice_in_one, without_settling, for_another, nameless, by_nobody]
    await table(engine, [("invariant", build) for build in wrong])
    await settle_tool(engine, root.id, done, 0)

    async def late(tx: Command) -> None:
        result(tx, root.id, done, 0, by=second_)
        tx.settle(await tx.task(second_), "done")

    async def repeated(tx: Command) -> None:
        result(tx, root.id, done, 0)

    await table(engine, [("invariant", late), ("invariant", repeated), ("invariant", by_nobody)])
    await settle_tool(engine, root.id, done, 1)
    results = [entry for entry in await root.entries() if entry.kind == "tool_result"]
    assert [(entry.meta.answers, entry.call_index) for entry in results] == [
        (done.entry, 0),
        (done.entry, 1),
    ]


@pytest.mark.spec("VD-02", "IV-08")
async def test_a_list_is_a_head_and_whole_exchanges_in_order(engine: Engine) -> None:
    root = await engine.root()
    first = await entry_of(engine, root)
    done = await exchange(engine, root.id, "a", "b")
    answers = [await settle_tool(engine, root.id, done, index) for index in (1, 0)]
    await settle_join(engine, done)
    last = await entry_of(engine, root)
    foreign = await entry_of(engine, await second(engine))
    queued: list[Seq] = []
    await engine.line.submit(
        lambda tx: queued.append(tx.insert_entry(root.id, "input", META, USER))
    )

    def reset(*ids: Seq) -> Build:
        return lambda tx: tx.reset_context(root.id, ids)

    def replace(through: Seq, *, named: Seq | None = None) -> Build:
        def build(tx: Command) -> None:
            head = tx.insert_entry(
                root.id,
                "summary",
                META,
                SummaryPayload(v=1, text="x"),
                through=through if named is None else named,
            )
            tx.replace_context(root.id, through=through, head=head, expect_prefix_version=0)

        return build

    await table(
        engine,
        [
            ("invariant", reset(first, last, done.entry, *answers)),
            ("invariant", reset(first, last, last)),
            ("invariant", reset(first, answers[0], last)),
            ("invariant", reset(first, done.entry, last)),
            ("invariant", reset(first, done.entry, answers[0])),
            ("invariant", reset(first, queued[0])),
            ("unknown_target", reset(NOWHERE)),
            ("unknown_target", reset(foreign)),
            ("invariant", replace(done.entry)),
            ("invariant", replace(answers[0])),
            ("invariant", replace(first, named=last)),
            ("unknown_target", replace(queued[0])),
        ],
    )
    await engine.line.submit(replace(answers[1]))
    state = await root.state()
    assert list(state.context)[1:] == [last]
    assert state.prefix_version == 1
    await engine.line.submit(reset(last, done.entry, *answers))
    assert list((await root.state()).context) == [last, done.entry, *answers]


@pytest.mark.spec("VD-12", "IV-23")
async def test_main_and_working_writes_never_share_a_command(engine: Engine) -> None:
    """The two kinds of command offer no way to mix; what they take is checked one by one."""
    root = await engine.root()
    names = {name for name in dir(Command) if not name.startswith("_")}
    working = {name for name in dir(WorkingCommand) if not name.startswith("_")}
    entity = {"insert_entry", "insert_task", "settle", "patch", "patch_conversation"}
    assert entity <= names
    assert not entity & working
    assert "retire_scope" in names - working
    assert len((await root.state()).context) == 0


@pytest.mark.spec("CX-23")
async def test_meta_and_payload_fit_their_kind(engine: Engine) -> None:
    root = await engine.root()
    head = engine.storage.last_seq
    wrong: list[Build] = [
        lambda tx: tx.insert_entry(root.id, "user", {"bytes": "many"}, USER),
        lambda tx: tx.insert_entry(root.id, "user", {"unheard": 1}, USER),
        lambda tx: tx.insert_entry(root.id, "user", META, {"messages": "none"}),
        lambda tx: tx.insert_entry(root.id, "user", META, {"messages": [], "extra": 1}),
        lambda tx: tx.insert_entry(root.id, "user", META, USER, key="k"),
        lambda tx: tx.insert_entry(root.id, "user", EntryMeta(preview="x" * 2000), USER),
    ]
    await table(engine, [("invariant", lambda tx, one=one: _end(one(tx))) for one in wrong])
    assert engine.storage.last_seq == head


@pytest.mark.spec("QU-15", "IV-08")
async def test_placing_input_needs_a_waiting_item_that_leaves_the_inbox(engine: Engine) -> None:
    root = await engine.root()
    ids: list[Seq] = []

    def admit(tx: Command) -> None:
        ids.append(tx.insert_entry(root.id, "input", META, USER))
        tx.patch_conversation(root.id, inbox=[InboxItem(id=ids[0], kind="followUp", entry=ids[0])])

    await engine.line.submit(admit)
    user = await entry_of(engine, root)

    def place(**facts: Any) -> Build:
        return lambda tx: tx.insert_entry(root.id, "user", META, **{"ref": ids[0], **facts})

    def twice(tx: Command) -> None:
        place()(tx)
        place()(tx)
        tx.patch_conversation(root.id, inbox=[])

    def with_payload(tx: Command) -> None:
        place(payload=USER)(tx)
        tx.patch_conversation(root.id, inbox=[])

    def invented(tx: Command) -> None:
        tx.patch_conversation(root.id, inbox=[InboxItem(id=user, kind="followUp", entry=user)])

    await table(
        engine,
        [
            ("invariant", lambda tx: _end(place()(tx))),
            ("invariant", lambda tx: _end(place(ref=user)(tx))),
            ("invariant", twice),
            ("invariant", with_payload),
            ("invariant", invented),
        ],
    )
    placed: list[Seq] = []

    def right(tx: Command) -> None:
        placed.append(tx.insert_entry(root.id, "user", META, ref=ids[0]))
        tx.patch_conversation(root.id, inbox=[])

    await engine.line.submit(right)
    entry = await root.entry(placed[0])
    assert entry is not None
    assert entry.payload["messages"][0]["content"][0]["text"] == "hi"
    assert await refused(engine, right) == "invariant"


async def _delete(engine: Engine, conv_id: Seq) -> None:
    await engine.line.submit(lambda tx: tx.delete_conversation(conv_id))


def _end(_: object) -> None:
    """Turn a call with an answer into a step of a command."""
