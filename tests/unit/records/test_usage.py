"""Usage adds up exactly, and what is unknown stays unknown."""

import math
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from perdure.records.messages import Cost, Usage, UsageElement
from perdure.records.seqs import Seq
from perdure.records.usage import (
    NO_USAGE,
    TokenSum,
    UsageTotals,
    cost_amount,
    known_usage,
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
    assert known_usage(Usage(cost=cost(amount))) == Usage()


GOOD = Usage(input=0, output=2**53 - 1, cache_read=1, cache_write=2, reasoning=3, cost=cost("0"))


@pytest.mark.spec("FM-08", "US-04")
@pytest.mark.parametrize("figure", ["input", "output", "cache_read", "cache_write", "reasoning"])
@pytest.mark.parametrize("wrong", [-1, 2**53, 10**400, 1.0, math.nan, True, "7", Decimal(7), [7]])
def test_a_count_that_cannot_be_is_unknown_and_the_others_stay(figure: str, wrong: Any) -> None:
    assert known_usage(GOOD) == GOOD
    told = msgspec.structs.replace(GOOD, **{figure: wrong})
    assert known_usage(told) == msgspec.structs.replace(GOOD, **{figure: None})


@pytest.mark.spec("FM-08", "US-04")
@pytest.mark.parametrize(
    "wrong",
    [
        cost("-0.01"),
        cost("1", "U\0D"),
        cost("1", "\ud800"),
        Cost(amount="1", currency="USD", prices="\0"),
        Cost(amount=1.5, currency="USD", prices=""),  # type: ignore[arg-type]
        {"amount": "1"},
        0.25,
    ],
)
def test_a_cost_that_cannot_be_is_unknown(wrong: Any) -> None:
    assert known_usage(msgspec.structs.replace(GOOD, cost=wrong)) == msgspec.structs.replace(
        GOOD, cost=None
    )
