"""Costs: cached tokens at their own price, unknown stays unknown, nothing is downloaded."""

import socket
from typing import Any

import pytest
from msgspec import structs

from perdure.errors import Rejected
from perdure.providers.config import ModelPrice
from perdure.providers.prices import TABLE, cost
from perdure.records.entries import ModelId
from perdure.records.messages import Cost, Usage
from tests.unit.providers.wires import NOW_MS

USAGE = Usage(input=200_000, output=10_000, cache_read=800_000, cache_write=100_000, reasoning=5)
OWN = ModelPrice(
    input="1.25", output="10", cache_read="0.125", cache_write="2", currency="EUR",
    date="2026-11-01",
)  # fmt: skip
CLAUDE = ModelId(provider="anthropic", model_id="claude-haiku-4-5-20251001")


def priced(model: ModelId, usage: Usage = USAGE, **prices: ModelPrice) -> Cost | None:
    return cost(model, usage, at_ms=NOW_MS, prices=prices)


@pytest.mark.spec("PV-27")
def test_every_kind_of_token_has_its_own_price() -> None:
    found = priced(ModelId(provider="openai-compatible", model_id="own"), own=OWN)
    assert found == Cost(amount="0.65", currency="EUR", prices="2026-11-01")
    # 1 dollar a million fresh, 0.1 from the cache, 1.25 into it, 5 for output.
    bundled = priced(CLAUDE)
    assert bundled == Cost(amount="0.455", currency="USD", prices=TABLE)


@pytest.mark.spec("PV-27")
def test_a_configured_price_wins_over_the_bundled_one() -> None:
    prices: dict[str, Any] = {CLAUDE.model_id: OWN}
    found = priced(CLAUDE, **prices)
    assert found is not None
    assert found.currency == "EUR"


@pytest.mark.spec("PV-27")
@pytest.mark.parametrize("count", ["input", "output", "cache_read", "cache_write"])
def test_an_unknown_count_has_no_cost(count: str) -> None:
    usage = structs.replace(USAGE, **{count: None})
    assert priced(CLAUDE, usage) is None
    assert priced(ModelId(provider="openai", model_id="own"), usage, own=OWN) is None


@pytest.mark.spec("PV-27")
@pytest.mark.parametrize("name", ["openai:nobodys-model", "openai-compatible:gpt-5", "local:x"])
def test_an_unknown_model_has_no_cost(name: str) -> None:
    provider, _, model_id = name.partition(":")
    assert priced(ModelId(provider=provider, model_id=model_id)) is None


@pytest.mark.spec("PV-27")
def test_an_unknown_reasoning_share_costs_what_the_output_costs() -> None:
    assert priced(CLAUDE, structs.replace(USAGE, reasoning=None)) == priced(CLAUDE)


@pytest.mark.spec("PV-27")
def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert priced(CLAUDE) is not None


def test_small_and_whole_amounts_are_plain_decimals() -> None:
    tiny = Usage(input=1, output=0, cache_read=0, cache_write=0)
    found = priced(CLAUDE, tiny)
    assert found is not None
    assert found.amount == "0.000001"
    nothing = priced(CLAUDE, Usage(input=0, output=0, cache_read=0, cache_write=0))
    assert nothing is not None
    assert nothing.amount == "0"


@pytest.mark.parametrize("text", ["-1", "NaN", "Infinity", "one", ""])
def test_a_price_that_is_no_number_is_refused(text: str) -> None:
    bad = structs.replace(OWN, input=text)
    with pytest.raises(Rejected, match="decimal") as caught:
        priced(ModelId(provider="openai", model_id="own"), own=bad)
    assert repr(text) in caught.value.message
