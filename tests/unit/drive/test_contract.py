"""What a kind may be, and what its context lets it do (TK)."""

import msgspec
import pytest
from msgspec import UNSET

from perdure.drive.context import TaskContext
from perdure.errors import Faulted, Interrupted, Rejected
from perdure.harness.overview import root_of
from perdure.line.command import Command
from perdure.line.facts import KindTable, TaskFacts
from perdure.ports import Storage
from perdure.records.codec import to_raw
from perdure.records.seqs import Seq
from perdure.records.tasks import Role, Task
from perdure.records.writes import Commit, InsertTask
from tests.engine import Engine, Gate
from tests.unit.drive.chores import FACTS, Chores, ChoreState, mark, plan, stated, statuses


@pytest.mark.spec("TK-07")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"roles": {**FACTS.roles, "odd": Role.START}}, "'odd' can never end"),
        ({"transitions": {**FACTS.transitions, "planned": frozenset({"nowhere"})}}, "'nowhere'"),
        ({"transitions": {**FACTS.transitions, "nowhere": frozenset({"done"})}}, "'nowhere'"),
        ({"transitions": {**FACTS.transitions, "done": frozenset({"planned"})}}, "terminal"),
        ({"initials": frozenset()}, "no initial status"),
        ({"initials": frozenset({"unborn"})}, "'unborn' has no role"),
    ],
)
def test_a_kind_that_could_not_run_is_refused(change: dict[str, object], words: str) -> None:
    facts: TaskFacts = msgspec.structs.replace(FACTS, **change)
    with pytest.raises(Rejected, match="'chore'") as caught:
        KindTable([facts], [])
    assert words in str(caught.value)


@pytest.mark.spec("TK-22")
async def test_two_kinds_of_one_name_are_refused(memory_engine: Engine) -> None:
    with pytest.raises(Rejected, match="two task kinds are named 'chore'"):
        await memory_engine.open(kinds=[Chores(), Chores()])


@pytest.mark.spec("TK-13")
async def test_state_is_checked_at_creation_and_at_every_patch(engine: Engine) -> None:
    root = await engine.root(kinds=[Chores()])
    head = engine.line.last_seq
    for bad in ({"v": 1, "name": 3}, {"v": 2}, {"v": 1, "extra": 1}):
        with pytest.raises(Rejected, match="does not fit"):
            await root.command(
                lambda tx, bad=bad: _ignore(tx.insert_task(root.id, "chore", bad, status="planned"))
            )
    (chore,) = await plan(engine, "x")
    task = await engine.line.task(chore)
    assert task is not None
    with pytest.raises(Rejected):
        await root.command(lambda tx: tx.patch(task, name=7))
    with pytest.raises(Rejected):
        await root.command(lambda tx: tx.settle(task, "done", name=7))
    assert stated(await _task(engine, chore)).name == "x"
    assert engine.line.last_seq > head


@pytest.mark.spec("TK-14")
async def test_a_patch_merges_fields_and_removes_only_what_it_names(engine: Engine) -> None:
    seen: list[ChoreState] = []

    async def body(task: Task, ctx: TaskContext) -> None:
        await ctx.patch(status="running", note="first")
        await ctx.patch(not_before=5)
        seen.append(stated(await ctx.task()))
        await ctx.patch(unset=("note",))
        seen.append(stated(await ctx.task()))
        with pytest.raises(Rejected, match="no state field 'colour'"):
            await ctx.patch(colour="red")
        await ctx.settle("done")

    await engine.open(kinds=[Chores(x=body)])
    await plan(engine, "x")
    await engine.harness.drive()
    assert [(one.name, one.note, one.not_before) for one in seen] == [
        ("x", "first", 5),
        ("x", UNSET, 5),
    ]


@pytest.mark.spec("TK-15", "TK-16")
async def test_a_context_reaches_its_own_task_and_says_what_it_did(engine: Engine) -> None:
    answers: list[bool] = []
    others: list[Seq] = []

    async def body(task: Task, ctx: TaskContext) -> None:
        answers.append(await ctx.commit(lambda tx: None))
        answers.append(await ctx.patch(status="running"))

        async def other(tx: Command) -> None:
            tx.patch(await tx.task(others[0]), note="from next door")

        answers.append(await ctx.commit(other))
        answers.append(await ctx.settle("done"))
        answers.append(await ctx.settle("done"))

    await engine.open(kinds=[Chores(x=body)])
    (other_id,) = await plan(engine, "other", not_before=engine.clock.now_ms() + 60_000)
    others.append(other_id)
    (chore,) = await plan(engine, "x")
    await engine.harness.drive(wait_timers=False)
    assert answers == [False, True, True, True, False]
    assert await statuses(engine, other_id, chore) == ["planned", "done"]
    assert stated(await _task(engine, other_id)).note == "from next door"


@pytest.mark.spec("TK-17")
async def test_a_sleep_ends_when_the_signal_fires(engine: Engine) -> None:
    woken: list[str] = []

    async def body(task: Task, ctx: TaskContext) -> None:
        await ctx.patch(status="running")
        try:
            await ctx.sleep(3_600_000)
        except Interrupted as interruption:
            woken.append(interruption.reason)
            raise

    await engine.open(kinds=[Chores(x=body)])
    (chore,) = await plan(engine, "x")
    driving = engine.begin(engine.harness.drive())
    await engine.clock.until_asleep()
    await mark(engine, chore)
    await driving
    assert woken == ["abort"]
    assert await statuses(engine, chore) == ["aborted"]


@pytest.mark.spec("TK-18")
async def test_an_exception_a_kind_did_not_expect_faults_the_session(engine: Engine) -> None:
    async def body(task: Task, ctx: TaskContext) -> None:
        raise ZeroDivisionError("a defect of the kind")

    chores = Chores(x=body)
    await engine.open(kinds=[chores])
    (chore,) = await plan(engine, "x")
    with pytest.raises(Faulted, match="a defect of the kind"):
        await engine.harness.drive()
    assert [type(error) for error in engine.errors] == [ZeroDivisionError]
    with pytest.raises(Faulted):
        await engine.harness.drive()
    assert chores.calls == [("effect", "x")]
    assert await statuses(engine, chore) == ["planned"]


@pytest.mark.spec("TK-02", "TK-03")
@pytest.mark.parametrize("ending", ["done", "aborted"])
async def test_after_means_settled_however_it_ended(engine: Engine, ending: str) -> None:
    gate = Gate()

    async def first(task: Task, ctx: TaskContext) -> None:
        await ctx.patch(status="running")
        await gate()
        await ctx.settle(ending)

    chores = Chores(first=first)
    await engine.open(kinds=[chores])
    (before,) = await plan(engine, "first")
    (after,) = await plan(engine, "second", after=[before])
    driving = engine.begin(engine.harness.drive())
    await gate.reached.wait()
    assert await statuses(engine, after) == ["planned"]
    gate.open()
    await driving
    assert chores.calls == [("effect", "first"), ("effect", "second")]
    assert await statuses(engine, before, after) == [ending, "done"]


@pytest.mark.spec("TK-04")
async def test_whom_a_task_is_for_holds_nothing_back(engine: Engine) -> None:
    chores = Chores()
    await engine.open(kinds=[chores])
    root = await engine.harness.root()
    made: list[Seq] = []

    def build(tx: Command) -> None:
        parent = tx.insert_task(root.id, "chore", ChoreState(name="parent"), status="planned")
        child = tx.insert_task(
            root.id, "chore", ChoreState(name="child"), status="planned", spawned_by=parent
        )
        made.extend([parent, child])

    await engine.line.submit(build)

    async def wait_for_child(tx: Command) -> None:
        tx.patch(await tx.task(made[0]), after=[made[1]])

    await engine.line.submit(wait_for_child)
    await engine.harness.drive()
    assert chores.calls == [("effect", "child"), ("effect", "parent")]


@pytest.mark.spec("TK-11")
async def test_parking_leaves_no_handler_alive(engine: Engine) -> None:
    gate = Gate()
    children: list[Seq] = []

    async def parent(task: Task, ctx: TaskContext) -> None:
        def spawn(tx: Command) -> None:
            child = tx.insert_task(ctx.conv_id, "chore", ChoreState(name="child"), status="planned")
            tx.patch(task, after=[child])
            children.append(child)

        if task.after:
            await ctx.settle("done")
            return
        await ctx.commit(spawn)

    async def child(task: Task, ctx: TaskContext) -> None:
        await ctx.patch(status="running")
        await gate()
        await ctx.settle("done")

    chores = Chores(parent=parent, child=child)
    await engine.open(kinds=[chores])
    (parent_id,) = await plan(engine, "parent")
    driving = engine.begin(engine.harness.drive())
    await gate.reached.wait()
    assert list(engine.harness._core.scheduler.running()) == children
    gate.open()
    await driving
    assert await statuses(engine, parent_id, children[0]) == ["done", "done"]


@pytest.mark.spec("TK-06", "SC-09")
async def test_roles_alone_decide_which_method_runs(engine: Engine) -> None:
    await engine.open(kinds=[Chores()])
    await plan(engine, "starts")
    await plan(engine, "runs", status="running")
    await plan(engine, "waits", status="waiting")
    await engine.kill()
    chores = Chores()
    await engine.open(kinds=[chores])
    await engine.harness.drive()
    assert sorted(chores.calls) == [
        ("effect", "starts"),
        ("recover", "runs"),
        ("recover", "waits"),
    ]
    await engine.harness.drive()
    assert len(chores.calls) == 3, "a terminal task is left alone"


@pytest.mark.spec("TK-19")
async def test_a_terminal_task_takes_no_further_write(engine: Engine) -> None:
    await engine.open(kinds=[Chores()])
    (chore,) = await plan(engine, "x")
    await engine.harness.drive()

    async def again(tx: Command) -> None:
        tx.settle(await tx.task(chore), "done")

    async def patch(tx: Command) -> None:
        tx.patch(await tx.task(chore), note="late")

    for _ in range(2):
        for build in (again, patch):
            with pytest.raises(Rejected):
                await engine.line.submit(build)
        await engine.close()
        await engine.open(kinds=[Chores()])


@pytest.mark.spec("TK-20")
async def test_nothing_public_marks_a_single_task(engine: Engine) -> None:
    root = await engine.root(kinds=[Chores()])
    (chore,) = await plan(engine, "x", not_before=engine.clock.now_ms() + 60_000)
    public = {name for name in dir(root) if not name.startswith("_")}
    public |= {name for name in dir(engine.harness) if not name.startswith("_")}
    assert not {"cancel_task", "abort_task", "mark_abort", "stop_task"} & public
    with pytest.raises(Rejected, match="abort its conversation"):
        await root.command(lambda tx: tx.mark_abort(chore))

    async def patch(tx: Command) -> None:
        tx.patch(await tx.task(chore), abort_requested=True)

    with pytest.raises(Rejected, match="abort_requested"):
        await root.command(patch)


@pytest.mark.spec("TK-08")
async def test_storage_knows_no_status_words(engine: Engine) -> None:
    await engine.open(kinds=[Chores()])
    await plan(engine, "x", status="waiting")
    await engine.close()
    storage = await engine.sessions.open("test", create=False)
    root = await _root_id(storage)
    seq = Seq(storage.last_seq + 1)
    write = InsertTask(
        seq=seq, conv_id=root, kind="unheard-of", status="beyond", state_json=to_raw({"v": 9})
    )
    await storage.commit(
        Commit(first_seq=seq, last_seq=seq, time_ms=2_000_000_000_000, writes=(write,)),
        barrier=False,
    )
    assert (await storage.tasks([seq]))[seq].status == "beyond"
    await storage.close()


async def _root_id(storage: Storage) -> Seq:
    state = await root_of(storage)
    assert state is not None
    return state.id


async def _task(engine: Engine, task_id: Seq) -> Task:
    task = await engine.line.task(task_id)
    assert task is not None
    return task


def _ignore(_: object) -> None:
    return None
