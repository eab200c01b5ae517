"""The routes of a session's history: its commits, who opened it, what it used (WB-09)."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, cast

from msgspec import Struct

from perdure.harness.spending import BudgetSpent, open_budgets
from perdure.harness.usage import UsageReader
from perdure.records.seqs import Seq
from perdure.records.usage import UsageTotals
from perdure.web.calls import LIMIT_DEFAULT, Call, Reply
from perdure.web.kept import Timeline
from perdure.web.reading import AtQuery, at_boundary, camel, conversation_of, reply_at
from perdure.web.sessions import Limit
from perdure.web.wire import commit_record, plain


class UsageQuery(AtQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose usage."""

    conversation: int | None = None


class CommitsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which main commits; with `before` or `newest` the last ones below.

    Without `writes` only where each begins and ends, and when: cheap also for a long history.
    """

    limit: Limit = LIMIT_DEFAULT
    after: int = 0
    before: int | None = None
    newest: bool = False
    writes: bool = True


class OpeningsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many openings, the newest first."""

    limit: Limit = LIMIT_DEFAULT


async def get_usage(call: Call) -> Reply:
    """Answer what the session, or one conversation, has used, and what is spent of each budget.

    Budgets are those of the inputs that live work owes an answer; a look back has none.
    """
    query: UsageQuery = call.query
    async with at_boundary(call, query.as_of) as at:
        conv_id = None
        if query.conversation is not None:
            word = str(query.conversation)
            conv_id = (await conversation_of(at.storage, word, as_of=at.as_of)).id
        totals = await UsageReader(at.storage).totals(conv_id, as_of=at.as_of)
        budgets = await open_budgets(at.storage) if query.as_of is None else ()
        return reply_at(
            at,
            usage=usage_record(totals),
            budgets=[_budget(one) for one in budgets],
        )


def _budget(one: BudgetSpent) -> dict[str, Any]:
    return {"inputId": one.input_id, "currency": one.currency, "limits": plain(one.limits)}


def usage_record(totals: UsageTotals) -> dict[str, Any]:
    """Answer totals as the wire names them; the keys of costs are currencies and stay."""
    fields = camel(plain(totals))
    return {
        name: camel(cast("dict[str, Any]", item))
        if isinstance(item, dict) and name != "costs"
        else item
        for name, item in fields.items()
    }


async def list_commits(call: Call) -> Reply:
    """Answer main commits in order, as the event stream sends them."""
    query: CommitsQuery = call.query
    backwards = query.newest or query.before is not None
    async with at_boundary(call, None) as at:
        if query.writes and not backwards:
            page = await at.storage.commits(after=Seq(query.after), limit=query.limit)
            following = page[-1].last_seq if len(page) == query.limit else None
            return reply_at(at, commits=[commit_record(one) for one in page], next=following)
        timeline = await call.house.timelines.of(call.session, at.storage)
        numbers, following = _numbers(timeline, query, backwards=backwards)
        commits: Sequence[Any] = [timeline.record(number) for number in numbers]
        if query.writes and numbers:
            after = Seq(timeline.lasts[numbers[0] - 1] if numbers[0] else 0)
            page = await at.storage.commits(after=after, limit=len(numbers))
            commits = [commit_record(one) for one in page]
        return reply_at(at, commits=commits, next=following, total=len(timeline.lasts))


def _numbers(
    timeline: Timeline, query: CommitsQuery, *, backwards: bool
) -> tuple[range, int | None]:
    """Answer which commits a page holds, and the cursor of the next page."""
    lasts = timeline.lasts
    low = bisect_right(lasts, query.after)
    high = len(lasts) if query.before is None else bisect_left(lasts, query.before)
    if backwards:
        numbers = range(max(low, high - query.limit), max(low, high))
        is_more = len(numbers) > 0 and numbers[0] > low
        return numbers, lasts[numbers[0]] if is_more else None
    numbers = range(low, max(low, min(high, low + query.limit)))
    is_more = len(numbers) > 0 and numbers[-1] < high - 1
    return numbers, lasts[numbers[-1]] if is_more else None


async def list_openings(call: Call) -> Reply:
    """Answer who opened the session when, newest first."""
    query: OpeningsQuery = call.query
    async with at_boundary(call, None) as at:
        found = await at.storage.openings(limit=query.limit)
        return reply_at(at, openings=[camel(plain(one)) for one in found], next=None)
