"""Settling a call: its one result, and one of four true outcomes, in one commit (TL-08, FM-07)."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from perdure.drive.context import TaskContext
from perdure.kinds.exchange import after_cancellation, record_usage, result_entry
from perdure.kinds.hooks import ToolResult
from perdure.kinds.secrets import Secrets
from perdure.kinds.services import Services
from perdure.kinds.sink import TaskSink, Window
from perdure.kinds.states import ToolState
from perdure.line.command import Command
from perdure.ports import OutputPolicy
from perdure.records.addresses import ACTIVE_TOOLS, task_scope
from perdure.records.codec import decode, decode_json, to_raw
from perdure.records.entries import Outcome
from perdure.records.messages import Cut, Part, TextPart, ToolResultMessage
from perdure.records.settings import ALL_TOOLS
from perdure.records.strict_json import NO_REPAIRS, Repairs
from perdure.records.tasks import Task


class CallResult(Struct, frozen=True, kw_only=True):
    """What one call ended with.

    `cut` says how patched text was cut; `ran_badly` what the call itself said of an error, when a
    hook says otherwise: a hook never changes what follows (D22).
    """

    outcome: Outcome
    parts: tuple[Part, ...]
    is_error: bool
    cut: Cut | None = None
    ran_badly: bool | None = None
    details: Raw | None = None
    checkpoint: Raw | None = None
    window: Window | None = None
    sink: TaskSink | None = None


def tool_state(task: Task) -> ToolState:
    """Decode a call's state."""
    return decode(task.state_json, ToolState)


def error_result(
    outcome: Outcome,
    text: str,
    *,
    window: Window | None = None,
    checkpoint: Raw | None = None,
) -> CallResult:
    """Make an error result of one sentence and what the call had written before."""
    parts: tuple[Part, ...] = (TextPart(text=text),)
    if window is not None and window.total:
        parts = (*parts, TextPart(text=f"output until then:\n{window.shown()}"))
    if checkpoint is not None:
        parts = (*parts, TextPart(text=f"last checkpoint: {bytes(checkpoint).decode()}"))
    return CallResult(
        outcome=outcome, parts=parts, is_error=True, checkpoint=checkpoint, window=window
    )


def as_shown(result: CallResult) -> ToolResult:
    """Answer a result as hooks see it."""
    details = None if result.details is None else decode_json(result.details)
    return ToolResult(content=result.parts, details=details, is_error=result.is_error)


def with_patches(result: CallResult, shown: ToolResult, policy: OutputPolicy) -> CallResult:
    """Answer a result with what hooks replaced; the tool's output cap holds for it too (D22)."""
    changes: dict[str, Any] = {}
    if shown.content is not result.parts:
        parts, cut = _capped(shown.content, policy)
        changes = {"parts": parts, "cut": cut, "window": None}
    if shown.is_error != result.is_error:
        changes |= {"is_error": shown.is_error, "ran_badly": result.is_error}
    before = None if result.details is None else decode_json(result.details)
    if shown.details != before:
        changes["details"] = None if shown.details is None else to_raw(shown.details)
    return msgspec.structs.replace(result, **changes)


def _capped(content: Sequence[Part], policy: OutputPolicy) -> tuple[tuple[Part, ...], Cut | None]:
    window = Window(policy)
    for part in content:
        if isinstance(part, TextPart):
            window.add(part.text)
    if not window.was_cut:
        return tuple(content), None
    others = tuple(part for part in content if not isinstance(part, TextPart))
    return (TextPart(text=window.shown()), *others), window.cut()


async def settle_call(ctx: TaskContext, services: Services, result: CallResult) -> None:
    """Write a call's result, usage and control facts, and settle it.

    When the task was marked meanwhile and the call itself ran to its end, the result stays: the
    outcome that came first is the true one, and nothing follows it anyway (RC-05).
    """

    async def build(tx: Command) -> None:
        task = await tx.task(ctx.task_id)
        await settle_on(tx, task, services, result)

    await ctx.commit(build)


async def settle_on(tx: Command, task: Task, services: Services, result: CallResult) -> None:
    """Write a call's result and settle it in a command that may hold more (AP-05)."""
    state = tool_state(task)
    cut = result.window.cut() if result.window is not None else result.cut
    secrets = services.secrets
    parts, hidden = secrets.parts(result.parts)
    details, in_details = _without(secrets, result.details)
    checkpoint, in_checkpoint = _without(secrets, result.checkpoint)
    replaced = NO_REPAIRS if result.sink is None else result.sink.replaced
    if hidden or in_details or in_checkpoint:
        replaced += Repairs(secrets=hidden + in_details + in_checkpoint)
    assert task.at_entry is not UNSET
    entry = result_entry(
        tx,
        task=task,
        answers=task.at_entry,
        call_index=state.call_index,
        outcome=result.outcome,
        now_ms=services.clock.now_ms(),
        repaired=replaced,
        message=ToolResultMessage(
            call_id=state.call_id,
            tool_name=state.name,
            content=parts,
            details=UNSET if details is None else details,
            is_error=result.is_error,
            cut=UNSET if cut is None else cut,
            checkpoint=UNSET if checkpoint is None else checkpoint,
        ),
    )
    sink = result.sink
    if sink is not None:
        record_usage(tx, task, attempt=state.attempt, usage=sink.reported_usage, model=None)
        await _add_tools(tx, task, services, sink)
    facts: dict[str, Any] = {
        "produced": entry,
        "outcome": result.outcome,
        **services.ledger.worked(task.id, state.worked_ms),
    }
    if result.is_error if result.ran_badly is None else result.ran_badly:
        facts["is_error"] = True
    elif sink is not None:
        if sink.terminates:
            facts["terminate"] = True
        if sink.handoff_text is not None:
            facts["handoff"] = sink.handoff_text
    marked = task.abort_requested is not UNSET
    tx.settle(task, "aborted" if marked else "done", **facts)
    tx.retire_scope(task_scope(task.id))
    if marked:
        await after_cancellation(tx, task, services)


def _without(secrets: Secrets, raw: Raw | None) -> tuple[Raw | None, int]:
    """Answer a stored value without secrets; what holds none keeps its very bytes (SX-05)."""
    if raw is None or not secrets:
        return raw, 0
    value, count = secrets.value(decode_json(raw))
    return (to_raw(value), count) if count else (raw, 0)


async def _add_tools(tx: Command, task: Task, services: Services, sink: TaskSink) -> None:
    """Add known tools to the active ones in this commit; unknown names are dropped (TL-22)."""
    known = [name for name in sink.added_tools if name in services.tools]
    if not known:
        return
    address = ACTIVE_TOOLS.bind(task.conv_id)
    active = await tx.get_value(address, list(services.initial.active_tools))
    if ALL_TOOLS not in active:
        fresh = [name for name in dict.fromkeys(known) if name not in active]
        if fresh:
            tx.set_value(address, [*active, *fresh])
