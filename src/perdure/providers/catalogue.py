"""The models that the bundled table knows, without network (CM-37).

Loaded by name where a list is asked for: the table is large.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from genai_prices.data import providers
from genai_prices.types import TieredPrices
from msgspec import Struct

from perdure.providers.prices import TABLE

CURRENCY: Final = "USD"


class CatalogueModel(Struct, frozen=True, kw_only=True):
    """A known model: its window, and prices of a million tokens as decimal text; None: unknown."""

    name: str
    window: int | None
    input_price: str | None
    output_price: str | None
    currency: str
    prices: str


def known_models(vendor: str, *, at_ms: int) -> Sequence[CatalogueModel]:
    """Answer the bundled models of a vendor, without those it has withdrawn, by name."""
    moment = datetime.fromtimestamp(at_ms / 1_000, UTC)
    found = [
        CatalogueModel(
            name=model.id,
            window=model.context_window,
            input_price=_amount(prices.input_mtok),
            output_price=_amount(prices.output_mtok),
            currency=CURRENCY,
            prices=TABLE,
        )
        for provider in providers
        if provider.id == vendor
        for model in provider.models
        if not model.deprecated
        for prices in (model.get_prices(moment),)
    ]
    return sorted(found, key=lambda model: model.name)


def _amount(price: Any) -> str | None:
    """Write a price of a million tokens; of a tiered one the first."""
    base = price.base if isinstance(price, TieredPrices) else price
    return f"{base.normalize():f}" if isinstance(base, Decimal) else None
