"""Usage adds up exactly, and what is unknown stays unknown."""

from decimal import Decimal
from typing import Any

import pytest
from msgspec import UNSET

from perdure.errors import Rejected
from perdure.records.codec import decode
from perdure.records.messages import Cost, UsageElement
from perdure.records.seqs import Seq
from perdure.records.usage import (
    NO_USAGE,
    TokenSum,
    UsageTotals,
    checked_usage,
    cost_amount,
    usage_totals,
)


def cost(amount: str, currency: str = "USD") -> Cost:
    return Cost(amount=amount, currency=currency, prices="2026-11-01")


def report(task: int = 1, attempt: int = 1, **facts: Any) -> UsageElement:
    counts: dict[str, Any] = dict.fromkeys(
        ("input", "output", "cache_read", "cache_write", "reasoning", "cost")
    )
    return UsageElement(
        v=1, task=Seq(task), conv_id=Seq(1), attempt=attempt,
        **{"kind": "report", **counts, **facts},
    )  # fmt: skip


def adjust(of: int, **facts: Any) -> UsageElement:
    return report(kind="adjust", of=Seq(of), **facts)


ELEMENTS = [
    report(input=10, output=5, cache_read=100, cache_write=0, reasoning=2, cost=cost("0.1")),
    report(attempt=2, input=1, output=None, cost=cost("0.2")),
    report(task=2, input=None, output=7, cost=cost("3", "EUR")),
    report(task=2, attempt=3, cost=None),
    adjust(9, input=-4, cost=cost("-0.05")),
    adjust(9),
]


@pytest.mark.spec("FM-08")
def test_totals_count_what_is_known_and_what_is_not() -> None:
    totals = usage_totals(ELEMENTS)
    assert totals == UsageTotals(
        reports=4,
        adjustments=2,
        input=TokenSum(tokens=7, unknown_reports=2),
        output=TokenSum(tokens=12, unknown_reports=2),
        cache_read=TokenSum(tokens=100, unknown_reports=3),
        cache_write=TokenSum(tokens=0, unknown_reports=3),
        reasoning=TokenSum(tokens=2, unknown_reports=3),
        costs={"USD": Decimal("0.25"), "EUR": Decimal(3)},
        unknown_costs=1,
    )
    assert usage_totals([]) == NO_USAGE == UsageTotals()


def test_pages_add_up_to_the_whole_list() -> None:
    whole = usage_totals(ELEMENTS)
    for cut in range(len(ELEMENTS) + 1):
        assert usage_totals(ELEMENTS[cut:], base=usage_totals(ELEMENTS[:cut])) == whole
        assert usage_totals(ELEMENTS[:cut]) + usage_totals(ELEMENTS[cut:]) == whole


def test_attempts_without_a_report_are_counted_by_themselves() -> None:
    attempts = {Seq(1): 2, Seq(2): 4, Seq(3): 1}
    assert usage_totals(ELEMENTS, attempts).unknown_attempts == 3
    assert usage_totals([], attempts).unknown_attempts == 7
    # An adjustment is no report, and two reports of one attempt are one.
    assert usage_totals([adjust(5)], {Seq(1): 1}).unknown_attempts == 1
    assert usage_totals([report(), report()], {Seq(1): 2}).unknown_attempts == 1


def test_money_is_exact() -> None:
    tiny, huge = "0." + "0" * 60 + "1", "1" + "0" * 60
    total = usage_totals([report(cost=cost(tiny)), report(cost=cost(huge))])
    assert format(total.costs["USD"], "f") == huge + tiny[1:]
    cents = usage_totals([report(cost=cost("0.1"))] * 1_000)
    assert cents.costs == {"USD": Decimal(100)}


@pytest.mark.parametrize(
    "amount", ["", "NaN", "inf", "1e5", "1,5", " 1", "0x1", "1.", ".5", "\u0661"]
)
def test_an_amount_that_is_no_decimal_text_is_unknown(amount: str) -> None:
    assert cost_amount(cost(amount)) is None
    totals = usage_totals([report(cost=cost(amount))])
    assert (totals.unknown_costs, totals.costs) == (1, {})
    with pytest.raises(Rejected, match="decimal text"):
        checked_usage(report(cost=cost(amount)))


@pytest.mark.spec("FM-08")
def test_only_sound_elements_are_stored() -> None:
    for element in ELEMENTS:
        assert decode(checked_usage(element), UsageElement) == element
    for wrong in (
        report(input=-1),
        report(reasoning=-1),
        report(cost=cost("-0.01")),
        report(of=Seq(3)),
        report(kind="adjust", of=UNSET),
    ):
        with pytest.raises(Rejected) as refusal:
            checked_usage(wrong)
        assert refusal.value.code == "invariant"
