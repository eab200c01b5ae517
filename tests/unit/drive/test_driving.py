"""What a drive runs, and what it answers (OP-04 to OP-14, ER-03, ER-10)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from perdure.drive.context import TaskContext
from perdure.drive.outcomes import DriveOutcome, Wait
from perdure.errors import Closed, Faulted, Interrupted, Rejected
from perdure.line.line import Preview
from perdure.ports import ToolContext
from perdure.providers.script import Deferred, call, fail, say
from perdure.records.tasks import Task
from tests.engine import Engine, Gate, Probe, task_moves
from tests.unit.drive.chores import Chores, mark, new_conversation, plan, statuses


@pytest.mark.spec("OP-04", "OP-05", "ER-05")
async def test_inspect_lists_live_tasks_by_durable_role(engine: Engine) -> None:
    later = engine.clock.now_ms() + 60_000
    await engine.open(kinds=[Chores()])
    (first,) = await plan(engine, "first", not_before=later)
    (second,) = await plan(engine, "second", after=[first])
    (poll,) = await plan(engine, "poll", polls=True)
    (running,) = await plan(engine, "running", status="running")
    (waiting,) = await plan(engine, "waiting", status="asking")
    await mark(engine, second)

    def check() -> None:
        seen = engine.harness.inspect()
        assert [task.id for task in seen.start] == [first, second, poll]
        assert [task.id for task in seen.inflight] == [running]
        assert [task.id for task in seen.waiting] == [waiting]
        marked = [task.id for task in seen.start if task.abort_requested]
        assert marked == [second]

    check()
    head = engine.line.last_seq
    await engine.close()
    await engine.open(kinds=[Chores()])
    check()
    assert engine.line.last_seq == head, "neither opening nor looking writes"
    await engine.harness.drive(wait_timers=False, poll_deferred=True)
    assert [task.id for task in engine.harness.inspect().start] == [first]


@pytest.mark.spec("OP-06", "OP-07")
async def test_a_conversation_drives_its_own_tree_only(engine: Engine) -> None:
    chores = Chores()
    root = await engine.root(kinds=[chores])
    other = await new_conversation(engine)
    (mine,) = await plan(engine, "mine")
    (theirs,) = await plan(engine, "theirs", conv_id=other)
    gate = Gate()

    async def hold(task: Task, ctx: TaskContext) -> None:
        await gate()
        await ctx.settle("done")

    chores.bodies["mine"] = hold
    engine.begin(root.drive())
    await asyncio.sleep(0)
    assert await statuses(engine, theirs) == ["planned"]
    assert [name for _, name in chores.calls if name == "theirs"] == []
    gate.open()
    await engine.harness.drive()
    assert await statuses(engine, mine, theirs) == ["done", "done"]


@pytest.mark.spec("OP-08", "OP-09")
async def test_a_conversation_is_idle_with_background_work_a_session_is_not(
    engine: Engine,
) -> None:
    root = await engine.root([say("hello")], kinds=[Chores()])
    later = engine.clock.now_ms() + 60_000
    (chore,) = await plan(engine, "later", not_before=later)
    await root.accept("hi")
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    session = await engine.harness.drive(wait_timers=False)
    assert session.outcome is DriveOutcome.SUSPENDED
    assert session.waiting_for == (Wait(kind="timer", task=chore, conv=root.id, until=later),)
    assert session.next_at == later
    await mark(engine, chore)
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    assert await statuses(engine, chore) == ["aborted"], "a mark is foreground business"
    assert (await engine.harness.drive()).outcome is DriveOutcome.IDLE


@pytest.mark.spec("OP-10", "ER-03", "ER-10")
async def test_suspended_names_every_blocking_task_once(engine: Engine) -> None:
    root = await engine.root(kinds=[Chores()])
    now = engine.clock.now_ms()
    (asking,) = await plan(engine, "asking", status="asking")
    (poll,) = await plan(engine, "poll", polls=True)
    (timed,) = await plan(engine, "timed", not_before=now + 2_000)
    (later,) = await plan(engine, "later", not_before=now + 9_000)
    (behind,) = await plan(engine, "behind", after=[asking])
    result = await engine.harness.drive(wait_timers=False)
    assert result.outcome is DriveOutcome.SUSPENDED
    assert result.waiting_for == (
        Wait(kind="decision", task=asking, conv=root.id),
        Wait(kind="poll", task=poll, conv=root.id),
        Wait(kind="timer", task=timed, conv=root.id, until=now + 2_000),
        Wait(kind="timer", task=later, conv=root.id, until=now + 9_000),
    )
    assert result.next_at == now + 2_000
    assert await statuses(engine, behind) == ["planned"]
    assert DriveOutcome.SUSPENDED is not DriveOutcome("idle")


@pytest.mark.spec("ER-10")
async def test_an_idle_drive_waits_for_nothing(engine: Engine) -> None:
    root = await engine.root([say("hello")])
    await root.accept("hi")
    result = await root.drive()
    assert (result.outcome, result.waiting_for, result.next_at) == (DriveOutcome.IDLE, (), None)


@pytest.mark.spec("OP-10")
async def test_without_a_permit_a_deferred_answer_suspends(engine: Engine) -> None:
    root = await engine.root([say("later", deferred=Deferred())])
    accepted = await root.accept("hi")
    engine.clock.set_now_ms(engine.clock.now_ms())
    first = await root.drive(wait_timers=False)
    assert [wait.kind for wait in first.waiting_for] == ["timer"]
    engine.clock.advance(10_000)
    second = await root.drive()
    assert [wait.kind for wait in second.waiting_for] == ["poll"]
    third = await root.drive(poll_deferred=True)
    assert third.outcome is DriveOutcome.IDLE
    assert (await root.result(accepted.input_id)).text == "later"


@pytest.mark.spec("OP-11", "OP-16", "ER-01")
async def test_close_ends_drives_and_refuses_commands(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("x", gates={0: gate})])
    accepted = await root.accept("hi")
    driving = engine.begin(root.drive())
    waiting = engine.begin(root.wait(accepted.input_id))
    idle = engine.begin(root.wait_for_idle())
    await gate.reached.wait()
    first = await engine.harness.close(grace=1)
    assert (await driving).outcome is DriveOutcome.CLOSED
    for wait in (waiting, idle):
        with pytest.raises(Closed):
            await wait
    for refused in (
        root.accept("more"),
        root.abort(),
        root.configure(label="x"),
        engine.harness.command(lambda tx: None),
    ):
        with pytest.raises(Closed):
            await refused
    assert (await root.drive()).outcome is DriveOutcome.CLOSED
    assert await engine.harness.close() is first


@pytest.mark.spec("OP-13", "OP-15", "RC-16")
async def test_close_settles_nothing_and_the_next_open_recovers(engine: Engine) -> None:
    gate = Gate()
    pay = Probe("pay", gate=gate)
    root = await engine.root([say(call("pay"))], tools=[pay])
    accepted = await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    made = len(engine.storage.commits_made)
    report = await engine.harness.close(grace=1)
    (tool,) = report.returned
    assert len(engine.storage.commits_made) == made
    root = await engine.root([say("done")], tools=[pay])
    (task,) = engine.harness.inspect().inflight
    assert (task.id, task.status) == (tool, "running")
    assert not task.abort_requested
    await root.drive()
    assert len(pay.runs) == 1
    assert (await root.result(accepted.input_id)).text == "done"


@pytest.mark.spec("OP-13")
async def test_close_finishes_what_was_already_admitted(engine: Engine) -> None:
    root = await engine.root([say("done")])
    gate = engine.storage.hold(lambda commit: True)
    accepting = engine.begin(root.accept("hi"))
    await gate.reached.wait()
    closing = engine.begin(engine.harness.close())
    await asyncio.sleep(0)
    assert not closing.done()
    gate.open()
    accepted = await accepting
    await closing
    root = await engine.root([say("done")])
    await root.drive()
    assert (await root.result(accepted.input_id)).text == "done"


@pytest.mark.spec("OP-27")
async def test_while_draining_handlers_settle_and_nothing_starts(engine: Engine) -> None:
    gate = Gate()
    tool = Probe("t", gate=gate)
    root = await engine.root([say(call("t"))], tools=[tool])
    await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    closing = engine.begin(engine.harness.close(drain=5, grace=0))
    await engine.clock.until_asleep()
    with pytest.raises(Closed):
        await root.accept("too late")
    with pytest.raises(Closed):
        await engine.harness.command(lambda tx: None)
    assert (await root.drive()).outcome is DriveOutcome.CLOSED
    gate.open()
    await closing
    await engine.open([say("done")], tools=[tool])
    (join,) = engine.harness.inspect().start
    assert (join.kind, join.status) == ("post_tools", "pending"), "settled, and nothing launched"


@pytest.mark.spec("OP-27")
@pytest.mark.parametrize("drain", [0.0, 5.0])
async def test_after_the_drain_no_handler_settles(engine: Engine, drain: float) -> None:
    gate = Gate()
    finished: list[bool] = []

    async def stubborn(args: object, ctx: object) -> None:
        try:
            await gate()
        except asyncio.CancelledError:
            finished.append(True)

    root = await engine.root([say(call("t"))], tools=[Probe("t", body=stubborn)])
    await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    closing = engine.begin(engine.harness.close(drain=drain, grace=1))
    if drain:
        await engine.clock.until_asleep()
        engine.clock.advance(5_000)
    await closing
    assert finished == [True]
    await engine.open(tools=[Probe("t")])
    assert [task.status for task in engine.harness.inspect().inflight] == ["running"]


@pytest.mark.spec("OP-16")
async def test_closing_twice_at_once_is_one_close(engine: Engine) -> None:
    await engine.open()
    reports = await asyncio.gather(*(engine.harness.close() for _ in range(3)))
    assert reports[0] is reports[1] is reports[2]


@pytest.mark.spec("OP-14", "ER-09")
@pytest.mark.parametrize("call_name", ["drive", "prompt", "wait", "wait_for_idle"])
async def test_cancelling_a_wait_aborts_nothing(engine: Engine, call_name: str) -> None:
    gate = Gate()
    root = await engine.root([say("done", gates={0: gate}), say("again")])
    if call_name == "prompt":
        waiting = engine.begin(root.prompt("hi"))
    else:
        accepted = await root.accept("hi")
        keep = engine.begin(engine.harness.drive())
        waiting = engine.begin(
            {
                "drive": root.drive,
                "wait": lambda: root.wait(accepted.input_id),
                "wait_for_idle": root.wait_for_idle,
            }[call_name]()
        )
        assert keep
    await gate.reached.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not any(task.abort_requested is True for task in await root.tasks())
    gate.open()
    await root.drive()
    assert [entry.kind for entry in await root.entries()] == ["user", "assistant"]


@pytest.mark.spec("OP-18")
async def test_waiting_for_idle_starts_nothing(engine: Engine) -> None:
    root = await engine.root([say("done")])
    await root.accept("hi")
    waiting = engine.begin(root.wait_for_idle())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert engine.models.requests == []
    await root.drive()
    await waiting


async def test_a_fault_reaches_every_driver_and_every_waiter(engine: Engine) -> None:
    root = await engine.root([say("done")])
    accepted = await root.accept("hi")
    engine.storage.fail(task_moves("done"), OSError("disk full"))
    drives = [engine.begin(root.drive()), engine.begin(engine.harness.drive())]
    waits = [engine.begin(root.wait(accepted.input_id)), engine.begin(root.wait_for_idle())]
    for one in (*drives, *waits):
        with pytest.raises(Faulted, match="disk full"):
            await asyncio.wait_for(one, 5)


@pytest.mark.spec("ER-06")
async def test_a_listener_that_raises_is_reported_and_harms_nobody(engine: Engine) -> None:
    root = await engine.root([say("done")])

    def broken(_: object) -> None:
        raise LookupError("a listener's own")

    engine.harness.on_commit(broken)
    engine.harness.on_preview(broken)
    assert (await root.prompt("hi")).text == "done"
    assert {type(error) for error in engine.errors} == {LookupError}


async def test_a_hearer_of_errors_that_raises_harms_nobody(engine: Engine) -> None:
    def broken(*_: object) -> None:
        raise LookupError("nobody hears this")

    root = await engine.root([say("done")], on_error=broken)
    engine.harness.on_commit(broken)
    assert (await root.prompt("hi")).text == "done"
    assert (await root.prompt("again", request_id="k")).state == "failed", "the script is over"


@pytest.mark.spec("ER-08")
async def test_a_prompt_answers_its_own_input_in_every_state(engine: Engine) -> None:
    root = await engine.root(
        [say("first"), fail("auth"), say("later", deferred=Deferred())],
    )
    answered = await root.prompt("one")
    assert (answered.state, answered.text) == ("answered", "first")
    assert answered.message is not None
    failed = await root.prompt("two")
    assert (failed.state, failed.text, failed.message) == ("failed", "", None)
    assert failed.error is not None
    assert failed.error.code == "auth"
    prompting = engine.begin(root.prompt("three"))
    await engine.clock.until_asleep()
    engine.clock.advance(10_000)
    still_open = await prompting
    assert (still_open.state, still_open.text, still_open.message) == ("open", "", None)


@pytest.mark.parametrize("in_a_thread", [False, True])
async def test_a_call_that_drives_what_it_runs_in_is_refused(
    engine: Engine, *, in_a_thread: bool
) -> None:
    codes: list[str] = []

    async def drive_again() -> None:
        waits: tuple[Callable[[], Awaitable[object]], ...] = (
            root.drive,
            engine.harness.drive,
            root.wait_for_idle,
            lambda: root.prompt("never accepted"),
        )
        for drive in waits:
            with pytest.raises(Rejected, match="cannot wait for the conversation it runs in") as no:
                await drive()
            codes.append(no.value.code)
        other = await engine.harness.conversation(await new_conversation(engine))
        assert other is not None
        assert (await other.drive()).outcome is DriveOutcome.IDLE

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        loop = asyncio.get_running_loop()
        if in_a_thread:
            work = asyncio.run_coroutine_threadsafe
            await ctx.threads.run("t", lambda: work(drive_again(), loop).result())
        else:
            await drive_again()

    root = await engine.root([say(call("t")), say("end")], tools=[Probe("t", body=body)])
    assert (await root.prompt("hi")).text == "end"
    assert codes == ["nested_command"] * 4
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    assert [entry.kind for entry in await root.entries()].count("user") == 1


@pytest.mark.spec("ER-09", "OP-14", "OP-16")
async def test_cancelling_one_who_closes_ends_that_wait_only(engine: Engine) -> None:
    gate = Gate()

    async def body(task: Task, ctx: TaskContext) -> None:
        await ctx.patch(status="running")
        await gate()

    await engine.open(kinds=[Chores(x=body)])
    await plan(engine, "x")
    driving = engine.begin(engine.harness.drive())
    await gate.reached.wait()
    closing = engine.begin(engine.harness.close(grace=30))
    while not engine.harness._core.scheduler._closing:  # noqa: ASYNC110 - a step of the loop, no time
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()
    again = engine.begin(engine.harness.close())
    gate.open()
    report = await again
    assert len(report.returned) == 1
    assert (await driving).outcome is DriveOutcome.CLOSED
    other = await engine.sessions.open("test", create=False)
    await other.close()


@pytest.mark.spec("SC-03", "CN-07", "CN-08", "CN-21")
async def test_a_cancellation_of_background_work_alone_keeps_the_conversation_busy(
    engine: Engine,
) -> None:
    gate = Gate()

    async def body(task: Task, ctx: TaskContext) -> None:
        await gate()
        await ctx.settle("aborted")

    root = await engine.root([say("later")], kinds=[Chores(x_abort=body)])
    await plan(engine, "x", conv_id=root.id)
    stopping = engine.begin(root.shutdown())
    await gate.reached.wait()
    queued = await root.accept("meanwhile")
    assert (await root.result(queued.input_id)).state == "queued"
    with pytest.raises(Rejected) as busy:
        await root.flush()
    assert busy.value.code == "busy"
    gate.open()
    await stopping
    assert not await root.tasks(live=True)
    await root.flush()
    await root.drive()
    assert (await root.result(queued.input_id)).text == "later"


@pytest.mark.spec("CN-06")
async def test_a_mark_counts_before_anybody_was_signalled(memory_engine: Engine) -> None:
    """Between the mark's commit and the signal an invocation starts nothing outside."""
    begun: list[str] = []

    async def outside() -> None:
        begun.append("outside")

    async def body(task: Task, ctx: TaskContext) -> None:
        await ctx.patch(status="running")
        await mark(memory_engine, task.id)
        assert not ctx.signal.is_set
        try:
            ctx.check_signal()
        except Interrupted as interruption:
            begun.append(interruption.reason)
        await ctx.outside(outside())
        begun.append("went on")

    async def end(task: Task, ctx: TaskContext) -> None:
        await ctx.settle("aborted")

    await memory_engine.open(kinds=[Chores(x=body, x_abort=end)])
    (task_id,) = await plan(memory_engine, "x")
    await memory_engine.harness.drive()
    assert begun == ["abort"]
    assert await statuses(memory_engine, task_id) == ["aborted"]


@pytest.mark.spec("ER-06")
async def test_one_who_fails_at_a_preview_is_reported_and_the_others_hear_it(
    engine: Engine,
) -> None:
    heard: list[str] = []

    def fails(preview: Preview) -> None:
        raise RuntimeError("no screen")

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        await ctx.out.progress({"at": 1})

    root = await engine.root([say(call("t")), say("end")], tools=[Probe("t", body=body)])
    engine.harness.on_preview(fails)
    engine.harness.on_preview(lambda preview: heard.append(preview.kind))
    assert (await root.prompt("hi")).text == "end"
    assert "progress" in heard
    assert {str(error) for error in engine.errors} == {"no screen"}
    assert len(engine.errors) == len(heard)
