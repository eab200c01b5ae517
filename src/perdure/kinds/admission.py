"""May this call run? Decided in one order: what cannot run is never asked about (AQ-04, BB-31).

Unknown tool, tool not offered, arguments cut or wrong; then permission. A person is asked by
holding the call: one command creates the approval and moves the call to waiting with the
validated arguments, which are exactly those that run when it is granted (AP-02, AQ-05).
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET, Struct

from perdure.drive.context import TaskContext
from perdure.errors import InvalidArguments
from perdure.kinds.approval import hold_for
from perdure.kinds.budgets import Allowance, afford
from perdure.kinds.hook_points import before_tool
from perdure.kinds.hooks import Block
from perdure.kinds.ruling import rule
from perdure.kinds.services import Services
from perdure.kinds.tool_settlement import CallResult, error_result, tool_state
from perdure.line.command import Command
from perdure.ports import Tool
from perdure.records.budgets import Reached
from perdure.records.codec import encode
from perdure.records.messages import ToolCallPart
from perdure.records.strict_json import parse_object, repair_text
from perdure.records.tasks import Task

SCHEMA_CHARACTERS_MAX: Final = 2_048
"""Longest text that tells a model what was wrong with its arguments (PV-09)."""


class Admitted(Struct, frozen=True, kw_only=True):
    """The call runs with these arguments; `allowed_by` says whose flag let it (AQ-09)."""

    tool: Tool
    args: Mapping[str, Any]
    allowed_by: str | None = None


class Asking(Struct, frozen=True, kw_only=True):
    """A person decides whether the call runs with these arguments."""

    args: Mapping[str, Any]
    prompt: str


async def admit(
    ctx: TaskContext, services: Services, task: Task, call: ToolCallPart
) -> Admitted | Asking | CallResult:
    """Answer whether a call runs, waits for a person, or ends with a result that says why not."""
    state = tool_state(task)
    tool = services.tools.get(state.name)
    if tool is None:
        known = ", ".join(sorted(services.tools)) or "none"
        return error_result(
            "notStarted", f"not executed: tool {state.name!r} not found; there are: {known}"
        )
    if not state.offered:
        return error_result(
            "notStarted", f"not executed: tool {state.name!r} was not offered to this request"
        )
    if call.args is UNSET:
        return _bad_arguments(tool, _why_unparsed(call))
    args = state.args if state.args is not UNSET else _checked(tool, call.args)
    if isinstance(args, CallResult):
        return args
    if state.approved is not UNSET:
        return Admitted(tool=tool, args=args)
    return await _permitted(ctx, services, task, tool, args)


def _checked(tool: Tool, args: Mapping[str, Any]) -> Mapping[str, Any] | CallResult:
    """Validate arguments against the tool's schema (TL-04)."""
    try:
        return tool.check(args)
    except InvalidArguments as error:
        return _bad_arguments(tool, str(error))


async def _permitted(
    ctx: TaskContext, services: Services, task: Task, tool: Tool, args: Mapping[str, Any]
) -> Admitted | Asking | CallResult:
    """Ask the hooks, then the policy; what the policy denies, no hook's hold can open (AQ-04)."""
    objection = await before_tool(ctx, services, task, args)
    ctx.check_signal()
    if isinstance(objection, Block):
        return error_result("denied", objection.text)
    ruling = await rule(ctx, services, tool, args)
    ctx.check_signal()
    if ruling.decision == "deny":
        whose = f" by {ruling.by}" if ruling.by else ""
        why = ruling.why or f"calls of {tool.name!r} are not allowed"
        return error_result("denied", f"denied{whose}: {why}")
    if objection is not None or ruling.decision == "ask":
        prompt = None if objection is None else objection.prompt
        return Asking(args=args, prompt=prompt or f"May {tool.name} run?")
    return Admitted(tool=tool, args=args, allowed_by=ruling.by)


async def hold_call(ctx: TaskContext, services: Services, asking: Asking) -> Reached | None:
    """Create the approval and put the call to sleep on it, in one command (TL-06, AP-02).

    A budget that is reached comes first: it is answered, or asked about instead (AQ-04).
    """
    over: list[Reached] = []

    async def build(tx: Command) -> None:
        task = await tx.task(ctx.task_id)
        if task.abort_requested is not UNSET:
            return
        allowance = await afford(tx, services, task, None)
        if isinstance(allowance, Reached):
            over.append(allowance)
        if not isinstance(allowance, Allowance):
            return
        approval = hold_for(
            tx,
            task.conv_id,
            prompt=asking.prompt,
            now_ms=services.clock.now_ms(),
            tool=task.id,
        )
        tx.patch(task, status="waiting", after=[approval], approval=approval, args=asking.args)

    await ctx.commit(build)
    return over[0] if over else None


def _why_unparsed(call: ToolCallPart) -> str:
    """Say what is wrong with arguments that the strict parser refused, such as a long number."""
    why = "the arguments are not a complete JSON object"
    try:
        parse_object("" if call.args_text is UNSET else call.args_text)
    except InvalidArguments as error:
        return f"{why}: {error}"
    return why


def _bad_arguments(tool: Tool, fault: str) -> CallResult:
    schema = encode(tool.parameters).decode()
    text = f"not executed: {fault}; {tool.name} takes {schema}"
    return error_result("notStarted", repair_text(text)[0][:SCHEMA_CHARACTERS_MAX])
