"""An approval: a person's decision that a call, or a whole tree, waits for (seed 3.15, D17).

It blocks nothing by itself: what waits has it in `after`. Announcing it is all its effect does;
the decision is a command of its own (`decide`), which ends it together with all that follows.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import UNSET, Raw, UnsetType

from perdure.drive.context import TaskContext
from perdure.drive.kind import NO_HOLD, EndsBy, Hold, Slot
from perdure.errors import Rejected
from perdure.kinds.budget_decisions import decide_budget
from perdure.kinds.exchange import after_cancellation
from perdure.kinds.grants import make_grant, root_of_tree
from perdure.kinds.services import Services
from perdure.kinds.tool_settlement import error_result, settle_on, tool_state
from perdure.line.command import Command
from perdure.line.facts import TaskFacts
from perdure.records.addresses import GRANTS, task_scope
from perdure.records.approvals import ApprovalOutcome, ApprovalState, Decision, Remember
from perdure.records.codec import canonical, decode, decode_json
from perdure.records.seqs import Seq
from perdure.records.tasks import Role, Task

ANNOUNCED: Final = "approval"
"""The preview that shows watchers a question; its payload is the stored state."""


class Approval:
    """The approval kind."""

    facts: TaskFacts = TaskFacts(
        name="approval",
        roles={
            "pending": Role.START,
            "waiting": Role.WAITING,
            "granted": Role.TERMINAL,
            "denied": Role.TERMINAL,
            "cancelled": Role.TERMINAL,
        },
        initials=frozenset({"pending"}),
        transitions={
            "pending": frozenset({"waiting", "cancelled"}),
            "waiting": frozenset({"granted", "denied", "cancelled"}),
        },
        state=ApprovalState,
        wakes=frozenset({"tool"}),
    )
    slots: Mapping[str, Slot] = MappingProxyType({})
    ends_by: Mapping[str, EndsBy] = MappingProxyType({"waiting": "decision"})

    def __init__(self, services: Services) -> None:
        """Take the host's services."""
        self._services = services

    def hold(self, task: Task) -> Hold:
        """Answer nothing: it is announced as soon as somebody drives."""
        return NO_HOLD

    async def effect(self, task: Task, ctx: TaskContext) -> None:
        """Commit waiting, announce, and return: the decision comes from elsewhere."""
        if await ctx.patch(status="waiting"):
            self._announce(task, ctx)

    async def recover(self, task: Task, ctx: TaskContext) -> None:
        """Announce it once more after a restart; grants nothing (AP-07)."""
        self._announce(task, ctx)

    async def abort(self, task: Task, ctx: TaskContext) -> None:
        """Settle a marked approval; the marked call writes its own result (AP-08)."""

        async def build(tx: Command) -> None:
            approval = await tx.task(task.id)
            tx.settle(approval, "cancelled")
            tx.retire_scope(task_scope(approval.id))
            await after_cancellation(tx, approval, self._services)

        await ctx.commit(build)

    def _announce(self, task: Task, ctx: TaskContext) -> None:
        ctx.emit(ANNOUNCED, decode_json(task.state_json))


def approval_state(task: Task) -> ApprovalState:
    """Decode an approval's state."""
    return decode(task.state_json, ApprovalState)


def hold_for(
    tx: Command,
    conv_id: Seq,
    *,
    prompt: str,
    now_ms: int,
    tool: Seq | UnsetType = UNSET,
    spawned_by: Seq | UnsetType = UNSET,
    budget: Mapping[str, Any] | UnsetType = UNSET,
) -> Seq:
    """Create an approval in this command; whoever it holds takes its id into `after` (AP-02).

    `tool` is the held call, which is what the approval is for; `spawned_by` names another task.
    """
    return tx.insert_task(
        conv_id,
        "approval",
        ApprovalState(v=1, prompt=prompt, asked_ms=now_ms, tool=tool, budget=budget),
        status="pending",
        spawned_by=spawned_by if tool is UNSET else tool,
    )


async def decide(
    tx: Command,
    services: Services,
    approval_id: Seq,
    decision: Decision,
    *,
    remember: Remember | None = None,
) -> ApprovalOutcome:
    """Apply the first decision with all that follows; later ones hear what stands (AP-06).

    Raises:
        Rejected: `not_found`; `unknown_target` for a task of another kind; `busy` for an approval
            that was not announced yet, so nobody can have seen what they answer; `invariant` for a
            budget that a grant does not raise, and for what cannot be remembered.
    """
    task = await tx.task(approval_id)
    if task.kind != "approval":
        raise Rejected("unknown_target", f"task {approval_id} is a {task.kind}, not an approval")
    state = approval_state(task)
    ended = task.status not in ("pending", "waiting")
    if ended or task.abort_requested is not UNSET:
        stands = None if state.decision is UNSET else state.decision
        return _outcome(task.status, applied=False, decision=stands)
    if task.status == "pending":
        raise Rejected(
            "busy", f"approval {approval_id} was not announced yet; drive the session, then decide"
        )
    status = "granted" if decision.decision == "grant" else "denied"
    tx.settle(task, status, decision=decision)
    tx.retire_scope(task_scope(task.id))
    if state.budget is not UNSET:
        for other in await decide_budget(tx, services, task.id, state.budget, decision):
            tx.settle(other, status, decision=decision)
            tx.retire_scope(task_scope(other.id))
    if state.tool is not UNSET:
        await _answer_call(tx, services, state.tool, decision)
    grant = None if remember is None else await _remember(tx, state, decision, remember)
    return _outcome(status, applied=True, decision=decision, grant=grant)


def _outcome(
    status: str, *, applied: bool, decision: Decision | None, grant: Seq | None = None
) -> ApprovalOutcome:
    known: Any = status
    return ApprovalOutcome(status=known, applied=applied, decision=decision, grant=grant)


async def _remember(
    tx: Command, state: ApprovalState, decision: Decision, remember: Remember
) -> Seq:
    """Write the grant beside the decision it comes from; answers its id (AQ-10)."""
    if decision.decision != "grant" or state.tool is UNSET:
        raise Rejected("invariant", "only the grant of a call is remembered, never a deny")
    task = await tx.task(state.tool)
    call = tool_state(task)
    assert call.args is not UNSET
    grant = make_grant(
        remember,
        call.name,
        call.args,
        root=await root_of_tree(tx.conversation, tx.task, task.conv_id),
        by=decision.by,
        now_ms=decision.timestamp,
    )
    return tx.append_list(GRANTS.address(), grant)


async def _answer_call(tx: Command, services: Services, tool: Seq, decision: Decision) -> None:
    """Let the held call go on, or settle it denied, in the decision's own commit (AP-03, AP-05)."""
    task = await tx.task(tool)
    if task.status != "waiting" or task.abort_requested is not UNSET:
        return
    if decision.decision == "grant":
        tx.patch(task, status="planned", approved=True)
        return
    why = "" if decision.details is UNSET else f": {_said(decision.details)}"
    await settle_on(tx, task, services, error_result("denied", f"denied by {decision.by}{why}"))


def _said(details: Raw) -> str:
    """Answer what a person said with the decision: a text as it is, anything else as JSON."""
    value = decode_json(details)
    return value if isinstance(value, str) else canonical(value).decode()
