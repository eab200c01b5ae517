"""Races around a person's decision: with an abort, another decision, the hold, and the process."""

import asyncio
from typing import Any

import pytest

from perdure.errors import Faulted
from perdure.harness.approvals import list_approvals
from perdure.harness.conversation import Conversation
from perdure.providers.script import call, say
from perdure.records.seqs import Seq
from perdure.records.writes import InsertTask, PatchTask, SettleTask
from tests.engine import Engine, Probe, is_main, writes
from tests.races.held import after_the_held


async def asked(engine: Engine, *tools: Probe) -> tuple[Conversation, Seq]:
    """Drive to the question; answers the conversation and the approval."""
    root = await engine.root([say(call("pay")), say("end")], tools=tools)
    await root.accept("hi")
    await root.drive()
    (view,) = await list_approvals(engine.storage.inner)
    return root, view.id


def paying() -> Probe:
    return Probe("pay", approval="ask")


async def outcomes(root: Conversation) -> list[str | None]:
    entries = await root.entries()
    return [str(entry.meta.outcome) for entry in entries if entry.kind == "tool_result"]


@pytest.mark.spec("AP-06", "AP-08", "AP-09", "CN-06")
@pytest.mark.parametrize("verdict", ["grant", "deny"])
async def test_a_mark_before_the_decision_leaves_nothing_to_decide(
    engine: Engine, verdict: Any
) -> None:
    pay = paying()
    root, approval = await asked(engine, pay)
    held = engine.storage.hold(writes(PatchTask, abort_requested=True))
    aborting = engine.begin(root.abort())
    await held.reached.wait()
    answer = await after_the_held(engine, held, engine.harness.decide_approval(approval, verdict))
    await aborting
    assert (answer.applied, answer.decision) == (False, None)
    await root.drive()
    assert pay.runs == []
    assert await outcomes(root) == ["notStarted"]
    task = await root.task(approval)
    assert task is not None
    assert task.status == "cancelled"
    assert not await root.tasks(live=True)


@pytest.mark.spec("AP-06", "AP-08", "AP-09", "CN-01")
@pytest.mark.parametrize(("verdict", "outcome"), [("grant", "notStarted"), ("deny", "denied")])
async def test_a_decision_before_the_mark_stands_and_the_abort_reaches_what_is_left(
    engine: Engine, verdict: Any, outcome: str
) -> None:
    pay = paying()
    root, approval = await asked(engine, pay)
    held = engine.storage.hold(writes(SettleTask, task_id=approval))
    deciding = engine.begin(engine.harness.decide_approval(approval, verdict))
    await held.reached.wait()
    report = await after_the_held(engine, held, root.abort())
    assert (await deciding).applied
    live = {"grant": {"tool", "post_tools"}, "deny": {"post_tools"}}[verdict]
    kinds = {task.id: task.kind for task in await root.tasks()}
    assert {kinds[one] for one in report.marked} == live
    await root.drive()
    assert pay.runs == []
    assert await outcomes(root) == [outcome]
    assert not await root.tasks(live=True)


@pytest.mark.spec("AP-06", "AQ-06")
@pytest.mark.parametrize(("first", "second"), [("grant", "deny"), ("deny", "grant")])
async def test_of_two_decisions_the_first_counts_and_the_second_hears_it(
    engine: Engine, first: Any, second: Any
) -> None:
    pay = paying()
    root, approval = await asked(engine, pay)
    held = engine.storage.hold(is_main)
    deciding = engine.begin(engine.harness.decide_approval(approval, first, by="ann"))
    await held.reached.wait()
    late = await after_the_held(
        engine, held, engine.harness.decide_approval(approval, second, by="bob")
    )
    early = await deciding
    assert (early.applied, late.applied) == (True, False)
    assert late.decision is not None
    assert late.decision == early.decision
    assert (late.decision.decision, late.decision.by) == (first, "ann")
    await root.drive()
    assert len(pay.runs) == (1 if first == "grant" else 0)
    assert await outcomes(root) == ["finished" if first == "grant" else "denied"]


@pytest.mark.spec("AP-06", "AQ-06")
async def test_twenty_decisions_at_once_are_one(engine: Engine) -> None:
    pay = paying()
    root, approval = await asked(engine, pay)
    before = len(await engine.commits())
    verdicts: list[Any] = ["grant", "deny"] * 10
    answers = await asyncio.gather(
        *(
            engine.harness.decide_approval(approval, verdict, by=f"p{n}")
            for n, verdict in enumerate(verdicts)
        )
    )
    assert sum(answer.applied for answer in answers) == 1
    assert len({repr(answer.decision) for answer in answers}) == 1
    assert len(await engine.commits()) == before + 1
    await root.drive()
    assert len(pay.runs) == (1 if answers[0].status == "granted" else 0)
    assert len(await outcomes(root)) == 1


@pytest.mark.spec("AP-08", "CN-06", "TL-06")
async def test_a_mark_before_the_hold_asks_nobody(engine: Engine) -> None:
    pay = paying()
    root = await engine.root([say(call("pay"))], tools=[pay])
    await root.accept("hi")
    held = engine.storage.hold(_answers)
    driving = engine.begin(root.drive())
    await held.reached.wait()
    aborting = engine.begin(root.abort())
    await asyncio.sleep(0)
    held.open()
    await aborting
    await driving
    assert [task.kind for task in await root.tasks()] == ["generation", "tool", "post_tools"]
    assert await outcomes(root) == ["notStarted"]


@pytest.mark.spec("AP-08", "CN-01", "CN-04")
async def test_a_hold_before_the_mark_is_marked_with_its_call(engine: Engine) -> None:
    pay = paying()
    root = await engine.root([say(call("pay"))], tools=[pay])
    await root.accept("hi")
    held = engine.storage.hold(writes(InsertTask, kind="approval"))
    driving = engine.begin(root.drive())
    await held.reached.wait()
    report = await after_the_held(engine, held, root.abort())
    kinds = {task.id: task.kind for task in await root.tasks()}
    assert sorted(kinds[one] for one in report.marked) == ["approval", "post_tools", "tool"]
    await driving
    statuses = {task.kind: task.status for task in await root.tasks()}
    assert statuses["approval"] == "cancelled"
    assert await outcomes(root) == ["notStarted"]


@pytest.mark.spec("AP-04", "AP-06", "AP-07")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verdict", ["grant", "deny"])
async def test_a_decision_cut_off_by_a_kill_is_open_or_applied_once(
    engine: Engine, verdict: Any, when: Any
) -> None:
    _, approval = await asked(engine, paying())
    held = engine.storage.hold(writes(SettleTask, task_id=approval), when=when)
    deciding = engine.begin(engine.harness.decide_approval(approval, verdict))
    await held.reached.wait()
    await engine.kill()
    with pytest.raises((Faulted, asyncio.CancelledError)):
        await deciding
    pay = paying()
    root = await engine.root([say("end")], tools=[pay])
    still_open = [view.id for view in await list_approvals(engine.storage.inner)]
    assert still_open == ([approval] if when == "before" else [])
    again = await engine.harness.decide_approval(approval, verdict)
    assert again.applied == (when == "before")
    assert again.status == {"grant": "granted", "deny": "denied"}[verdict]
    await root.drive()
    assert len(pay.runs) == (1 if verdict == "grant" else 0)
    assert await outcomes(root) == ["finished" if verdict == "grant" else "denied"]
    (record,) = [entry for entry in await root.entries() if entry.kind == "user"]
    assert (await root.result(record.id)).text == "end"


def _answers(commit: Any) -> bool:
    return any(isinstance(write, InsertTask) and write.kind == "tool" for write in commit.writes)
