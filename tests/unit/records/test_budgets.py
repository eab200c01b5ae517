"""Budgets as data: what is one, what a limit is, exact arithmetic (BG-01, BG-05)."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Rejected
from perdure.records.budgets import (
    NOTHING_SPENT,
    Budget,
    Reservation,
    Spent,
    check_budget,
    raised,
    reached_by,
)
from perdure.records.codec import decode, encode

BAD: list[tuple[str, dict[str, Any]]] = [
    ("cost", {"cost": 0.5}),
    ("cost", {"cost": "0"}),
    ("cost", {"cost": "-1"}),
    ("cost", {"cost": "1e3"}),
    ("cost", {"cost": ""}),
    ("cost", {"cost": "NaN"}),
    ("currency", {"cost": "1", "currency": ""}),
    ("currency", {"cost": "1", "currency": 3}),
    ("tokens", {"tokens": 0}),
    ("tokens", {"tokens": "5"}),
    ("tokens", {"tokens": True}),
    ("turns", {"turns": -1}),
    ("seconds", {"seconds": 1.5}),
    ("on_limit", {"turns": 1, "on_limit": "kill"}),
    ("unknown", {"turns": 1, "unknown": "zero"}),
]


@pytest.mark.spec("BG-01")
@pytest.mark.parametrize(("field", "fields"), BAD, ids=repr)
def test_what_is_no_budget_is_refused_by_its_field(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(Rejected) as refused:
        Budget(**fields)
    assert refused.value.code == "invariant"
    assert refused.value.details == {"field": field}
    assert repr(fields[field]) in refused.value.message


@pytest.mark.spec("BG-01")
def test_a_budget_has_a_limit_and_is_a_budget() -> None:
    with pytest.raises(Rejected, match="without a limit"):
        Budget()
    with pytest.raises(Rejected, match="no Budget"):
        check_budget("0.50")
    check_budget(None)


@pytest.mark.spec("BG-02")
def test_a_budget_is_stored_by_its_own_names() -> None:
    budget = Budget(cost="0.50", seconds=60, on_limit="fail", unknown="stop")
    stored = encode(budget)
    assert stored == b'{"cost":"0.50","seconds":60,"onLimit":"fail","unknown":"stop"}'
    assert decode(stored, Budget) == budget


@pytest.mark.spec("BG-05")
@given(
    st.integers(1, 10**12), st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**12)
)
def test_a_limit_is_reached_exactly_where_the_sum_is_over(
    limit: int, spent: int, reserved: int, wanted: int
) -> None:
    def money(nano: int) -> Spent:
        return Spent(costs={"USD": Decimal(nano).scaleb(-9)}, tokens=nano)

    fits = spent + reserved < limit and spent + reserved + wanted <= limit
    for budget in (Budget(cost=f"{Decimal(limit).scaleb(-9):f}"), Budget(tokens=limit)):
        found = reached_by(budget, money(spent), money(reserved), money(wanted), input_id=None)
        assert (found is None) is fits
        below = reached_by(budget, money(spent), money(reserved), None, input_id=None)
        assert (below is None) is (spent < limit), "without a price of its own only spent counts"


def test_sums_of_money_are_exact() -> None:
    total = NOTHING_SPENT
    for _ in range(1_000):
        total += Spent(costs={"USD": Decimal("0.1")})
    assert total.of("cost", "USD") == 100
    reserved = Reservation(tokens=5, cost="0.000000000000000001", currency="USD").spent()
    assert (total + reserved).of("cost", "USD") == Decimal("100.000000000000000001")
    assert (total + reserved).of("cost", "EUR") == 0


@pytest.mark.spec("BG-06")
def test_a_raise_is_upward_and_of_a_limit_that_is_there() -> None:
    budget = Budget(cost="1", turns=3, on_limit="fail")
    assert raised(budget, {"cost": "1.01"}) == Budget(cost="1.01", turns=3, on_limit="fail")
    for changes in ({}, {"cost": "1.00"}, {"tokens": 5}, {"on_limit": "suspend"}, {"turns": 4.5}):
        with pytest.raises(Rejected) as refused:
            raised(budget, changes)
        assert refused.value.code == "invariant"
