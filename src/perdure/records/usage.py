"""Usage arithmetic: what a list of usage elements adds up to (US-04, US-10, D25).

Unknown is never zero: a report that leaves a figure out is counted beside the sum it is missing
from, and an attempt that reported nothing at all is counted by itself. An adjustment is a
difference to the report it names; a difference to an unknown figure leaves it unknown.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, localcontext
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from perdure.records.messages import Cost, Usage, UsageElement
from perdure.records.seqs import SEQ_MAX, Seq

COST_DIGITS: Final = 1_000
"""Digits to which sums of money are exact; amounts of money have about ten."""

_AMOUNT: Final = re.compile(r"-?[0-9]{1,100}(\.[0-9]{1,100})?")


class TokenSum(Struct, frozen=True, gc=False, kw_only=True):
    """Tokens of one kind, and how many reports did not say how many."""

    tokens: int = 0
    unknown_reports: int = 0

    def __add__(self, other: "TokenSum") -> "TokenSum":
        """Add two sums."""
        return TokenSum(
            tokens=self.tokens + other.tokens,
            unknown_reports=self.unknown_reports + other.unknown_reports,
        )


NO_TOKENS: Final = TokenSum()


class UsageTotals(Struct, frozen=True, gc=False, kw_only=True):
    """What was used: tokens by kind, cost by currency, and everything that is not known.

    `input` excludes cached tokens; `reasoning` is part of `output`. `unknown_costs` counts
    reports without a cost, `attempts` the requests that ended, `unknown_attempts` those of them
    without a report, `turns` assistant entries, `worked_ms` the time that tasks were in flight.
    All of these are a conversation's own; `children` is what the conversations that it owns used,
    at any depth, None where there are none (BG-11).
    """

    reports: int = 0
    adjustments: int = 0
    attempts: int = 0
    unknown_attempts: int = 0
    turns: int = 0
    worked_ms: int = 0
    input: TokenSum = NO_TOKENS
    output: TokenSum = NO_TOKENS
    cache_read: TokenSum = NO_TOKENS
    cache_write: TokenSum = NO_TOKENS
    reasoning: TokenSum = NO_TOKENS
    costs: Mapping[str, Decimal] = MappingProxyType({})
    unknown_costs: int = 0
    children: "UsageTotals | None" = None

    @property
    def seconds(self) -> float:
        """Answer the time that tasks were in flight, once for parallel work (BG-04)."""
        return self.worked_ms / 1_000

    @property
    def own(self) -> "UsageTotals":
        """Answer the totals without those of owned conversations."""
        return self if self.children is None else structs.replace(self, children=None)

    @property
    def with_children(self) -> "UsageTotals":
        """Answer the sum with all owned conversations."""
        return self if self.children is None else self + self.children

    def __add__(self, other: "UsageTotals") -> "UsageTotals":
        """Add what two used themselves, exactly; the answer has no children."""
        return UsageTotals(
            reports=self.reports + other.reports,
            adjustments=self.adjustments + other.adjustments,
            attempts=self.attempts + other.attempts,
            unknown_attempts=self.unknown_attempts + other.unknown_attempts,
            turns=self.turns + other.turns,
            worked_ms=self.worked_ms + other.worked_ms,
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            reasoning=self.reasoning + other.reasoning,
            costs=_added(self.costs, other.costs),
            unknown_costs=self.unknown_costs + other.unknown_costs,
        )


NO_USAGE: Final = UsageTotals()


def usage_totals(
    elements: Iterable[UsageElement],
    attempts: Mapping[Seq, int] | None = None,
    *,
    base: UsageTotals = NO_USAGE,
) -> UsageTotals:
    """Add elements to `base`; a page of the list at a time gives the same as the whole list.

    `attempts` names how many attempts each task made; those among them that none of `elements`
    reports are the unknown ones. Give it with all elements of these tasks, or leave it out.
    """
    totals = base
    reported: set[tuple[Seq, int]] = set()
    for element in elements:
        totals += _of(element)
        if attempts is not None and element.kind == "report":
            reported.add((element.task, element.attempt))
    if attempts is None:
        return totals
    unknown = sum(
        (task, attempt) not in reported
        for task, count in attempts.items()
        for attempt in range(1, count + 1)
    )
    return totals + UsageTotals(attempts=sum(attempts.values()), unknown_attempts=unknown)


def _of(element: UsageElement) -> UsageTotals:
    is_report = element.kind == "report"
    amount = cost_amount(element.cost)
    currency = element.cost.currency if element.cost is not None else ""
    return UsageTotals(
        reports=int(is_report),
        adjustments=int(not is_report),
        input=_tokens(element.input, is_report),
        output=_tokens(element.output, is_report),
        cache_read=_tokens(element.cache_read, is_report),
        cache_write=_tokens(element.cache_write, is_report),
        reasoning=_tokens(element.reasoning, is_report),
        costs=MappingProxyType({currency: amount} if amount is not None else {}),
        unknown_costs=int(is_report and amount is None),
    )


def _tokens(count: int | None, is_report: bool) -> TokenSum:  # noqa: FBT001 - read at its one call
    if count is not None:
        return TokenSum(tokens=count)
    return TokenSum(unknown_reports=int(is_report))


def _added(costs: Mapping[str, Decimal], others: Mapping[str, Decimal]) -> Mapping[str, Decimal]:
    if not others:
        return costs
    sums = dict(costs)
    with localcontext(prec=COST_DIGITS):
        for currency, amount in others.items():
            sums[currency] = sums[currency] + amount if currency in sums else amount
    return MappingProxyType(sums)


def cost_amount(cost: Cost | None) -> Decimal | None:
    """Answer a cost's exact amount; None when there is none, or its text is no decimal number."""
    if cost is None or not _AMOUNT.fullmatch(cost.amount):
        return None
    return Decimal(cost.amount)


def known_usage(usage: object) -> Usage | None:
    """Answer what a report says that can be stored and added up; every other figure is unknown.

    None when it is no report at all.

    Reports come from providers, and from tools that anyone wrote: a count that is no integer from 0
    to `SEQ_MAX`, and a cost that is no decimal text from 0 up, is not what was used (FM-08, US-04).
    """
    if not isinstance(usage, Usage):
        return None
    return Usage(
        input=_known(usage.input),
        output=_known(usage.output),
        cache_read=_known(usage.cache_read),
        cache_write=_known(usage.cache_write),
        reasoning=_known(usage.reasoning),
        cost=_known_cost(usage.cost),
    )


def _known(count: object) -> int | None:
    return count if type(count) is int and 0 <= count <= SEQ_MAX else None


def _known_cost(cost: object) -> Cost | None:
    if not isinstance(cost, Cost):
        return None
    if not all(map(_is_plain, (cost.amount, cost.currency, cost.prices))):
        return None
    amount = cost_amount(cost)
    return cost if amount is not None and amount >= 0 else None


def _is_plain(text: object) -> bool:
    return isinstance(text, str) and text.isprintable()
