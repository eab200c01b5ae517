"""What memory holds: two formulas, after every commit, however long the journal is (RS, IV-09)."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from perdure.errors import Rejected
from perdure.line.command import Command
from perdure.line.line import Delivery
from perdure.line.residency import VALUE_CACHED_BYTES_MAX, VALUES_CACHED_MAX
from perdure.ports import Storage, ToolContext
from perdure.providers.script import call, fail, say
from perdure.records.addresses import OUTPUT, ConversationValue, SessionValue, task_scope
from perdure.records.conversations import ConversationState, ParentLink
from perdure.records.entries import EntryMeta
from perdure.records.messages import SummaryPayload
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage
from perdure.records.tasks import Task
from perdure.toolkits.define import Output
from tests.engine import Engine, Gate, Probe
from tests.unit.line.test_validation import META, USER, entry_of

PLAN = ConversationValue[object]("test.plan")


class Formulas:
    """Fold every delivery into plain tables and compare residency with the formulas."""

    def __init__(self, engine: Engine, attached: set[Seq]) -> None:
        self.engine = engine
        self.attached = attached
        self.conversations: dict[Seq, ConversationState] = {}
        self.tasks: dict[Seq, Task] = {}
        self.checked = 0
        engine.line.listen(self.check)

    def check(self, delivery: Delivery) -> None:
        for task in delivery.tasks:
            self.tasks[task.id] = task
        held = self.engine.line.residency
        for conv_id in self._live_conversations():
            state = held.conversation(conv_id)
            assert state is not None, f"conversation {conv_id} is live and not resident"
            self.conversations[conv_id] = state
        live = self._live_conversations()
        entries = {seq for conv_id in live for seq in self.conversations[conv_id].context}
        tasks = {task.id for task in self.tasks.values() if held.is_live(task)}
        for conv_id in live:
            mine = [
                task.id
                for task in self.tasks.values()
                if task.conv_id == conv_id and task.kind == "generation"
            ]
            tasks |= {max(mine)} if mine else set()
        assert set(held._entries) == entries
        assert set(held._tasks) == tasks
        assert set(held._conversations) == live
        self.checked += 1

    def _live_conversations(self) -> set[Seq]:
        held = self.engine.line.residency
        live = {task.conv_id for task in self.tasks.values() if held.is_live(task)}
        return live | self.attached


@pytest.mark.spec("RS-01", "RS-02", "IV-09")
async def test_residency_is_the_two_formulas_after_every_commit(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root(
        [
            say(call("a"), call("b")),
            say("one"),
            fail("auth", "half"),
            say(call("wait")),
            say("after"),
        ],
        tools=[Probe("a"), Probe("b"), Probe("wait", gate=gate)],
    )
    await root.set_value(PLAN, 0)  # the first use makes the handle's conversation resident
    formulas = Formulas(engine, {root.id})
    await root.prompt("hello")
    await root.prompt("fails")
    await root.accept("aborted")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.follow_up("later")
    await root.abort()
    await driving
    await root.prompt("again")
    first = (await root.state()).context[0]

    def collapse(tx: Command) -> None:
        head = tx.insert_entry(
            root.id, "summary", META, SummaryPayload(v=1, text="x"), through=first
        )
        tx.replace_context(root.id, through=first, head=head, expect_prefix_version=0)

    await engine.line.submit(collapse)
    await root.reset_context()
    assert not engine.errors
    assert formulas.checked > 20


@pytest.mark.spec("RS-03")
async def test_what_leaves_a_list_leaves_memory_and_what_joins_is_loaded(engine: Engine) -> None:
    root = await engine.root()
    first = await entry_of(engine, root)
    second = await entry_of(engine, root)
    await root.reset_context([second])
    held = engine.line.residency
    assert held.entry(first) is None
    assert held.entry(second) is not None
    boundary = (await root.state()).commit_end
    made: list[Seq] = []

    def fork(tx: Command) -> None:
        link = ParentLink(conv_id=root.id, as_of=boundary, inherit_values=True)
        made.append(tx.insert_conversation(parent=link, context=[first, second]))
        tx.insert_task(
            made[0],
            "generation",
            {"v": 1, "settings": "0" * 64},
            status="pending",
        )

    await engine.line.submit(fork)
    assert held.entry(first) is not None
    assert (await root.entry(first)) == held.entry(first)

    async def settle(tx: Command) -> None:
        tx.settle(tx.live_tasks(made[0])[0], "failed")

    await engine.line.submit(settle)
    assert held.conversation(made[0]) is None
    assert held.entry(first) is None
    assert held.entry(second) is not None, "the parent still lists what the fork shared"


@pytest.mark.spec("RS-04", "IV-10", "OP-17")
@pytest.mark.parametrize(
    "turns", [300, pytest.param(100_000, marks=[pytest.mark.deep, pytest.mark.timeout(1200)])]
)
async def test_residency_and_open_do_not_depend_on_the_journal(engine: Engine, turns: int) -> None:
    root = await engine.root()
    root_id = root.id
    counts: list[tuple[int, int, int]] = []
    for _ in range(3):
        for _ in range(turns // 30):
            await engine.line.submit(lambda tx: _turns(tx, root_id, 10))
        state = await root.state()

        def collapse(tx: Command, state: ConversationState = state) -> None:
            through = state.context[-3]
            head = tx.insert_entry(
                root_id, "summary", META, SummaryPayload(v=1, text="x"), through=through
            )
            tx.replace_context(
                root_id,
                through=through,
                head=head,
                expect_prefix_version=state.prefix_version,
            )

        await engine.line.submit(collapse)
        assert engine.line.residency.counts()[2] == 3
        await engine.kill()
        root = await engine.root()
        assert engine.line.residency.counts() == (0, 0, 0)
        engine.storage.reads.clear()
        await root.set_value(PLAN, 1)
        counts.append(engine.line.residency.counts())
        assert sorted(set(engine.storage.reads) - {"info"}) == [
            "conversations", "entries", "scan_tasks",
        ]  # fmt: skip
    assert counts == [(1, 0, 3)] * 3


@pytest.mark.spec("RS-05")
async def test_the_value_cache_is_bounded_and_drops_the_least_used(engine: Engine) -> None:
    harness = await engine.open()

    def address(number: int) -> SessionValue[object]:
        return SessionValue[object]("test.many", str(number))

    def fill(tx: Command) -> None:
        for number in range(VALUES_CACHED_MAX):
            tx.set_value(address(number), number)
        tx.set_value(SessionValue[object]("test.large"), "x" * VALUE_CACHED_BYTES_MAX)

    await harness.command(fill)
    held = engine.line.residency
    assert len(held._values) <= VALUES_CACHED_MAX
    await harness.get_value(address(0), None)
    engine.storage.reads.clear()
    assert await harness.get_value(address(0), None) == 0
    assert not engine.storage.reads
    await harness.set_value(SessionValue[object]("test.new"), 1)
    await harness.set_value(SessionValue[object]("test.newer"), 1)
    assert len(held._values) == VALUES_CACHED_MAX
    engine.storage.reads.clear()
    assert await harness.get_value(address(0), None) == 0
    assert not engine.storage.reads, "what was used last must outlive what was not"
    assert await harness.get_value(address(1), None) == 1
    assert engine.storage.reads == ["value"]
    engine.storage.reads.clear()
    large = SessionValue[object]("test.large")
    assert len(await harness.get_value(large, "")) == VALUE_CACHED_BYTES_MAX
    await harness.get_value(large, "")
    assert engine.storage.reads == ["value"] * 2


@pytest.mark.spec("RS-06")
async def test_a_hit_reads_no_storage_and_a_miss_one_ordinary_read(engine: Engine) -> None:
    root = await engine.root([say("hi")])
    await root.set_value(PLAN, "kept")
    accepted = await root.accept("hello")
    await root.drive()
    task_id = (await root.tasks())[-1].id
    for misses in (0, 1):
        if misses:
            await engine.kill()
            root = await engine.root()
        engine.storage.reads.clear()
        assert await root.get_value(PLAN, None) == "kept"
        assert await root.entry(accepted.input_id) is not None
        assert await root.task(task_id) is not None
        wanted = ["value", "entries", "tasks"] if misses else []
        assert [name for name in engine.storage.reads if name != "info"] == wanted


@pytest.mark.spec("RS-07")
async def test_thousands_of_versions_leave_residency_flat(engine: Engine) -> None:
    root = await engine.root()
    await root.set_value(PLAN, 0)
    held = engine.line.residency
    before, cached = held.counts(), len(held._values)

    def build(tx: Command) -> None:
        for number in range(3_000):
            tx.set_value(PLAN.bind(root.id), {"version": number})

    await engine.line.submit(build)
    assert held.counts() == before
    assert len(held._values) == cached


@pytest.mark.spec("RS-09")
async def test_a_conversation_is_resident_while_something_keeps_it(engine: Engine) -> None:
    root = await engine.root()
    held = engine.line.residency
    boundary = (await root.state()).commit_end
    made: list[Seq] = []

    def child(tx: Command) -> None:
        link = ParentLink(conv_id=root.id, as_of=boundary, inherit_values=False)
        made.append(tx.insert_conversation(parent=link))
        tx.insert_entry(made[0], "user", META, USER)

    await engine.line.submit(child)
    conv_id = made[0]
    assert held.conversation(conv_id) is None, "nothing keeps it"
    await engine.line.submit(lambda tx: _end(tx.set_value(PLAN.bind(conv_id), 1)))
    assert held.conversation(conv_id) is None
    with pytest.raises(Rejected):
        await engine.line.submit(lambda tx: _wrong(tx, conv_id))
    assert held.conversation(conv_id) is None, "a refused command keeps nothing"

    handle = await engine.harness.conversation(conv_id)
    assert handle is not None
    async with handle:
        await handle.set_value(PLAN, 2)
        assert held.conversation(conv_id) is not None
        assert held.counts()[2] == 1
    assert held.conversation(conv_id) is None
    assert held.counts()[2] == 0


@pytest.mark.spec("RS-09")
async def test_a_conversation_is_resident_while_it_has_live_work(engine: Engine) -> None:
    root = await engine.root()
    boundary = (await root.state()).commit_end
    made: list[Seq] = []

    def child(tx: Command) -> None:
        link = ParentLink(conv_id=root.id, as_of=boundary, inherit_values=False)
        made.append(tx.insert_conversation(parent=link))
        tx.insert_entry(made[0], "user", META, USER)

    await engine.line.submit(child)
    conv_id, held = made[0], engine.line.residency
    await engine.line.submit(lambda tx: _generation(tx, conv_id))
    assert held.conversation(conv_id) is not None
    await engine.kill()
    await engine.open()
    held = engine.line.residency
    assert held.conversation(conv_id) is not None, "live work is resident after open"
    assert held.counts() == (1, 1, 1)

    async def settle(tx: Command) -> None:
        # Nothing in this command touches the conversation itself.
        tx.settle(tx.live_tasks(conv_id)[0], "failed")

    await engine.line.submit(settle)
    assert held.conversation(conv_id) is None
    assert held.counts() == (0, 0, 0)


@pytest.mark.spec("RS-09")
async def test_an_owned_conversation_is_resident_while_its_owner_lives(engine: Engine) -> None:
    root = await engine.root()
    await engine.line.submit(lambda tx: _generation(tx, root.id))
    owner = engine.line.residency.live_tasks()[0].id
    made: list[Seq] = []

    async def own(tx: Command) -> None:
        made.append(tx.insert_conversation(owner=owner))
        tx.patch(await tx.task(owner), owns=made[0])

    await engine.line.submit(own)
    assert engine.line.residency.conversation(made[0]) is not None
    await engine.kill()
    await engine.open()
    assert engine.line.residency.conversation(made[0]) is not None

    async def settle(tx: Command) -> None:
        tx.settle(await tx.task(owner), "failed")

    await engine.line.submit(settle)
    assert engine.line.residency.counts() == (0, 0, 0)


@pytest.mark.spec("RS-09")
async def test_a_projection_is_forgotten_with_its_conversation(engine: Engine) -> None:
    root = await engine.root([say("hi")])
    projections = engine.harness._core.services.projections
    async with root:
        await root.prompt("hello")
        assert set(projections._caches) == {root.id}
    assert not projections._caches


@pytest.mark.spec("RS-10")
async def test_a_chatty_tool_keeps_its_working_data_bounded(engine: Engine) -> None:
    cap = 1_000
    written = asyncio.Event()
    gate = Gate()

    async def chat(_: Mapping[str, Any], ctx: ToolContext) -> object:
        for number in range(200):
            ctx.out.write(f"{number:03}" * 100)
            await ctx.out.progress({"number": number})
        written.set()
        await gate()
        return None

    tool = Probe("chat", body=chat, output=Output(bytes_max=cap))
    root = await engine.root([say(call("chat")), say("done")], tools=[tool])
    await root.accept("hello")
    driving = engine.begin(root.drive())
    await written.wait()
    task = next(one for one in await root.tasks(live=True) if one.kind == "tool")
    scope = task_scope(task.id)
    kept: list[int] = []

    async def look(tx: Command) -> None:
        page = await tx.read_list(scope.list(OUTPUT, "1"), ListPage(limit=1000))
        kept.extend(len(element.value_json) for element in page)

    await engine.line.submit(look)
    assert sum(kept) <= 5 * cap
    gate.open()
    await driving
    assert not await _anything(engine, scope.list(OUTPUT, "1"))


async def _anything(engine: Engine, address: Any) -> bool:
    return bool(await engine.storage.inner.elements(address, ListPage(limit=10)))


def _turns(tx: Command, conv_id: Seq, count: int) -> None:
    for _ in range(count):
        tx.insert_entry(conv_id, "user", META, USER)
        tx.insert_entry(conv_id, "user", EntryMeta(timestamp=2), USER)


def _generation(tx: Command, conv_id: Seq) -> None:
    tx.insert_task(conv_id, "generation", {"v": 1, "settings": "0" * 64}, status="pending")


def _wrong(tx: Command, conv_id: Seq) -> None:
    tx.insert_entry(conv_id, "user", META, USER)
    tx.insert_entry(Seq(999_999), "user", META, USER)


def _end(_: object) -> None:
    """Turn a call with an answer into a step of a command."""


@pytest.mark.spec("RS-01")
async def test_a_handle_that_goes_while_its_commit_is_stored_takes_nothing_along(
    engine: Engine,
) -> None:
    root = await engine.root([say("one"), say("two")])
    await root.prompt("first")
    held = engine.storage.hold(lambda commit: commit.time_ms > 0)
    accepting = engine.begin(root.accept("second"))
    await held.reached.wait()
    await root.__aexit__()
    held.open()
    await accepting
    again = await engine.harness.root()
    await again.drive()
    assert [len(request.messages) for request in engine.models.requests] == [1, 3]


async def test_a_slow_load_never_brings_back_an_older_state(engine: Engine) -> None:
    root = await engine.root([say("one"), say("two")])
    await root.prompt("first")
    await root.__aexit__()
    held, storage = engine.line.residency, SlowEntries(engine.storage)
    assert held.conversation(root.id) is None
    loading = engine.begin(held.load(cast("Storage", storage), root.id))
    await storage.gate.reached.wait()
    again = await engine.harness.root()
    await again.prompt("second")
    newest = held.conversation(root.id)
    storage.gate.open()
    assert await loading is newest
    assert held.conversation(root.id) is newest


class SlowEntries:
    """A storage whose entries come when a gate opens; all else as it is."""

    def __init__(self, inner: object) -> None:
        self.gate = Gate()
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def entries(self, seqs: list[Seq]) -> Any:
        await self.gate()
        return await cast("Any", self._inner).entries(seqs)
