"""Usage totals as a command says them: an incomplete sum is null, never a smaller number."""

from collections.abc import Mapping

from perdure.cli.endings import Spent
from perdure.harness.spending import BudgetSpent, LimitSpent
from perdure.records.usage import TokenSum, UsageTotals


def spent_of(totals: UsageTotals) -> Spent | None:
    """Answer the totals for a document; None when nothing was asked of any model."""
    if not totals.reports and not totals.unknown_attempts:
        return None
    certain = totals.unknown_attempts == 0

    def known(tokens: TokenSum) -> int | None:
        return tokens.tokens if certain and not tokens.unknown_reports else None

    is_priced = certain and not totals.unknown_costs
    return Spent(
        input=known(totals.input),
        output=known(totals.output),
        cache_read=known(totals.cache_read),
        cache_write=known(totals.cache_write),
        reasoning=known(totals.reasoning),
        cost={currency: f"{amount:f}" for currency, amount in totals.costs.items()}
        if is_priced
        else None,
        reports=totals.reports,
        unknown_attempts=totals.unknown_attempts,
    )


def spent_words(spent: Spent | None) -> str:
    """Answer what was spent in one line; what is not known is said, never left out."""
    if spent is None:
        return "nothing"
    if not spent.reports:
        return f"unknown ({spent.unknown_attempts:,} requests)"
    tokens = f"{_number(spent.input)} tokens in, {_number(spent.output)} out"
    money = "unknown cost" if spent.cost is None else _money(spent.cost)
    unknown = f", {spent.unknown_attempts:,} requests unknown" if spent.unknown_attempts else ""
    return f"{tokens}, {money}{unknown}"


def limits_words(budget: BudgetSpent) -> str:
    """Answer what is spent against each limit of a budget, in one line (BG-11)."""
    return ", ".join(_limit_words(one, budget.currency) for one in budget.limits)


def _limit_words(one: LimitSpent, currency: str) -> str:
    unit = currency if one.field == "cost" else one.field
    unknown = f" and {one.unknown:,} unknown" if one.unknown else ""
    return f"{one.spent} of {one.limit} {unit}{unknown}"


def _number(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _money(cost: Mapping[str, str]) -> str:
    return " + ".join(f"{amount} {currency}" for currency, amount in cost.items()) or "no cost"
