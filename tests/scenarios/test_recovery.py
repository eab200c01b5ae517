"""What the next process makes of tasks that were in flight, marked, or already acted."""

from collections.abc import Mapping
from typing import Any

import pytest

from perdure.drive.outcomes import DriveOutcome
from perdure.ports import ToolContext
from perdure.providers.script import Deferred, call, say
from perdure.records.addresses import ACTIVE_TOOLS
from perdure.records.writes import PatchTask
from tests.engine import Engine, Gate, Probe, task_moves, writes
from tests.scenarios.bank import Case


@pytest.fixture
def case(engine: Engine) -> Case:
    return Case(engine)


async def running(case: Case, probe: Probe) -> None:
    """Start a call of the probe and wait until it is in the middle."""
    root = await case.open([say(call(probe.name))], [probe])
    await root.accept("go")
    case.engine.begin(root.drive())
    assert probe.gate is not None
    await probe.gate.reached.wait()


@pytest.mark.spec("CN-17")
async def test_killed_right_after_the_mark_the_next_drive_cancels(case: Case) -> None:
    await running(case, Probe("act", gate=Gate()))
    marking = case.engine.storage.hold(writes(PatchTask, abort_requested=True), when="after")
    case.engine.begin(case.root.abort())
    await marking.reached.wait()
    await case.engine.kill()

    again = Probe("act")
    root = await case.open([], [again])
    head = case.engine.storage.last_seq
    live = case.engine.harness.inspect()
    listed = [task for role in (live.start, live.inflight, live.waiting) for task in role]
    assert [task.kind for task in listed if task.abort_requested is True] == ["post_tools", "tool"]
    assert case.engine.storage.last_seq == head
    assert not again.runs
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    assert [outcome for outcome, _ in await case.results()] == ["interrupted"]
    assert not again.runs
    assert not case.wire.accepted
    await case.goes_on()


@pytest.mark.spec("CN-18")
@pytest.mark.parametrize("replay", ["safe", "never"])
async def test_marked_after_its_effect_a_call_is_aborted_and_not_recovered(
    case: Case, replay: Any
) -> None:
    probe = Probe("act", replay=replay, gate=Gate())
    await running(case, probe)
    settling = case.engine.storage.hold(task_moves("done"), when="before")
    assert probe.gate is not None
    probe.gate.open()
    await settling.reached.wait()
    # The effect has returned; its outcome waits for the disk while the mark comes and the kill.
    await case.engine.kill()
    root = await case.open([], [Probe("act", replay=replay, gate=Gate())])
    await root.abort()
    await case.engine.kill()

    again = Probe("act", replay=replay)
    root = await case.open([], [again])
    await root.drive()
    assert not again.runs
    (tool,) = [task for task in await root.tasks() if task.kind == "tool"]
    assert tool.status == "aborted"
    assert [outcome for outcome, _ in await case.results()] == ["interrupted"]
    await case.goes_on()


@pytest.mark.spec("TL-16")
async def test_an_interrupted_call_tells_its_checkpoint_and_asks_for_nothing(case: Case) -> None:
    gate = Gate()

    async def half(args: Mapping[str, Any], ctx: ToolContext) -> None:
        ctx.out.write("wrote half")
        ctx.out.terminate()
        ctx.out.handoff("start over")
        ctx.out.add_tools(["extra"])
        await ctx.out.progress({"rows": 7})
        await gate()

    probes = [Probe("act", body=half, gate=None), Probe("extra")]
    root = await case.open([say(call("act"))], probes)
    await root.set_value(ACTIVE_TOOLS, ["act"])
    await root.accept("go")
    case.engine.begin(root.drive())
    await gate.reached.wait()
    await case.engine.kill()

    root = await case.open([say("done")], [Probe("act"), Probe("extra")])
    await root.drive()
    (entry,) = [one for one in await case.entries() if one.kind == "tool_result"]
    message = entry.payload["message"]
    assert entry.meta.outcome == "interrupted"
    assert message["isError"] is True
    assert message["checkpoint"] == {"rows": 7}
    assert await root.get_value(ACTIVE_TOOLS, []) == ["act"]
    # Neither the wish to stop nor the handoff survived: the run went on to its answer.
    assert (await case.entries())[-1].kind == "assistant"
    assert (await root.state()).prefix_version == 0
    await case.goes_on()


@pytest.mark.spec("TL-15")
@pytest.mark.parametrize(
    ("before", "after", "runs"),
    [("safe", "safe", 1), ("safe", "never", 0), ("never", "safe", 0), ("never", "never", 0)],
)
async def test_only_a_call_that_was_and_is_safe_runs_again(
    case: Case, before: Any, after: Any, runs: int
) -> None:
    asked: list[Any] = []

    async def note(args: Mapping[str, Any], ctx: ToolContext) -> None:
        asked.append((ctx.invocation_id, ctx.call_id, dict(args), await ctx.out.memo.get("at")))
        await ctx.out.memo.set("at", len(asked))
        await gate()

    gate = Gate()
    root = await case.open(
        [say(call("act", {"amount": 3}))], [Probe("act", replay=before, body=note)]
    )
    await root.accept("go")
    case.engine.begin(root.drive())
    await gate.reached.wait()
    await case.engine.kill()

    gate.open()
    again = Probe("act", replay=after, body=note)
    root = await case.open([say("done")], [again])
    await root.drive()
    assert len(again.runs) == runs
    if runs:
        first, second = asked
        assert second[:3] == first[:3]
        assert (first[3], second[3]) == (None, 1)
    await case.goes_on()


@pytest.mark.spec("CX-24")
async def test_a_late_answer_after_a_forced_reset_is_kept_and_not_sent(case: Case) -> None:
    late = say("late", deferred=Deferred(polls=0, poll_after_ms=1_000))
    root = await case.open([late, say("done")])
    await root.accept("go")
    assert (await root.drive(wait_timers=False)).outcome is DriveOutcome.SUSPENDED
    await root.reset_context((), force=True)
    await root.accept("and then")
    await case.patient(root.drive(poll_deferred=True))
    kinds = [entry.kind for entry in await case.entries()]
    assert kinds.count("assistant") == 2
    request = await case.goes_on()
    assert "late" not in str(list(request.messages))
