"""Budgets: how much an input or a session may spend, and what was spent (BG-01, BG-04).

Money is exact decimal text, everything else whole numbers; time is summed in milliseconds. Unknown
is not zero and not a limit: what nobody reported is counted beside the sums (BG-08).
"""

import re
from collections.abc import Mapping
from decimal import Decimal, localcontext
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from perdure.errors import Rejected
from perdure.records.names import stored, stored_as
from perdure.records.seqs import Seq

BudgetField: TypeAlias = Literal["cost", "tokens", "turns", "seconds"]
OnLimit: TypeAlias = Literal["suspend", "fail"]
OnUnknown: TypeAlias = Literal["ignore", "stop"]

FIELDS: Final[tuple[BudgetField, ...]] = ("cost", "tokens", "turns", "seconds")

MONEY_DIGITS: Final = 1_000
"""Digits to which sums of money are exact, as in `records.usage`."""

_AMOUNT: Final = re.compile(r"[0-9]{1,100}(\.[0-9]{1,100})?")
_CURRENCY: Final = re.compile(r"[A-Za-z]{2,10}")


class Budget(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=stored):
    """How much may be spent: at least one limit (BG-01).

    Attributes:
        cost: decimal text above 0, in `currency`; a cost in another currency counts as unknown.
        currency: what `cost` is in.
        tokens: input, cached and output tokens together, as reported.
        turns: assistant entries.
        seconds: time while at least one task of the chain is in flight; waiting costs nothing.
        on_limit: at the limit, `suspend` behind an approval, or `fail` with code `budget`.
        unknown: whether an unknown cost or attempt is let pass (`ignore`) or is the limit (`stop`).

    Raises:
        Rejected: `invariant`, naming the field.
    """

    cost: str | None = None
    currency: str = "USD"
    tokens: int | None = None
    turns: int | None = None
    seconds: int | None = None
    on_limit: OnLimit = "suspend"
    unknown: OnUnknown = "ignore"

    def __post_init__(self) -> None:
        """Refuse what is no budget."""
        if self.cost is not None and not _is_money(self.cost):
            raise _refused("cost", self.cost, "a decimal text above 0, such as '0.50'")
        if not isinstance(cast("object", self.currency), str) or not _CURRENCY.fullmatch(
            self.currency
        ):
            raise _refused("currency", self.currency, "a currency's letters, such as 'USD'")
        for name in ("tokens", "turns", "seconds"):
            limit: object = getattr(self, name)
            if limit is not None and not _is_count(limit):
                raise _refused(name, limit, "a whole number above 0")
        if self.on_limit not in ("suspend", "fail"):
            raise _refused("on_limit", self.on_limit, "'suspend' or 'fail'")
        if self.unknown not in ("ignore", "stop"):
            raise _refused("unknown", self.unknown, "'ignore' or 'stop'")
        if all(getattr(self, name) is None for name in FIELDS):
            raise Rejected(
                "invariant", "a budget without a limit; give cost, tokens, turns or seconds"
            )

    def limit(self, field: BudgetField) -> Decimal | None:
        """Answer the limit of a field, None when it has none; seconds in seconds."""
        limit: str | int | None = getattr(self, field)
        return None if limit is None else Decimal(limit)


def _is_money(text: object) -> bool:
    return isinstance(text, str) and _AMOUNT.fullmatch(text) is not None and Decimal(text) > 0


def _is_count(limit: object) -> bool:
    return isinstance(limit, int) and not isinstance(limit, bool) and 0 < limit < 2**53


def _refused(field: str, given: object, accepted: str) -> Rejected:
    return Rejected(
        "invariant", f"the budget's {field} {given!r} is not {accepted}", {"field": field}
    )


def check_budget(given: object) -> None:
    """Refuse what is given as a budget and is none.

    Raises:
        Rejected: `invariant`.
    """
    if given is not None and not isinstance(given, Budget):
        raise Rejected(
            "invariant", f"the budget {given!r} is no Budget, such as Budget(cost='0.50')"
        )


def raised(budget: Budget, changes: Mapping[str, Any]) -> Budget:
    """Answer a budget with larger limits (BG-06).

    Raises:
        Rejected: `invariant`, for no change, an unknown field, one without a limit, or a limit
            that is not larger.
    """
    if not changes:
        raise Rejected("invariant", "a raise of nothing; name a field and its new limit")
    for field in changes:
        if field not in FIELDS:
            raise Rejected(
                "invariant",
                f"a budget has no limit {field!r}; its limits are {', '.join(FIELDS)}",
                {"field": field},
            )
        if getattr(budget, field) is None:
            raise Rejected(
                "invariant", f"the budget has no limit of {field} to raise", {"field": field}
            )
    new = msgspec.structs.replace(budget, **changes)
    for field in FIELDS:
        before, after = budget.limit(field), new.limit(field)
        if field in changes and (before is None or after is None or after <= before):
            raise Rejected(
                "invariant",
                f"the budget's {field} {changes[field]!r} is not above its limit of {before}",
                {"field": field},
            )
    return new


class Spent(Struct, frozen=True, gc=False, kw_only=True):
    """What a chain of work has spent; money exact, by currency (BG-04).

    `unknown_attempts` reported nothing; `unpriced` reports had no cost.
    """

    costs: Mapping[str, Decimal] = {}
    tokens: int = 0
    turns: int = 0
    worked_ms: int = 0
    unknown_attempts: int = 0
    unpriced: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        """Add two, exactly."""
        return Spent(
            costs=added_money(self.costs, other.costs),
            tokens=self.tokens + other.tokens,
            turns=self.turns + other.turns,
            worked_ms=self.worked_ms + other.worked_ms,
            unknown_attempts=self.unknown_attempts + other.unknown_attempts,
            unpriced=self.unpriced + other.unpriced,
        )

    def of(self, field: BudgetField, currency: str) -> Decimal:
        """Answer what was spent of one field."""
        if field == "cost":
            return self.costs.get(currency, Decimal(0))
        if field == "seconds":
            return Decimal(self.worked_ms) / 1_000
        return Decimal(self.tokens if field == "tokens" else self.turns)

    def unknown(self, field: BudgetField, currency: str) -> int:
        """Count what is not known of one field; a cost in another currency is not (BG-01)."""
        if field not in ("cost", "tokens"):
            return 0
        if field == "tokens":
            return self.unknown_attempts
        foreign = sum(1 for other in self.costs if other != currency)
        return self.unknown_attempts + self.unpriced + foreign


NOTHING_SPENT: Final = Spent()


def added_money(
    costs: Mapping[str, Decimal], others: Mapping[str, Decimal]
) -> Mapping[str, Decimal]:
    """Add sums of money by currency."""
    if not others:
        return costs
    sums = dict(costs)
    with localcontext(prec=MONEY_DIGITS):
        for currency, amount in others.items():
            sums[currency] = sums.get(currency, Decimal(0)) + amount
    return sums


class Reservation(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=stored):
    """What a request that is in flight may still spend, besides its one turn (BG-05).

    Stored with the intent; counted only while the request is in flight. A price that is not known
    reserves no money.
    """

    tokens: int
    cost: str | UnsetType = UNSET
    currency: str | UnsetType = UNSET

    def spent(self) -> Spent:
        """Answer it as if it were spent."""
        costs = {} if self.cost is UNSET else {str(self.currency): Decimal(self.cost)}
        return Spent(costs=costs, tokens=self.tokens, turns=1)


class Reached(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    rename=stored_as(input_id="input"),
):
    """A limit that work would go over: whose it is, and the figures, as texts (BG-06).

    `input_id` is None for the session's budget. `reserved` is what requests in flight may still
    spend, `wanted` what the work would need at least; None for nothing, or nothing known.
    """

    input_id: Seq | None = None
    field: BudgetField
    limit: str
    spent: str
    currency: str
    on_limit: OnLimit = "suspend"
    reserved: str | None = None
    wanted: str | None = None
    unknown: bool = False

    @property
    def whose(self) -> str:
        """Name whose budget it is."""
        return "the session" if self.input_id is None else f"input {self.input_id}"

    @property
    def sentence(self) -> str:
        """Say what is reached."""
        unit = f" {self.currency}" if self.field == "cost" else ""
        if self.unknown:
            return (
                f"the budget of {self.whose} stops at unknown {self.field}: something was asked "
                f"whose {self.field} nobody reported (known: {self.spent} of {self.limit}{unit})"
            )
        also = "".join(
            f", {figure} {word}"
            for figure, word in ((self.reserved, "reserved"), (self.wanted, "wanted"))
            if figure is not None
        )
        return (
            f"the budget of {self.whose} is reached: {self.field} {self.spent} of "
            f"{self.limit}{unit} spent{also}"
        )


def reached_by(
    budget: Budget,
    spent: Spent,
    reserved: Spent,
    wanted: Spent | None,
    *,
    input_id: Seq | None,
) -> Reached | None:
    """Answer the first limit that `wanted` would go over beside what is spent and reserved (BG-05).

    Without `wanted`, for work that has no price of its own: the first limit that is not above what
    is spent. Seconds are never reserved.
    """
    for field in FIELDS:
        limit = budget.limit(field)
        if limit is None:
            continue
        currency = budget.currency
        now = spent.of(field, currency)
        more = held = Decimal(0)
        if wanted is not None and field != "seconds":
            more, held = wanted.of(field, currency), reserved.of(field, currency)
        with localcontext(prec=MONEY_DIGITS):
            is_over = now + held >= limit or now + held + more > limit
        is_unknown = budget.unknown == "stop" and spent.unknown(field, currency) > 0
        if is_over or is_unknown:
            return Reached(
                input_id=input_id,
                field=field,
                limit=f"{limit:f}",
                spent=f"{now:f}",
                reserved=f"{held:f}" if held else None,
                wanted=f"{more:f}" if more else None,
                currency=currency,
                on_limit=budget.on_limit,
                unknown=is_unknown and not is_over,
            )
    return None
