"""What holds for one call: its tool, the host's rules, this process's flags, grants (AQ-01, AQ-02).

Deny is looked for everywhere first. What would ask a person is then let by a flag of this process,
or by what a person let run before; no flag, rule or grant loosens a deny.
"""

from collections.abc import Mapping
from typing import Any, get_args

from msgspec import Struct

from perdure.drive.context import TaskContext
from perdure.errors import Interrupted, text_of
from perdure.kinds.grants import granted
from perdure.kinds.hook_points import limited
from perdure.kinds.services import Services
from perdure.ports import Approval, Tool
from perdure.records.codec import decode_json, encode
from perdure.records.strict_json import repair_text


class Ruling(Struct, frozen=True, kw_only=True):
    """What holds, and who or what says so when it is not the tool alone; `why` is for the model."""

    decision: Approval
    by: str | None = None
    why: str | None = None


async def rule(ctx: TaskContext, services: Services, tool: Tool, args: Mapping[str, Any]) -> Ruling:
    """Answer whether a call with valid arguments runs, asks, or is refused."""
    own = await _declared(ctx, services, tool, args)
    if own.decision == "deny":
        return own
    flag = services.permissions.denied_by(tool.name)
    if flag is not None:
        return Ruling(decision="deny", by=flag)
    matching = services.policy.decide(tool.name, args)
    if matching is not None and matching.decision != own.decision:
        own = Ruling(decision=matching.decision, by=f"policy {matching}")
    if own.decision != "ask":
        return own
    flag = services.permissions.allowed_by(tool.name)
    if flag is not None:
        return Ruling(decision="allow", by=flag)
    now_ms = services.clock.now_ms()
    standing = await granted(ctx.line, ctx.conv_id, tool.name, args, now_ms=now_ms)
    if standing is None:
        return own
    return Ruling(decision="allow", by=f"grant {standing.id} of {standing.grant.by}")


async def _declared(
    ctx: TaskContext, services: Services, tool: Tool, args: Mapping[str, Any]
) -> Ruling:
    """Answer what the tool itself says; a function that fails or hangs blocks the call (AQ-01)."""
    declared = tool.approval
    if not callable(declared):
        return Ruling(decision=declared)
    given = decode_json(encode(args))
    try:
        said = await ctx.outside(limited(services, f"approval of {tool.name}", declared, given))
        if said not in get_args(Approval):
            raise TypeError(f"it answered {said!r}, which is none of allow, ask and deny")
    except Interrupted:
        raise
    except Exception as error:  # noqa: BLE001 - hook: a tool's own rule that fails refuses the call (AQ-01)
        services.report(error, ctx.task_id)
        words = f"the approval function of {tool.name!r} failed: {text_of(error)}"
        return Ruling(decision="deny", why=repair_text(words)[0])
    return Ruling(decision=said)
