"""Raise what a session of another process waits for, before following it (BG-12)."""

from msgspec import structs

from perdure.cli.driving.plan import Plan
from perdure.cli.forwarding.there import There
from perdure.cli.reading import reading
from perdure.cli.work import by_of
from perdure.harness.approvals import list_approvals
from perdure.harness.spending import nothing_raised


async def raise_there(plan: Plan, session: There) -> Plan:
    """Grant every question about a budget that the plan's limits answer; answers the plan left.

    Raises:
        Rejected: `nothing_to_do`, when none waits for one of these limits; `invariant`, for a limit
            that is not above the one it replaces.
    """
    async with reading(plan.url, session.session) as storage:
        views = [view for view in await list_approvals(storage) if view.budget is not None]
    granted = False
    for view in views:
        field = "" if view.budget is None else view.budget["field"]
        if field in plan.raises:
            details = {"raise": {field: plan.raises[field]}}
            await session.decide(view.id, "grant", details, by=by_of("cli"))
            granted = True
    if not granted:
        raise nothing_raised(plan.raises, [view.prompt for view in views])
    return structs.replace(plan, raises={})
