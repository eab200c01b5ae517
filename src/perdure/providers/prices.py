"""What a request cost: the bundled price table, or the configuration's own prices (PV-27).

Nothing is downloaded. The table is large, so this module is loaded by name, off the loop, when the
first cost is needed.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

import genai_prices
from genai_prices.types import PriceCalculation

from perdure.errors import Rejected
from perdure.providers.config import HOSTED, ModelPrice
from perdure.records.entries import ModelId
from perdure.records.messages import Cost, Usage

MILLION: Final = Decimal(1_000_000)

TABLE: Final = f"genai-prices {genai_prices.__version__}"
"""Name of the bundled table: it carries no date of its own, its version does (PV-27)."""


def cost(
    model: ModelId, usage: Usage, *, at_ms: int, prices: Mapping[str, ModelPrice]
) -> Cost | None:
    """Answer what a request cost; None for an unknown model or any unknown count.

    Raises:
        Rejected: `invariant`, for a configured price that is no decimal number.
    """
    counts = (usage.input, usage.output, usage.cache_read, usage.cache_write)
    if any(count is None for count in counts):
        return None
    fresh, out, read, written = (count or 0 for count in counts)
    own = prices.get(model.model_id)
    if own is not None:
        rows = ((own.input, fresh), (own.output, out), (own.cache_read, read))
        total = sum((_price(text) * count for text, count in rows), Decimal(0))
        total += _price(own.cache_write) * written
        return _cost(total / MILLION, own.currency, own.date)
    hosted = HOSTED.get(model.provider)
    if hosted is None or hosted.vendor is None:
        return None
    found = _bundled(
        genai_prices.Usage(
            input_tokens=fresh + read + written,
            output_tokens=out,
            cache_read_tokens=read,
            cache_write_tokens=written,
        ),
        model.model_id,
        hosted.vendor,
        at_ms,
    )
    if found is None:
        return None
    return _cost(found.total_price, "USD", TABLE)


def _bundled(
    usage: genai_prices.Usage, model_id: str, vendor: str, at_ms: int
) -> PriceCalculation | None:
    try:
        return genai_prices.calc_price(
            usage,
            model_id,
            provider_id=vendor,
            genai_request_timestamp=datetime.fromtimestamp(at_ms / 1_000, UTC),
        )
    except (LookupError, ValueError):
        return None


def _price(text: str) -> Decimal:
    try:
        price = Decimal(text)
    except InvalidOperation:
        price = Decimal(-1)
    if not price.is_finite() or price < 0:
        raise Rejected(
            "invariant", f"the price {text!r} is not a decimal number of at least 0, such as 1.25"
        )
    return price


def _cost(amount: Decimal, currency: str, prices: str) -> Cost:
    whole = amount.normalize()
    return Cost(amount=f"{whole:f}", currency=currency, prices=prices)
