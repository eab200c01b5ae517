"""The rows of `perdure models`: what is known of each model without asking anybody."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from perdure.cli.endings import UsageProblem
from perdure.cli.main import unknown
from perdure.opening import load, system_ports
from perdure.providers.config import ENV_REFERENCE, HOSTED, UNHOSTED, Provider, ProviderConfig
from perdure.providers.local import WINDOW_TOKENS
from perdure.providers.local_files import MODEL_NAME, find_local
from perdure.providers.registry import OfferedModels
from perdure.records.entries import ModelId

KeyState: TypeAlias = Literal["present", "absent", "not needed"]


class ModelRow(Struct, frozen=True, kw_only=True):
    """One model; None is unknown. Prices are for a million tokens.

    `is_ready` is False for a local model whose file is not there.
    """

    provider: str
    model: str
    window: int | None = None
    inputs: Sequence[str] | None = None
    thinking: Sequence[str] | None = None
    input_price: str | None = None
    output_price: str | None = None
    currency: str | None = None
    prices: str | None = None
    key: KeyState
    is_ready: bool | None = None


async def rows_of(
    configs: Mapping[str, ProviderConfig], folder: Path, *, only: str | None
) -> Sequence[ModelRow]:
    """Answer the rows of every provider, or of one with what its library knows of each model.

    Raises:
        UsageProblem: an unknown provider.
    """
    known = [*UNHOSTED, *HOSTED]
    if only is not None and only not in known:
        raise UsageProblem(unknown("provider", only, known))
    rows: list[ModelRow] = []
    for name in known if only is None else [only]:
        if name in UNHOSTED:
            rows += _own_rows(name, folder)
        else:
            found = _hosted_rows(HOSTED[name], configs.get(name, ProviderConfig()))
            rows += found if only is None else await _described(found, configs)
    return rows


def _own_rows(name: str, folder: Path) -> list[ModelRow]:
    if name == "scripted":
        return [ModelRow(provider=name, model="<script file>", key="not needed")]
    built_in = ModelRow(
        provider=name,
        model=MODEL_NAME,
        is_ready=find_local(folder) is not None,
        window=WINDOW_TOKENS,
        inputs=("text",),
        thinking=(),
        key="not needed",
    )
    return [built_in, ModelRow(provider=name, model="<GGUF file>", key="not needed")]


def _hosted_rows(provider: Provider, config: ProviderConfig) -> list[ModelRow]:
    key = key_state(provider, config)
    unlisted = [ModelRow(provider=provider.name, model="<any>", window=config.window, key=key)]
    if provider.vendor is None:
        return unlisted
    try:
        catalogue = load("perdure.providers.catalogue")
    except ImportError:
        return unlisted
    rows: list[ModelRow] = []
    for model in catalogue.known_models(provider.vendor, at_ms=system_ports().clock.now_ms()):
        own = config.prices.get(model.name)
        rows.append(
            ModelRow(
                provider=provider.name,
                model=model.name,
                window=config.window or model.window,
                input_price=model.input_price if own is None else own.input,
                output_price=model.output_price if own is None else own.output,
                currency=model.currency if own is None else own.currency,
                prices=model.prices if own is None else own.date,
                key=key,
            )
        )
    return rows


def key_state(provider: Provider, config: ProviderConfig) -> KeyState:
    """Say whether a provider's key is there; its text is never read."""
    if callable(config.key):
        return "present"
    variable = provider.key_variable
    if config.key is not None:
        variable = config.key.removeprefix(ENV_REFERENCE)
    if os.environ.get(variable):
        return "present"
    return "absent" if provider.needs_key else "not needed"


async def _described(
    rows: list[ModelRow], configs: Mapping[str, ProviderConfig]
) -> Sequence[ModelRow]:
    """Add inputs and thinking levels from the provider's library, where it is installed."""
    ports = system_ports()
    models = OfferedModels(
        load=load, threads=ports.threads, clock=ports.clock, configs=configs, others={}
    )
    try:
        return [await _one_described(models, row) for row in rows]
    finally:
        await models.close()


async def _one_described(models: OfferedModels, row: ModelRow) -> ModelRow:
    if row.model.startswith("<"):
        return row
    info = await models.describe(ModelId(provider=row.provider, model_id=row.model))
    if info.context_window is None and not info.images and not info.thinking:
        return row  # nothing is known: its library is not installed
    return structs.replace(
        row,
        window=row.window or info.context_window,
        inputs=("text", "image") if info.images else ("text",),
        thinking=info.thinking,
    )
