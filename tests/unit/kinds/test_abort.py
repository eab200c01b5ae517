"""Abort: marks first, joined work, one settlement each, and what was said meanwhile (CN)."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from perdure.drive.context import TaskContext
from perdure.drive.outcomes import DriveOutcome
from perdure.errors import Faulted, Rejected
from perdure.harness.cancellation import shutdown
from perdure.line.command import Command
from perdure.ports import ToolContext
from perdure.providers.script import call, say, think
from perdure.records.addresses import task_scope
from perdure.records.seqs import Seq
from perdure.records.tasks import Task
from perdure.records.writes import InsertTask, RetireScope, SettleTask
from tests.engine import Engine, Gate, Probe, task_moves, writes
from tests.unit.drive.chores import Chores, mark, new_conversation, plan, statuses
from tests.unit.kinds.turns import (
    USED,
    failing,
    generation,
    generations,
    kinds,
    outcomes,
    settlement,
    tasks_of,
    usage_of,
)


class Stubborn(Gate):
    """A gate that, cancelled, still waits to be released."""

    def __init__(self) -> None:
        super().__init__()
        self.release = Gate()

    async def __call__(self) -> None:
        try:
            await super().__call__()
        finally:
            await self.release()


@pytest.mark.spec("CN-01", "CN-02", "CN-19")
async def test_abort_marks_and_drains_in_one_barrier_command(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("x", gates={0: gate})])
    await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    follow = await root.follow_up("later")
    steer = await root.steer("left")
    await root.append_message("noted")
    await root.next_run("next run")
    before = len(engine.storage.commits_made)
    report = await root.abort()
    (commit,) = engine.storage.commits_made[before : before + 1]
    assert commit in engine.storage.barriers
    (task,) = await generations(root)
    assert report.marked == (task.id,)
    assert not report.joined
    assert [(one.input_id, one.mode) for one in report.drained] == [
        (follow.input_id, "followUp"),
        (steer.input_id, "steer"),
    ]
    assert [
        [getattr(part, "text", "") for part in one.messages[0].content] for one in report.drained
    ] == [["later"], ["left"]]
    assert [item.kind for item in (await root.state()).inbox] == ["write", "nextRun"]
    for gone in (follow, steer):
        result = await root.result(gone.input_id)
        assert (result.state, result.withdrawn_by) == ("withdrawn", "abort")


@pytest.mark.spec("CN-19", "CN-17", "CN-05")
async def test_without_a_drive_marks_stay_and_survive_a_kill(engine: Engine) -> None:
    pay = Probe("pay")
    root = await engine.root([say(call("pay"))], tools=[pay])
    accepted = await root.accept("hi")
    report = await root.abort()
    waiting = engine.begin(root.wait_for_idle())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done(), "still busy"
    await engine.kill()
    root = await engine.root([], tools=[pay])
    assert [t.id for t in engine.harness.inspect().start if t.abort_requested] == list(
        report.marked
    )
    assert engine.models.requests == []
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    assert (await root.result(accepted.input_id)).state == "aborted"
    assert engine.models.requests == []
    assert await kinds(root) == ["user"]


@pytest.mark.spec("CN-03", "CN-07", "CN-08")
async def test_a_second_abort_joins_the_first_and_drains_nothing(engine: Engine) -> None:
    gate, cleanup = Gate(), Gate()

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        try:
            await gate()
        finally:
            await cleanup()

    root = await engine.root([say(call("t")), say("after")], tools=[Probe("t", body=body)])
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    first = await root.abort()
    await cleanup.reached.wait()
    queued = await root.accept("while cancelling")
    assert (await root.result(queued.input_id)).state == "queued"
    assert len(await generations(root)) == 1
    second = await root.abort()
    assert (second.joined, second.marked, second.drained) == (True, (), ())
    assert [item.id for item in (await root.state()).inbox] == [queued.input_id]
    marked = [task.id for task in await root.tasks() if task.abort_requested]
    assert marked == list(first.marked)
    cleanup.open()
    await driving
    assert (await root.result(queued.input_id)).text == "after"


@pytest.mark.spec("CN-06", "CN-24", "CN-14")
@pytest.mark.parametrize("last", ["tool", "generation", "join"])
async def test_the_last_settlement_starts_what_was_accepted_after_the_abort(
    engine: Engine, last: str
) -> None:
    gate = Stubborn()
    first = say("x", gates={0: gate}) if last == "generation" else say(call("t"))
    tool = Probe("t") if last == "join" else Probe("t", gate=gate)
    root = await engine.root([first, say("after")], tools=[tool])
    await root.accept("hi")
    if last == "join":
        held = engine.storage.hold(_creates_generation_by_settling)
        engine.begin(root.drive())
        await held.reached.wait()
        await engine.kill()
        root = await engine.root([say("after")], tools=[tool])
        await root.abort()
    else:
        engine.begin(root.drive())
        await gate.reached.wait()
        await root.abort()
    prompt = await root.accept("P")
    steer = await root.steer("S")
    await root.append_message("W")
    waits = await root.next_run("N")
    gate.release.open()
    await root.drive()
    made = await generations(root)
    assert len(made) == 2
    assert set(generation(made[1]).inputs) == {prompt.input_id, steer.input_id}
    for accepted in (prompt, steer):
        assert (await root.result(accepted.input_id)).text == "after"
    assert [item.id for item in (await root.state()).inbox] == [waits.input_id]
    commit = next(
        c
        for c in await engine.commits()
        if any(isinstance(w, InsertTask) and w.seq == made[1].id for w in c.writes)
    )
    assert [w.status for w in commit.writes if isinstance(w, SettleTask)] == ["aborted"]


@pytest.mark.spec("CN-24")
async def test_what_was_accepted_waits_for_every_marked_task(engine: Engine) -> None:
    gates = {"quick": Stubborn(), "slow": Stubborn()}
    tools = [Probe(name, gate=gate) for name, gate in gates.items()]
    root = await engine.root([say(*(call(name) for name in gates)), say("after")], tools=tools)
    await root.accept("hi")
    engine.begin(root.drive())
    for gate in gates.values():
        await gate.reached.wait()
    await root.abort()
    prompt = await root.accept("P")
    gates["quick"].release.open()
    await engine.storage.until(writes(SettleTask, status="aborted"))
    assert len(await generations(root)) == 1
    assert [item.id for item in (await root.state()).inbox] == [prompt.input_id]
    gates["slow"].release.open()
    await root.drive()
    assert (await root.result(prompt.input_id)).text == "after"
    assert len(await generations(root)) == 2


def _creates_generation_by_settling(commit: Any) -> bool:
    kinds_made = [w.kind for w in commit.writes if isinstance(w, InsertTask)]
    return kinds_made == ["generation"] and any(isinstance(w, SettleTask) for w in commit.writes)


@pytest.mark.spec("CN-24", "CN-06")
async def test_with_nothing_but_steering_queued_the_cancellation_ends_quietly(
    engine: Engine,
) -> None:
    gate = Stubborn()
    root = await engine.root([say("x", gates={0: gate})])
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    await root.steer("S")
    await root.append_message("W")
    await root.next_run("N")
    gate.release.open()
    await driving
    assert len(await generations(root)) == 1
    assert [item.kind for item in (await root.state()).inbox] == ["steer", "write", "nextRun"]


@pytest.mark.spec("CN-09", "CN-10", "CN-11", "CN-13")
async def test_every_marked_invocation_is_signalled_before_any_is_waited_for(
    engine: Engine,
) -> None:
    order: list[str] = []
    stubborn, quick = Gate(), Gate()
    release = Gate()

    def body(name: str, gate: Gate) -> Any:
        async def run(args: Mapping[str, Any], ctx: ToolContext) -> None:
            try:
                await gate()
            except asyncio.CancelledError:
                order.append(f"{name} signalled")
                if name == "stubborn":
                    await release()
                raise

        return run

    root = await engine.root(
        [say(call("stubborn"), call("quick"))],
        tools=[
            Probe("stubborn", body=body("stubborn", stubborn)),
            Probe("quick", body=body("quick", quick)),
        ],
    )
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await asyncio.gather(stubborn.reached.wait(), quick.reached.wait())
    await root.abort()
    await release.reached.wait()
    slow, fast = await tasks_of(root, "tool")
    await engine.storage.until(
        lambda c: any(isinstance(w, SettleTask) and w.task_id == fast.id for w in c.writes)
    )
    assert order == ["stubborn signalled", "quick signalled"]
    assert (await statuses(engine, slow.id, fast.id)) == ["running", "aborted"]
    assert not driving.done()
    release.open()
    await driving
    assert await statuses(engine, slow.id) == ["aborted"]


@pytest.mark.spec("CN-12")
@pytest.mark.parametrize("kind_of_error", ["plain", "fault"])
async def test_an_exception_of_the_joined_invocation_is_reported_only(
    engine: Engine, kind_of_error: str
) -> None:
    async def body(task: Task, ctx: TaskContext) -> None:
        await ctx.patch(status="running")
        try:
            await ctx.sleep(1_000_000)
        finally:
            if kind_of_error == "fault":
                raise Faulted("the disk is gone")
            raise LookupError("while stopping")

    chores = Chores(x=body)
    await engine.open(kinds=[chores])
    (chore,) = await plan(engine, "x")
    driving = engine.begin(engine.harness.drive())
    await engine.clock.until_asleep()
    await mark(engine, chore)
    if kind_of_error == "fault":
        with pytest.raises(Faulted, match="disk is gone"):
            await driving
        assert chores.calls == [("effect", "x")]
        return
    await driving
    assert [type(error) for error in engine.errors] == [LookupError]
    assert chores.calls == [("effect", "x"), ("abort", "x")]
    assert await statuses(engine, chore) == ["aborted"]


@pytest.mark.spec("CN-15", "CN-04")
async def test_an_owner_aborts_after_its_marked_descendants(engine: Engine) -> None:
    order: list[str] = []
    gate = Gate()

    async def owner_abort(task: Task, ctx: TaskContext) -> None:
        order.append("owner")
        await ctx.settle("aborted")

    async def child_abort(task: Task, ctx: TaskContext) -> None:
        await gate()
        order.append("child")
        await ctx.settle("aborted")

    chores = Chores(owner_abort=owner_abort, child_abort=child_abort)
    root = await engine.root([], kinds=[chores])
    (owner,) = await plan(engine, "owner", status="waiting")
    made: list[Any] = []

    async def own(tx: Command) -> None:
        child = tx.insert_conversation(owner=owner)
        tx.patch(await tx.task(owner), owns=child)
        made.append(child)

    await engine.line.submit(own)
    (child,) = await plan(engine, "child", conv_id=made[0], status="waiting")
    await mark(engine, owner, child)
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    running = engine.harness._core.scheduler.running()
    assert list(running) == [child], "no handler is held waiting for a descendant"
    gate.open()
    await driving
    assert order == ["child", "owner"]


@pytest.mark.spec("CN-01", "CN-04", "CN-21")
@pytest.mark.parametrize("verb", ["abort", "shutdown"])
async def test_the_closure_takes_owned_foreground_with_its_queue_and_no_detached_work(
    engine: Engine, verb: str
) -> None:
    gate = Gate()
    replies = [say("x", gates={0: gate}), say("y", gates={0: Gate()})]
    root = await engine.root(replies, kinds=[Chores()])
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    (running,) = await generations(root)
    (owner,) = await plan(engine, "owner", status="waiting", spawned_by=running.id)
    made: list[Any] = []

    async def own(tx: Command) -> None:
        made.append(tx.insert_conversation(owner=owner))
        tx.patch(await tx.task(owner), owns=made[0])

    await engine.line.submit(own)
    child = await engine.harness.conversation(made[0])
    assert child is not None
    await child.accept("work")
    (detached,) = await plan(engine, "detached", conv_id=child.id, status="asking")
    queued = [(await conv.follow_up("later")).input_id for conv in (root, child)]
    kept = (await child.next_run("next")).input_id
    report = await getattr(root, verb)() if verb == "abort" else await shutdown(
        engine.harness._core, root.id)  # fmt: skip
    (work,) = [task for task in await child.tasks() if task.kind == "generation"]
    targets = [running.id, owner, work.id]
    assert sorted(report.marked) == sorted(targets + [detached] * (verb == "shutdown"))
    assert [one.input_id for one in report.drained] == queued
    for conv, one in zip((root, child), queued, strict=True):
        assert (await conv.result(one)).state == "withdrawn"
    assert [item.id for item in (await child.state()).inbox] == [kept]
    await driving
    assert await statuses(engine, *targets) == ["aborted"] * 3
    assert await statuses(engine, detached) == ["asking" if verb == "abort" else "aborted"]


@pytest.mark.spec("CN-20", "IV-04")
async def test_after_the_drive_everything_selected_is_terminal_and_answered(
    engine: Engine,
) -> None:
    gates = [Gate(), Gate()]
    later = engine.clock.now_ms() + 60_000
    root = await engine.root(
        [say("text", call("a"), call("b"), call("c"))],
        tools=[Probe("a", gate=gates[0]), Probe("b", gate=gates[1]), Probe("c")],
        kinds=[Chores()],
    )
    (background,) = await plan(engine, "background", not_before=later)
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await asyncio.gather(*(gate.reached.wait() for gate in gates))
    await engine.storage.until(task_moves("done"))
    report = await root.abort()
    await driving
    found = await engine.storage.inner.tasks(report.marked)
    assert {task.status for task in found.values()} == {"aborted"}
    assert len(await outcomes(root)) == 3
    retired = {
        w.working_scope
        for commit in await engine.commits()
        for w in commit.writes
        if isinstance(w, RetireScope)
    }
    assert {task_scope(seq).id for seq in report.marked} <= retired
    assert await statuses(engine, background) == ["planned"], "detached work lives"


@pytest.mark.spec("CN-20")
async def test_an_aborted_request_leaves_no_scope(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("x", gates={0: gate})])
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    report = await root.abort()
    await driving
    ended = await settlement(engine, report.marked[0])
    scopes = [write.working_scope for write in ended.writes if isinstance(write, RetireScope)]
    assert scopes == [task_scope(seq).id for seq in report.marked]


@pytest.mark.spec("CN-22")
async def test_abort_on_an_idle_conversation_only_drains(engine: Engine) -> None:
    root = await engine.root([failing("auth")])
    head = engine.line.last_seq
    report = await root.abort()
    assert (report.marked, report.drained, report.joined) == ((), (), False)
    assert engine.line.last_seq == head
    gate = engine.storage.hold(task_moves("failed"))
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    following = engine.begin(root.follow_up("queued behind a failure"))
    gate.open()
    await driving
    follow = await following
    report = await root.abort()
    assert (report.marked, len(report.drained)) == ((), 1)
    assert (await root.result(follow.input_id)).state == "withdrawn"
    assert [t for t in await root.tasks() if t.abort_requested] == []


@pytest.mark.spec("GN-34", "GN-45", "PV-12")
async def test_an_aborted_stream_keeps_its_partial_and_reported_usage(engine: Engine) -> None:
    gate = Gate()
    early = USED.__class__(
        input=100, output=None, cache_read=5, cache_write=0, reasoning=None, cost=None
    )
    root = await engine.root(
        [say("half", think("deep"), call("never finished"), gates={8: gate}, usage_early=early)],
        tools=[Probe("never finished")],
    )
    accepted = await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    await driving
    (task,) = await generations(root)
    assert task.status == "aborted"
    result = await root.result(accepted.input_id)
    assert result.state == "aborted"
    assert result.partial is not None
    assert (result.partial.text, result.partial.stop) == ("half", "aborted")
    assert result.partial.calls == (), "the unfinished call is dropped"
    assert len(result.partial.content) == 1, "and the thinking before it"
    (record,) = await usage_of(engine)
    assert (record.input, record.output, record.task) == (100, None, task.id)
    commit = await settlement(engine, task.id)
    assert {type(w).__name__ for w in commit.writes} >= {"InsertEntry", "AppendList", "RetireScope"}
    assert (await engine.harness.usage_totals()).unknown_attempts == 0


@pytest.mark.spec("GN-34", "US-04")
async def test_an_aborted_stream_without_a_report_stays_unknown(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("half", "more", gates={4: gate}, usage=USED)])
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    await driving
    assert await usage_of(engine) == []
    assert (await engine.harness.usage_totals()).unknown_attempts == 1


@pytest.mark.spec("GN-34")
async def test_an_abort_of_finished_calls_answers_each(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root(
        [say(call("a"), call("b"), "tail", gates={7: gate})], tools=[Probe("a")]
    )
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    await driving
    assert await outcomes(root) == ["notStarted"] * 2
    assert await kinds(root) == ["user", "assistant", "tool_result", "tool_result"]


@pytest.mark.spec("GN-35", "CN-13")
async def test_a_generation_that_never_started_leaves_no_entry(engine: Engine) -> None:
    root = await engine.root([say("never")])
    await root.accept("hi")
    await root.abort()
    await root.drive()
    assert await kinds(root) == ["user"]
    assert engine.models.requests == []


@pytest.mark.spec("BB-01", "CN-20")
async def test_an_aborted_conversation_goes_on(engine: Engine) -> None:
    gate = Gate()
    tools = [Probe("a"), Probe("b", gate=gate), Probe("c")]
    root = await engine.root(
        [say(call("a"), call("b"), call("c")), say("fine")],
        tools=tools,
        settings={"tool_order": "sequential"},
    )
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    await driving
    assert await outcomes(root) == ["finished", "interrupted", "notStarted"]
    assert tools[2].runs == []
    assert (await root.prompt("go on")).text == "fine"


@pytest.mark.spec("BB-21")
async def test_after_an_abort_no_further_call_is_issued(engine: Engine) -> None:
    gate = Gate()
    beats: list[int] = []

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        beats.append(1)
        if len(beats) == 5:
            await gate()

    root = await engine.root(lambda request: say(call("beat")), tools=[Probe("beat", body=body)])
    await root.accept("go")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    await driving
    assert len(beats) == 5
    assert len(engine.models.requests) == 5
    assert (await outcomes(root))[-1] == "interrupted"


@pytest.mark.spec("CN-16")
async def test_a_child_that_ends_by_itself_does_not_finish_its_marked_owner(
    engine: Engine,
) -> None:
    root = await engine.root([say("child done")], kinds=[Chores()])
    (owner,) = await plan(engine, "owner", status="waiting")
    made: list[Any] = []

    async def own(tx: Command) -> None:
        child = tx.insert_conversation(owner=owner)
        tx.patch(await tx.task(owner), owns=child)
        made.append(child)

    await engine.line.submit(own)
    child = await engine.harness.conversation(made[0])
    assert child is not None
    await child.accept("work")
    await mark(engine, owner)
    await root.drive()
    assert (await statuses(engine, owner)) == ["aborted"]


@pytest.mark.spec("CN-21", "IV-04")
async def test_shutdown_ends_background_work_too_and_cancel_queued_ends_none(
    engine: Engine,
) -> None:
    gate = Gate()
    later = engine.clock.now_ms() + 60_000
    root = await engine.root([say("x", gates={0: gate})], kinds=[Chores()])
    (background,) = await plan(engine, "background", not_before=later)
    (owner,) = await plan(engine, "owner", status="waiting")
    made: list[Any] = []

    async def own(tx: Command) -> None:
        child = tx.insert_conversation(owner=owner)
        tx.patch(await tx.task(owner), owns=child)
        made.append(child)

    await engine.line.submit(own)
    (child,) = await plan(engine, "child", conv_id=made[0], not_before=later)
    apart = await new_conversation(engine)
    (elsewhere,) = await plan(engine, "elsewhere", conv_id=apart, not_before=later)
    accepted = await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    follow = await root.follow_up("later")
    assert await root.cancel_queued(accepted.input_id) == "already_consumed"
    assert await root.cancel_queued(follow.input_id) == "cancelled"
    assert not [task for task in await root.tasks() if task.abort_requested]
    report = await root.shutdown()
    (task,) = await generations(root)
    assert set(report.marked) == {background, owner, child, task.id}
    ended = await statuses(engine, *report.marked, elsewhere)
    assert ended == ["aborted"] * 4 + ["planned"]


@pytest.mark.spec("CN-23")
async def test_an_abort_may_be_bound_to_an_input(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("one"), say("two", gates={0: gate})])
    done = await root.accept("first")
    await root.drive()
    second = await root.accept("second")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    queued = await root.follow_up("third")
    head = engine.line.last_seq
    for other in (done.input_id, Seq(9_999)):
        with pytest.raises(Rejected) as caught:
            await root.abort(only_if=other)
        assert caught.value.code == "version_mismatch"
    assert engine.line.last_seq == head, "nothing marked, nothing drained"
    report = await root.abort(only_if=second.input_id)
    await driving
    assert (len(report.marked), len(report.drained)) == (1, 1)
    assert (await root.result(queued.input_id)).state == "withdrawn"
    waiting = await root.steer("said to nobody")
    report = await root.abort(only_if=waiting.input_id)
    assert [one.input_id for one in report.drained] == [waiting.input_id], "queued counts too"


@pytest.mark.spec("CN-23")
@pytest.mark.parametrize("first", ["abort", "settlement"])
async def test_a_bound_abort_and_the_settlement_of_its_input(engine: Engine, first: str) -> None:
    gate = Gate()
    root = await engine.root([say("answer", gates={0: gate})])
    accepted = await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    if first == "abort":
        await root.abort(only_if=accepted.input_id)
        gate.open()
        await driving
        assert (await root.result(accepted.input_id)).state == "aborted"
        return
    held = engine.storage.hold(task_moves("done"))
    gate.open()
    await held.reached.wait()
    aborting = engine.begin(root.abort(only_if=accepted.input_id))
    await asyncio.sleep(0)
    held.open()
    with pytest.raises(Rejected) as caught:
        await aborting
    assert caught.value.code == "version_mismatch"
    await driving
    assert (await root.result(accepted.input_id)).text == "answer"
    assert not [task for task in await root.tasks() if task.abort_requested]
