"""Usage totals as a command says them: an incomplete sum is null, never a smaller number."""

from perdure.cli.endings import Spent
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
