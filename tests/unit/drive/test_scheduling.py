"""Which task runs now, under which claim, and what wakes the scheduler (SC)."""

import asyncio

import pytest

from perdure.drive.claims import Claim
from perdure.drive.context import TaskContext
from perdure.drive.limits import Limits
from perdure.drive.outcomes import DriveOutcome
from perdure.drive.signals import InvocationSignal
from perdure.errors import Closed, Rejected
from perdure.line.command import Command
from perdure.providers.script import call, say
from perdure.records.entries import EntryMeta
from perdure.records.messages import UserPayload, text_message
from perdure.records.seqs import Seq
from perdure.records.tasks import Task
from perdure.records.writes import Commit, InsertTask
from tests.engine import Engine, Gate, Probe, task_moves
from tests.unit.drive.chores import Body, Chores, mark, new_conversation, plan, statuses


async def settled_loop() -> None:
    """Give everything that could run the chance to."""
    for _ in range(100):
        await asyncio.sleep(0)


def gated(gate: Gate) -> Body:
    async def body(task: Task, ctx: TaskContext) -> None:
        await ctx.patch(status="running")
        await gate()
        await ctx.settle("done")

    return body


@pytest.mark.spec("SC-08", "SC-21")
async def test_a_start_waits_for_dependencies_time_and_permit(engine: Engine) -> None:
    gate = Gate()
    chores = Chores(first=gated(gate))
    await engine.open(kinds=[chores])
    now = engine.clock.now_ms()
    (first,) = await plan(engine, "first")
    await plan(engine, "late", not_before=now + 5_000)
    await plan(engine, "both", not_before=now + 5_000, after=[first])
    await plan(engine, "poll", polls=True)
    driving = engine.begin(engine.harness.drive())
    await gate.reached.wait()
    assert chores.calls == [("effect", "first")]
    engine.clock.advance(5_000)
    await engine.storage.until(lambda commit: ("effect", "late") in chores.calls)
    assert ("effect", "both") not in chores.calls, "time alone starts nothing"
    gate.open()
    result = await driving
    assert chores.calls[1:] == [("effect", "late"), ("effect", "both")]
    assert (result.outcome, result.waiting_for[0].kind) == (DriveOutcome.SUSPENDED, "poll")
    await engine.harness.drive(poll_deferred=True)
    assert chores.calls[-1] == ("effect", "poll")


@pytest.mark.spec("SC-10", "SC-11")
async def test_a_waiting_task_is_rearmed_once_a_process_if_it_is_older(engine: Engine) -> None:
    await engine.open(kinds=[Chores()])
    await plan(engine, "old", status="asking")
    await engine.close()
    arming = Gate()

    async def rearm(task: Task, ctx: TaskContext) -> None:
        await arming()

    chores = Chores(old_recover=rearm)
    await engine.open(kinds=[chores])
    await plan(engine, "new", status="asking")
    drives = [engine.begin(engine.harness.drive()) for _ in range(2)]
    await arming.reached.wait()
    third = engine.begin(engine.harness.drive())
    await asyncio.sleep(0)
    arming.open()
    results = [await one for one in (*drives, third)]
    assert {one.outcome for one in results} == {DriveOutcome.SUSPENDED}
    await engine.harness.drive()
    assert chores.calls == [("recover", "old")]


@pytest.mark.spec("SC-12")
async def test_overlapping_drives_never_run_a_task_twice_at_once(engine: Engine) -> None:
    gate = Gate()
    chores = Chores(x=gated(gate))
    root = await engine.root(kinds=[chores])
    await plan(engine, "x")
    drives = [engine.begin(engine.harness.drive()) for _ in range(3)]
    drives += [engine.begin(root.drive()) for _ in range(3)]
    await gate.reached.wait()
    gate.open()
    await asyncio.gather(*drives)
    assert chores.calls == [("effect", "x")]
    assert chores.most_running == 1


@pytest.mark.spec("SC-13")
async def test_a_sweep_starts_every_ready_task_lowest_id_first(engine: Engine) -> None:
    gate = Gate()
    chores = Chores(stuck=gated(gate))
    await engine.open(kinds=[chores])
    names = ["stuck", "a", "b", "c"]
    await plan(engine, *names)
    driving = engine.begin(engine.harness.drive())
    await gate.reached.wait()
    await engine.storage.until(lambda commit: len(chores.calls) == 4)
    assert [name for _, name in chores.calls] == names
    gate.open()
    await driving


@pytest.mark.spec("SC-13", "SC-23")
async def test_limits_hold_starts_back_in_id_order(engine: Engine) -> None:
    gates = [Gate() for _ in range(5)]
    chores = Chores(**{f"c{at}": gated(gate) for at, gate in enumerate(gates)})
    await engine.open(kinds=[chores], limits=Limits(tools=2))
    ids = await plan(engine, *(f"c{at}" for at in range(5)))
    driving = engine.begin(engine.harness.drive())
    await gates[1].reached.wait()
    assert await statuses(engine, *ids) == ["running", "running", *["planned"] * 3]
    assert [task.id for task in engine.harness.inspect().start] == ids[2:]
    for gate in gates:
        gate.open()
    await driving
    assert [name for _, name in chores.calls] == [f"c{at}" for at in range(5)]
    assert chores.most_running == 2


@pytest.mark.spec("SC-23")
async def test_default_limits_and_refusals() -> None:
    limits = Limits()
    assert [limits.limit(slot) for slot in ("generations", "tools", "jobs")] == [8, 32, 16]
    with pytest.raises(Rejected, match="tools is 0"):
        Limits(tools=0)


@pytest.mark.spec("SC-23")
async def test_harnesses_share_the_slots_of_one_limits_object(
    memory_engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Engine("memory", tmp_path_factory.mktemp("other"))
    gate, ours, theirs = Gate(), Chores(), Chores()
    ours.bodies["x"] = gated(gate)
    shared = Limits(tools=1)
    await memory_engine.open(kinds=[ours], limits=shared)
    await other.open(kinds=[theirs], limits=shared)
    try:
        await plan(memory_engine, "x")
        await plan(other, "y")
        first = memory_engine.begin(memory_engine.harness.drive())
        await gate.reached.wait()
        second = other.begin(other.harness.drive())
        await settled_loop()
        assert theirs.calls == []
        gate.open()
        await first
        await second
        assert theirs.calls == [("effect", "y")]
    finally:
        await other.aclose()


@pytest.mark.spec("SC-23")
async def test_eight_generations_stream_and_the_ninth_waits(memory_engine: Engine) -> None:
    gates = [Gate() for _ in range(9)]
    await memory_engine.open([say("ok", gates={0: gate}) for gate in gates])
    convs = [await memory_engine.harness.root()]
    for _ in range(8):
        conv = await memory_engine.harness.conversation(await new_conversation(memory_engine))
        assert conv is not None
        convs.append(conv)
    for conv in convs:
        await conv.accept("hi")
    driving = memory_engine.begin(memory_engine.harness.drive())
    await gates[7].reached.wait()
    await settled_loop()
    assert len(memory_engine.models.requests) == 8
    assert [task.status for task in memory_engine.harness.inspect().start] == ["pending"]
    for gate in gates:
        gate.open()
    await driving
    assert len(memory_engine.models.requests) == 9


@pytest.mark.spec("SC-14", "SC-23")
async def test_an_older_invocation_gives_back_no_slot_of_a_newer_one(
    memory_engine: Engine,
) -> None:
    """Whoever ends late, or twice, frees what it holds itself and nothing else."""
    gates = [Gate(), Gate()]
    claims: list[Claim] = []

    async def body(task: Task, ctx: TaskContext) -> None:
        claims.append(engine_scheduler.running()[task.id])
        await ctx.patch(status="running") if task.status == "planned" else None
        await gates[len(claims) - 1]()
        if len(claims) == 1:
            await ctx.patch(status="planned")
            return
        await ctx.settle("done")

    limits = Limits(tools=1)
    await memory_engine.open(kinds=[Chores(x=body)], limits=limits)
    engine_scheduler = memory_engine.harness._core.scheduler
    await plan(memory_engine, "x")
    driving = memory_engine.begin(memory_engine.harness.drive())
    await gates[0].reached.wait()
    gates[0].open()
    await gates[1].reached.wait()
    engine_scheduler._free(claims[0])
    assert list(engine_scheduler.running().values()) == [claims[1]]
    assert not limits.take("tools"), "the newer invocation still holds the only slot"
    gates[1].open()
    await driving
    assert limits.take("tools")


@pytest.mark.spec("SC-14")
async def test_each_invocation_has_a_fresh_signal(engine: Engine) -> None:
    signals: list[object] = []

    async def body(task: Task, ctx: TaskContext) -> None:
        signals.append(ctx.signal)
        if len(signals) == 1:
            await ctx.patch(note="again")
            return
        assert not ctx.signal.is_set
        await ctx.settle("done")

    await engine.open(kinds=[Chores(x=body)])
    await plan(engine, "x")
    await engine.harness.drive()
    assert len(signals) == 2
    assert signals[0] is not signals[1]


@pytest.mark.spec("SC-14")
async def test_an_abort_has_a_fresh_signal_after_the_invocation_it_joined(engine: Engine) -> None:
    gate = Gate()
    signals: list[InvocationSignal] = []

    async def body(task: Task, ctx: TaskContext) -> None:
        signals.append(ctx.signal)
        await ctx.outside(gate())

    async def abort(task: Task, ctx: TaskContext) -> None:
        signals.append(ctx.signal)
        ctx.check_signal()
        await ctx.outside(settled_loop())
        await ctx.settle("aborted")

    await engine.open(kinds=[Chores(x=body, x_abort=abort)])
    (chore,) = await plan(engine, "x")
    driving = engine.begin(engine.harness.drive())
    await gate.reached.wait()
    await mark(engine, chore)
    await driving
    assert [signal.is_set for signal in signals] == [True, False]
    assert await statuses(engine, chore) == ["aborted"]


@pytest.mark.spec("SC-14")
async def test_an_old_invocation_that_ends_late_frees_no_newer_claim(engine: Engine) -> None:
    gates = (Gate(), Gate())
    calls: list[Task] = []

    async def body(task: Task, ctx: TaskContext) -> None:
        calls.append(task)
        await gates[len(calls) - 1]()
        await (ctx.patch(note="again") if len(calls) == 1 else ctx.settle("done"))

    await engine.open(kinds=[Chores(x=body)])
    (chore,) = await plan(engine, "x")
    driving = engine.begin(engine.harness.drive())
    await gates[0].reached.wait()
    scheduler = engine.harness._core.scheduler
    old = scheduler.running()[chore]
    gates[0].open()
    await gates[1].reached.wait()
    new = scheduler.running()[chore]
    assert new is not old
    old._end()
    assert scheduler.running() == {chore: new}
    await settled_loop()
    gates[1].open()
    await driving
    assert len(calls) == 2


@pytest.mark.spec("SC-15", "ER-04", "OP-14")
async def test_a_cancelled_driver_ends_its_own_wait_only(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("done", gates={0: gate})])
    accepted = await root.accept("hi")
    one, two = engine.begin(root.drive()), engine.begin(engine.harness.drive())
    await gate.reached.wait()
    one.cancel()
    await asyncio.gather(one, return_exceptions=True)
    assert not two.done()
    gate.open()
    assert (await two).outcome is DriveOutcome.IDLE
    result = await root.result(accepted.input_id)
    assert (result.state, len(engine.models.requests)) == ("answered", 1)


@pytest.mark.spec("SC-16", "SC-17", "IV-06")
async def test_a_sweep_reads_no_storage(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    chores = Chores(first=gated(gate))
    await engine.open(kinds=[chores])
    (first,) = await plan(engine, "first")
    await plan(engine, *("next" for _ in range(20)), after=[first])
    scheduler = engine.harness._core.scheduler
    driving = engine.begin(engine.harness.drive())
    await gate.reached.wait()
    engine.storage.reads.clear()
    entries: list[Seq] = []
    monkeypatch.setattr(type(engine.line.residency), "entry", lambda _, seq: entries.append(seq))
    for _ in range(10):
        holds = chores.holds
        scheduler._wake.set()
        await settled_loop()
        assert chores.holds > holds, "it looked again"
    monkeypatch.undo()
    assert [name for name in engine.storage.reads if name != "info"] == []
    assert entries == [], "it looked at no payload"
    gate.open()
    await driving


@pytest.mark.spec("SC-18")
async def test_nothing_ready_means_no_sweep(memory_engine: Engine) -> None:
    engine = memory_engine
    chores = Chores()
    await engine.open(kinds=[chores])
    await plan(engine, "late", not_before=engine.clock.now_ms() + 60_000)
    driving = engine.begin(engine.harness.drive())
    await engine.clock.until_asleep()
    before = chores.holds
    await settled_loop()
    assert chores.holds == before
    engine.clock.advance(60_000)
    await driving
    assert chores.calls == [("effect", "late")]


@pytest.mark.spec("SC-19")
async def test_an_observer_that_fires_late_writes_nothing(engine: Engine) -> None:
    kept: list[TaskContext] = []

    async def body(task: Task, ctx: TaskContext) -> None:
        kept.append(ctx)
        await ctx.settle("done")

    async def marked(task: Task, ctx: TaskContext) -> None:
        kept.append(ctx)
        await ctx.patch(status="running")
        await ctx.sleep(1_000_000)

    await engine.open(kinds=[Chores(x=body, y=marked)])
    (x,) = await plan(engine, "x")
    await engine.harness.drive()
    (y,) = await plan(engine, "y")
    driving = engine.begin(engine.harness.drive())
    await engine.clock.until_asleep()
    await mark(engine, y)
    assert not await kept[1].patch(note="after the mark")
    await driving
    head = engine.line.last_seq
    for late in kept:
        with pytest.raises(Closed, match="has ended"):
            await late.patch(note="late")
    assert engine.line.last_seq == head
    assert await statuses(engine, x, y) == ["done", "aborted"]


@pytest.mark.spec("SC-20", "IV-19")
async def test_driving_creates_no_generation_from_what_the_context_ends_with(
    engine: Engine,
) -> None:
    root = await engine.root([say("one")])
    await root.prompt("hi")

    def append(tx: Command) -> None:
        payload = UserPayload(messages=(text_message("more", 1),))
        tx.insert_entry(root.id, "user", EntryMeta(timestamp=1), payload)

    await root.command(append)
    head = engine.line.last_seq
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    assert (await engine.harness.drive()).outcome is DriveOutcome.IDLE
    assert engine.line.last_seq == head
    assert len(engine.models.requests) == 1


@pytest.mark.spec("SC-01", "SC-03", "SC-04", "IV-20")
async def test_with_every_tool_done_and_the_join_pending_input_queues(engine: Engine) -> None:
    root = await engine.root([say(call("t")), say("one"), say("two")], tools=[Probe("t")])
    await root.accept("first")
    gate = engine.storage.hold(
        lambda commit: task_moves("done")(commit) and _creates_generation(commit)
    )
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    live = engine.harness.inspect()
    assert [task.kind for task in live.start] == ["post_tools"]
    second = engine.begin(root.accept("second"))
    gate.open()
    accepted = await second
    await driving
    generations = [task for task in await root.tasks() if task.kind == "generation"]
    assert len(generations) == 3
    assert (await root.result(accepted.input_id)).text == "two"


def _creates_generation(commit: Commit) -> bool:
    return any(isinstance(one, InsertTask) and one.kind == "generation" for one in commit.writes)


@pytest.mark.spec("SC-01")
async def test_foreground_is_generations_and_what_was_spawned_for_them(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root(
        [say(call("t")), say("done")], tools=[Probe("t", gate=gate)], kinds=[Chores()]
    )
    later = engine.clock.now_ms() + 60_000
    await plan(engine, "background", not_before=later)
    await root.wait_for_idle()
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    waiting = engine.begin(root.wait_for_idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.open()
    assert (await driving).outcome is DriveOutcome.IDLE
    await waiting
    assert [task.kind for task in engine.harness.inspect().start] == ["chore"]


@pytest.mark.spec("SC-02")
async def test_what_foreground_waits_for_is_required(engine: Engine) -> None:
    root = await engine.root([say("done")], kinds=[Chores()])
    later = engine.clock.now_ms() + 60_000
    deep, loose = await plan(engine, "deep", "loose", not_before=later)
    (chore,) = await plan(engine, "needed", not_before=later, after=[deep])
    await root.accept("hi")
    (generation,) = [task.id for task in await root.tasks(live=True) if task.kind == "generation"]

    async def park(tx: Command) -> None:
        tx.patch(await tx.task(generation), after=[chore])

    await engine.line.submit(park)
    report = await root.abort()
    assert report.marked == (deep, chore, generation)
    assert loose not in report.marked
