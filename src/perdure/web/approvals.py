"""The routes of approvals: what waits in one session or in all, and a decision (WB-13)."""

from typing import Any, Literal

from msgspec import Struct

from perdure.harness import approvals
from perdure.records.approvals import Verdict
from perdure.web.calls import LIMIT_DEFAULT, LIMIT_MAX, Call, Reply
from perdure.web.reading import at_boundary, camel, path_seq, reply_at
from perdure.web.sessions import Limit
from perdure.web.wire import plain


class ApprovalsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which approvals: those that wait, or all there ever were."""

    status: Literal["waiting", "all"] = "waiting"
    limit: Limit = LIMIT_DEFAULT
    after: int = 0


class AllApprovalsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which waiting approvals of the whole store; `after` is what `next` said."""

    limit: Limit = LIMIT_DEFAULT
    after: str | None = None


class NewDecision(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's decision; whose it is comes with the token, never with the body."""

    decision: Verdict
    details: Any = None
    drive: bool = True


async def list_approvals(call: Call) -> Reply:
    """Answer the approvals that wait, or all, with exactly the arguments that would run."""
    query: ApprovalsQuery = call.query
    async with at_boundary(call, None) as at:
        found = await approvals.list_approvals(at.storage, waiting_only=query.status == "waiting")
        page = [view for view in found if view.id > query.after][: query.limit]
        following = page[-1].id if len(page) == query.limit else None
        return reply_at(at, approvals=[camel(plain(view)) for view in page], next=following)


async def list_all_approvals(call: Call) -> Reply:
    """Answer the approvals that wait in any session, each with its session."""
    query: AllApprovalsQuery = call.query
    house, name, seen, found = call.house, None, set[str](), list[dict[str, Any]]()
    while True:
        page = await house.page(after=name, limit=LIMIT_MAX)
        for info in page:
            seen.add(info.id)
            for view in await house.questions.of(info, house.reading):
                fields = camel(plain(view))
                found.append({**fields, "session": info.id, "sessionName": info.name})
        if len(page) < LIMIT_MAX:
            break
        name = page[-1].name
    house.questions.keep(seen)
    start = next((index + 1 for index, one in enumerate(found) if _cursor(one) == query.after), 0)
    shown = found[start : start + query.limit]
    following = _cursor(shown[-1]) if len(found) > start + query.limit else None
    return Reply(content={"approvals": shown, "next": following})


def _cursor(approval: dict[str, Any]) -> str:
    return f"{approval['session']}.{approval['id']}"


async def decide(call: Call) -> Reply:
    """Decide an approval; the first decision stands, and every later one is told it."""
    body: NewDecision = call.body
    async with call.house.using(call.session) as harness:
        outcome = await harness.decide_approval(
            path_seq(call, "task"),
            body.decision,
            details=body.details,
            by=call.by,
        )
        if body.drive:
            await call.house.drive(call.session)
    return Reply(content=outcome)
