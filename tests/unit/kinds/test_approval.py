"""A held call and the decision that ends it: one commit each, by whoever comes first (AP)."""

from typing import Any

import pytest
from msgspec import UNSET

from perdure.drive.outcomes import DriveOutcome, DriveResult
from perdure.errors import Rejected
from perdure.harness.approvals import list_approvals
from perdure.harness.conversation import Conversation
from perdure.kinds.approval import Approval, approval_state, hold_for
from perdure.kinds.permissions import Permissions
from perdure.kinds.secrets import Secrets
from perdure.line.line import Preview
from perdure.providers.script import call, say
from perdure.records.approvals import ApprovalView
from perdure.records.codec import canonical, decode_json
from perdure.records.seqs import Seq
from perdure.records.tasks import Task
from perdure.records.writes import InsertEntry, InsertTask, PatchTask, SettleTask
from tests.engine import Engine, Probe, task_moves
from tests.unit.kinds.turns import (
    kinds_of,
    outcomes,
    result_text,
    results,
    settlement,
    tasks_of,
    tool,
)

PAY = {"amount": 10, "to": "ü\u2028", "list": [1.5, None], "big": 2**70}


async def held(engine: Engine, *calls: Any, **options: Any) -> tuple[Conversation, DriveResult]:
    """Drive one turn of calls until it can go no further."""
    options.setdefault("tools", [Probe("pay", approval="ask")])
    replies = [say(*(calls or (call("pay", PAY),))), say("end")]
    root = await engine.root(replies, **options)
    await root.accept("hi")
    return root, await root.drive()


async def asked(engine: Engine, *, waiting_only: bool = True) -> list[ApprovalView]:
    return list(await list_approvals(engine.storage.inner, waiting_only=waiting_only))


async def the_task(engine: Engine, task_id: Seq) -> Task:
    task = await engine.line.task(task_id)
    assert task is not None
    return task


@pytest.mark.spec("AP-01")
def test_statuses_and_moves_are_exactly_these() -> None:
    facts = Approval.facts
    assert {status: role.value for status, role in facts.roles.items()} == {
        "pending": "start",
        "waiting": "waiting",
        "granted": "terminal",
        "denied": "terminal",
        "cancelled": "terminal",
    }
    assert {status: set(moves) for status, moves in facts.transitions.items()} == {
        "pending": {"waiting", "cancelled"},
        "waiting": {"granted", "denied", "cancelled"},
    }
    assert facts.initials == {"pending"}


@pytest.mark.spec("AP-02", "TL-06", "AQ-05")
async def test_a_hold_is_one_command_with_the_validated_arguments(engine: Engine) -> None:
    probe = Probe("pay", approval="ask")
    _, driven = await held(engine, tools=[probe])
    (view,) = await asked(engine)
    assert probe.runs == []
    assert driven.outcome is DriveOutcome.SUSPENDED
    assert [(wait.kind, wait.task) for wait in driven.waiting_for] == [("decision", view.id)]
    assert view.tool_task is not None
    (commit,) = [one for one in await engine.commits() if one.last_seq >= view.id >= one.first_seq]
    assert kinds_of(commit.writes) == ["InsertTask", "PatchTask"]
    made, moved = commit.writes
    assert isinstance(made, InsertTask)
    assert isinstance(moved, PatchTask)
    assert (made.seq, made.spawned_by, made.status) == (view.id, view.tool_task, "pending")
    assert (moved.task_id, moved.status, moved.after) == (view.tool_task, "waiting", (view.id,))
    state = tool(await the_task(engine, view.tool_task))
    assert (state.approval, state.args) == (view.id, PAY)
    assert (view.tool, view.status, view.path) == ("pay", "waiting", (view.conv,))
    assert view.asked_ms == commit.time_ms
    assert view.args_text == canonical(PAY).decode()


@pytest.mark.spec("AP-02")
async def test_the_default_prompt_names_the_tool_and_shows_no_argument(engine: Engine) -> None:
    await held(engine, call("pay", {"amount": "sesame"}))
    (view,) = await asked(engine)
    assert view.prompt == "May pay run?"


@pytest.mark.spec("AP-03", "AP-04", "AQ-05", "BR-02")
async def test_a_grant_is_one_barrier_and_runs_exactly_what_was_shown(engine: Engine) -> None:
    probe = Probe("pay", approval="ask")
    root, _ = await held(engine, tools=[probe])
    (view,) = await asked(engine)
    outcome = await engine.harness.decide_approval(view.id, "grant", by="cli:ada", details="ok")
    assert outcome.applied
    assert outcome.status == "granted"
    assert probe.runs == []
    commit = engine.storage.commits_made[-1]
    assert commit in engine.storage.barriers
    assert kinds_of(commit.writes) == ["SettleTask", "RetireScope", "PatchTask"]
    moved = commit.writes[-1]
    assert isinstance(moved, PatchTask)
    assert (moved.task_id, moved.status) == (view.tool_task, "planned")
    assert moved.state_json
    assert decode_json(moved.state_json) == {"approved": True}
    decided = approval_state(await the_task(engine, view.id)).decision
    assert decided == outcome.decision
    assert (await asked(engine)) == []
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    assert [canonical(dict(args)).decode() for args in probe.runs] == [view.args_text]
    assert await outcomes(root) == ["finished"]
    (told,) = await asked(engine, waiting_only=False)
    assert told.decision
    assert (told.decision.by, told.decision.decision, told.status) == (
        "cli:ada",
        "grant",
        "granted",
    )


@pytest.mark.spec("AP-03")
async def test_changed_arguments_are_stored_shown_and_not_validated_again(engine: Engine) -> None:
    class Doubling(Probe):
        def check(self, args: Any) -> Any:
            return {"amount": args["amount"] * 2}

    probe = Doubling("pay", approval="ask")
    root, _ = await held(engine, call("pay", {"amount": 5}), tools=[probe])
    (view,) = await asked(engine)
    assert view.args_text == '{"amount":10}'
    await engine.close()
    await engine.root([say("end")], tools=[probe])
    await engine.harness.decide_approval(view.id, "grant")
    await (await engine.harness.root()).drive()
    assert probe.runs == [{"amount": 10}]
    assert root is not None


@pytest.mark.spec("AP-05", "BR-02")
async def test_a_denial_settles_the_call_in_its_own_commit(engine: Engine) -> None:
    probe = Probe("pay", approval="ask")
    root, _ = await held(engine, tools=[probe])
    (view,) = await asked(engine)
    outcome = await engine.harness.decide_approval(view.id, "deny", details="too much", by="ada")
    assert (outcome.status, outcome.applied) == ("denied", True)
    commit = engine.storage.commits_made[-1]
    assert commit in engine.storage.barriers
    settled = [one.task_id for one in commit.writes if isinstance(one, SettleTask)]
    assert settled == [view.id, view.tool_task]
    assert any(isinstance(one, InsertEntry) for one in commit.writes)
    (entry,) = await results(root)
    assert entry.meta.outcome == "denied"
    assert result_text(entry) == "denied by ada: too much"
    await root.drive()
    assert probe.runs == []
    assert len(engine.models.requests) == 2


@pytest.mark.spec("AP-06")
@pytest.mark.parametrize("first", ["grant", "deny"])
async def test_a_later_decision_hears_the_first_and_changes_nothing(
    engine: Engine, first: Any
) -> None:
    probe = Probe("pay", approval="ask")
    root, _ = await held(engine, tools=[probe])
    (view,) = await asked(engine)
    applied = await engine.harness.decide_approval(view.id, first, by="a")
    head = engine.line.last_seq
    for later in ("grant", "deny"):
        outcome = await engine.harness.decide_approval(view.id, later, by="b")
        assert (outcome.applied, outcome.status) == (False, applied.status)
        assert outcome.decision == applied.decision
    assert engine.line.last_seq == head
    await root.drive()
    head = engine.line.last_seq
    assert not (await engine.harness.decide_approval(view.id, "grant")).applied
    assert engine.line.last_seq == head
    assert len(probe.runs) == (first == "grant")


@pytest.mark.spec("AP-06")
async def test_what_is_no_open_question_is_refused_by_its_code(engine: Engine) -> None:
    root = await engine.root(
        [say(call("pay", PAY)), say("end")], tools=[Probe("pay", approval="ask")]
    )
    await root.accept("hi")
    held_commit = engine.storage.hold(task_moves("waiting"), when="after")
    engine.begin(root.drive())
    await held_commit.reached.wait()
    announcing = engine.storage.hold(
        lambda commit: any(
            isinstance(write, PatchTask) and write.status == "waiting" for write in commit.writes
        )
    )
    held_commit.open()
    await announcing.reached.wait()
    await engine.kill()
    root = await engine.root([say("end")], tools=[Probe("pay", approval="ask")])
    (view,) = await asked(engine)
    assert view.status == "pending"
    head = engine.line.last_seq
    for target, code in (
        (view.id, "busy"),
        (view.tool_task, "unknown_target"),
        (9999, "not_found"),
    ):
        assert target is not None
        with pytest.raises(Rejected) as refused:
            await engine.harness.decide_approval(Seq(target), "grant")
        assert refused.value.code == code
    for verdict, by in (("yes", "a"), ("grant", "")):
        unchecked: Any = verdict
        with pytest.raises(Rejected, match=repr(verdict if verdict == "yes" else by)):
            await engine.harness.decide_approval(view.id, unchecked, by=by)
    assert engine.line.last_seq == head


@pytest.mark.spec("AP-07", "TL-17", "BB-16")
@pytest.mark.parametrize("verdict", ["grant", "deny"])
async def test_after_a_restart_it_is_announced_once_and_answered(
    engine: Engine, verdict: Any
) -> None:
    await held(engine)
    before = await asked(engine)
    await engine.kill()
    engine.clock.advance(86_400_000)
    probe = Probe("pay", approval="ask")
    root = await engine.root([say("end")], tools=[probe])
    told: list[Preview] = []
    engine.harness.on_preview(told.append)
    assert await asked(engine) == before
    head = engine.line.last_seq
    for _ in range(3):
        assert (await root.drive()).outcome is DriveOutcome.SUSPENDED
    assert engine.line.last_seq == head
    assert [(one.task_id, one.kind) for one in told] == [(before[0].id, "approval")]
    assert probe.runs == []
    await engine.harness.decide_approval(before[0].id, verdict)
    await root.drive()
    assert [canonical(dict(args)).decode() for args in probe.runs] == (
        [before[0].args_text] if verdict == "grant" else []
    )
    assert await outcomes(root) == ["finished" if verdict == "grant" else "denied"]
    assert len(engine.models.requests) == 1


@pytest.mark.spec("AP-08", "SC-06")
async def test_an_abort_cancels_the_question_and_the_call_answers_itself(engine: Engine) -> None:
    probe = Probe("pay", approval="ask")
    root, _ = await held(engine, tools=[probe])
    (view,) = await asked(engine)
    await root.follow_up("and then?")
    report = await root.abort()
    assert {view.id, view.tool_task} <= set(report.marked)
    late = await engine.harness.decide_approval(view.id, "grant")
    assert (late.applied, late.status, late.decision) == (False, "waiting", None)
    await root.drive()
    assert (await the_task(engine, view.id)).status == "cancelled"
    assert view.tool_task is not None
    assert (await the_task(engine, view.tool_task)).status == "aborted"
    assert await outcomes(root) == ["notStarted"]
    wrote = await settlement(engine, view.tool_task)
    assert view.id not in {one.task_id for one in wrote.writes if isinstance(one, SettleTask)}
    late = await engine.harness.decide_approval(view.id, "deny")
    assert (late.applied, late.status, late.decision) == (False, "cancelled", None)
    assert probe.runs == []


@pytest.mark.spec("AP-08", "CN-13")
async def test_what_was_said_after_the_abort_goes_on_whoever_settles_last(engine: Engine) -> None:
    root, _ = await held(engine)
    await root.abort()
    accepted = await root.accept("another thing")
    await root.drive()
    assert (await root.result(accepted.input_id)).state == "answered"


@pytest.mark.spec("AP-10", "SC-06")
async def test_parallel_siblings_run_and_the_join_waits(engine: Engine) -> None:
    free = Probe("free")
    root, _ = await held(
        engine, call("pay", PAY), call("free"), tools=[Probe("pay", approval="ask"), free]
    )
    assert len(free.runs) == 1
    assert await outcomes(root) == ["finished"]
    (join,) = await tasks_of(root, "post_tools")
    assert join.status == "pending"
    assert len(engine.models.requests) == 1


@pytest.mark.spec("AP-10")
async def test_sequential_followers_are_not_even_asked_about(engine: Engine) -> None:
    free = Probe("free")
    root, _ = await held(
        engine,
        *(call("pay", PAY), call("pay", PAY), call("free")),
        tools=[Probe("pay", approval="ask"), free],
        settings={"tool_order": "sequential"},
    )
    assert [task.status for task in await tasks_of(root, "tool")] == [
        "waiting",
        "planned",
        "planned",
    ]
    assert len(await asked(engine)) == 1
    for _ in range(2):
        assert free.runs == []
        (view,) = await asked(engine)
        await engine.harness.decide_approval(view.id, "grant")
        await root.drive()
    assert len(free.runs) == 1


@pytest.mark.spec("BB-18", "AQ-05")
async def test_each_answer_reaches_its_own_call(engine: Engine) -> None:
    probe = Probe("pay", approval="ask")
    calls = [call("pay", {"amount": amount}) for amount in (10, 99, 10)]
    root, _ = await held(engine, *calls, tools=[probe])
    first, second, third = await asked(engine)
    assert [one.args_text for one in (first, second, third)] == [
        '{"amount":10}', '{"amount":99}', '{"amount":10}',
    ]  # fmt: skip
    await engine.harness.decide_approval(third.id, "grant")
    await engine.harness.decide_approval(first.id, "deny")
    await root.drive()
    assert probe.runs == [{"amount": 10}]
    await engine.kill()
    again = Probe("pay", approval="ask")
    root = await engine.root([say("end")], tools=[again])
    assert [one.id for one in await asked(engine)] == [second.id]
    await engine.harness.decide_approval(second.id, "grant")
    await root.drive()
    assert again.runs == [{"amount": 99}]
    assert await outcomes(root) == ["denied", "finished", "finished"]
    assert await asked(engine) == []


@pytest.mark.spec("TL-17")
async def test_a_granted_safe_call_runs_again_after_a_crash_without_a_question(
    engine: Engine,
) -> None:
    async def hangs(args: Any, ctx: Any) -> None:
        await ctx.threads.run("never", lambda: None)
        await engine.clock.sleep(10**9)

    root, _ = await held(engine, tools=[Probe("pay", approval="ask", replay="safe", body=hangs)])
    (view,) = await asked(engine)
    await engine.harness.decide_approval(view.id, "grant")
    engine.begin(root.drive())
    await engine.storage.until(task_moves("running"))
    await engine.kill()
    probe = Probe("pay", approval="ask", replay="safe")
    root = await engine.root([say("end")], tools=[probe])
    await root.drive()
    assert probe.runs == [PAY]
    assert await outcomes(root) == ["finished"]


@pytest.mark.spec("FM-07")
async def test_a_call_that_ran_before_a_crash_is_never_asked_about(engine: Engine) -> None:
    async def hangs(args: Any, ctx: Any) -> None:
        await engine.clock.sleep(10**9)

    first = Probe("pay", approval="ask", replay="safe", body=hangs)
    root = await engine.root([say(call("pay"))], tools=[first], permissions=Permissions(yes=True))
    await root.accept("hi")
    engine.begin(root.drive())
    await engine.storage.until(task_moves("running"))
    await engine.kill()
    root = await engine.root([say("end")], tools=[Probe("pay", approval="ask", replay="safe")])
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    assert await outcomes(root) == ["interrupted"]


async def test_a_standalone_approval_is_background_and_touches_only_itself(
    engine: Engine,
) -> None:
    root = await engine.root([say("end")])
    core = engine.harness._core
    made: list[Seq] = []
    await core.line.submit(lambda tx: made.append(hold_for(tx, root.id, prompt="Go on?", now_ms=5)))
    assert (await root.prompt("hi")).text == "end"
    assert (await engine.harness.drive()).outcome is DriveOutcome.SUSPENDED
    (view,) = await asked(engine)
    assert (view.id, view.tool, view.args_text, view.prompt) == (made[0], None, None, "Go on?")
    await engine.harness.decide_approval(view.id, "deny", details={"why": [1]})
    commit = engine.storage.commits_made[-1]
    assert kinds_of(commit.writes) == ["SettleTask", "RetireScope"]
    assert (await engine.harness.drive()).outcome is DriveOutcome.IDLE


@pytest.mark.spec("AQ-06")
async def test_a_decision_is_stored_whole_without_secrets(engine: Engine) -> None:
    await held(engine, secrets=Secrets({"KEY": "hunter2hunter2"}))
    (view,) = await asked(engine)
    engine.clock.advance(1_000)
    details = {"note": "it is hunter2hunter2", "n": 3}
    await engine.harness.decide_approval(view.id, "grant", by="http:ada", details=details)
    (told,) = await asked(engine, waiting_only=False)
    assert told.decision
    assert told.decision.details is not UNSET
    assert decode_json(told.decision.details) == {"note": "it is [secret KEY]", "n": 3}
    assert told.decision.timestamp == engine.clock.now_ms()
    assert told.decision.timestamp > told.asked_ms
