"""Approvals as people meet them: decide one, and list what waits; read from storage alone.

The list needs no lock and no engine, so a surface in another process may read it (AQ-05, AQ-12).
"""

from collections.abc import Sequence
from typing import Final, cast, get_args

from msgspec import UNSET, Raw

from perdure.errors import Rejected
from perdure.harness.core import Core
from perdure.kinds.approval import approval_state, decide
from perdure.kinds.states import ToolState
from perdure.line.command import Command
from perdure.ports import Storage
from perdure.records.approvals import (
    ApprovalOutcome,
    ApprovalStatus,
    ApprovalView,
    Decision,
    Remember,
    Verdict,
)
from perdure.records.codec import canonical, checked_raw, decode, decode_json, to_raw
from perdure.records.messages import AssistantPayload, read_payload
from perdure.records.seqs import Seq
from perdure.records.sessions import TaskScan
from perdure.records.tasks import Task

PAGE: Final = 100
"""Tasks read at a time."""


async def decide_approval(
    core: Core,
    approval_id: Seq,
    verdict: Verdict,
    *,
    details: object,
    by: str,
    remember: Remember | None = None,
) -> ApprovalOutcome:
    """Decide in one barrier commit; only the first decision is applied (D17, BR-02).

    Raises:
        Rejected: `not_found`, `unknown_target`, `busy`; `invariant` for a decision that is neither
            grant nor deny, for details that are no JSON, for an empty `by`, and for what cannot be
            remembered.
    """
    if verdict not in get_args(Verdict):
        raise Rejected("invariant", f"the decision is {verdict!r}; it is 'grant' or 'deny'")
    if not isinstance(by, str) or not by:  # pyright: ignore[reportUnnecessaryIsInstance]  # a door
        raise Rejected("invariant", f"by is {by!r}; it says who decided, such as 'api:ada'")
    decision = Decision(
        decision=verdict,
        by=by,
        details=UNSET if details is None else _without_secrets(core, details),
        timestamp=core.services.clock.now_ms(),
    )
    outcomes: list[ApprovalOutcome] = []

    async def build(tx: Command) -> None:
        outcomes.append(await decide(tx, core.services, approval_id, decision, remember=remember))

    await core.submit(build, barrier=True)
    return outcomes[0]


def _without_secrets(core: Core, details: object) -> Raw:
    clean, _ = core.services.secrets.value(decode_json(checked_raw(details)))
    return to_raw(clean)


async def list_approvals(storage: Storage, *, waiting_only: bool = True) -> Sequence[ApprovalView]:
    """Answer the approvals of a session by id: those that wait, or all there ever were."""
    views: list[ApprovalView] = []
    after: Seq | None = None
    while True:
        page = await storage.scan_tasks(
            TaskScan(kind="approval", live=True if waiting_only else None, after=after, limit=PAGE)
        )
        views += [await _view(storage, task) for task in page]
        if len(page) < PAGE:
            return views
        after = page[-1].id


async def _view(storage: Storage, task: Task) -> ApprovalView:
    state = approval_state(task)
    name = args_text = None
    if state.tool is not UNSET:
        tool = (await storage.tasks([state.tool]))[state.tool]
        call = decode(tool.state_json, ToolState)
        name, args_text = call.name, await _args_text(storage, tool, call)
    return ApprovalView(
        id=task.id,
        conv=task.conv_id,
        path=await path_to(storage, task.conv_id),
        prompt=state.prompt,
        asked_ms=state.asked_ms,
        status=cast("ApprovalStatus", task.status),
        is_marked=task.abort_requested is not UNSET,
        tool_task=None if state.tool is UNSET else state.tool,
        tool=name,
        args_text=args_text,
        budget=None if state.budget is UNSET else state.budget,
        decision=None if state.decision is UNSET else state.decision,
    )


async def _args_text(storage: Storage, tool: Task, call: ToolState) -> str:
    """Answer the canonical text of the arguments that the hold stored (AQ-05)."""
    args = call.args
    if args is UNSET:
        assert tool.at_entry is not UNSET
        entry = (await storage.entries([tool.at_entry]))[tool.at_entry]
        assert entry.payload_json is not UNSET
        message = read_payload(entry.payload_json, AssistantPayload).message
        args = message.calls[call.call_index].args
    return canonical({} if args is UNSET else dict(args)).decode()


async def path_to(storage: Storage, conv_id: Seq) -> tuple[Seq, ...]:
    """Answer the conversations from the root's down to this one, by who owns them (AQ-12)."""
    path = [conv_id]
    while True:
        state = (await storage.conversations([path[0]])).get(path[0])
        if state is None or state.owner is UNSET:
            return tuple(path)
        owner = (await storage.tasks([state.owner])).get(state.owner)
        if owner is None:
            return tuple(path)
        path.insert(0, owner.conv_id)
