"""Configured providers as adapters take them; a secret is read when it is needed (CG-07)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.configuration.tables import File, ProviderTable
from perdure.errors import ProviderError
from perdure.providers.config import KeySource, ModelPrice, ProviderConfig
from perdure.providers.plain_files import read_plain
from perdure.records.models import parse_model

FILE_REFERENCE: Final = "file:"
SHARED: Final = 0o077
"""Mode bits of a file that others may read or write."""

KEY_BYTES_MAX: Final = 16_384
"""Most bytes of a file with a key."""


def provider_configs(file: File) -> Mapping[str, ProviderConfig]:
    """Answer one configuration for each provider that the file says anything of."""
    names = {*file.providers, *(parse_model(model).provider for model in file.prices)}
    chosen = None if file.model.name is None else parse_model(file.model.name).provider
    if chosen is not None and file.model.window is not None:
        names.add(chosen)
    return {
        name: _provider_config(
            file.providers.get(name, ProviderTable()),
            prices=_prices(file, name),
            window=file.model.window if name == chosen else None,
        )
        for name in names
    }


def _prices(file: File, provider: str) -> Mapping[str, ModelPrice]:
    models = ((parse_model(text), price) for text, price in file.prices.items())
    return {model.model_id: price for model, price in models if model.provider == provider}


def _provider_config(
    table: ProviderTable, *, prices: Mapping[str, ModelPrice], window: int | None
) -> ProviderConfig:
    facts: dict[str, Any] = msgspec.structs.asdict(table)
    facts.update(prices=prices, key=_key(table.key))
    if window is not None:
        facts["window"] = window
    return ProviderConfig(**facts)


def _key(reference: str | None) -> KeySource | None:
    if reference is None or not reference.startswith(FILE_REFERENCE):
        return reference
    return key_in_file(Path(reference.removeprefix(FILE_REFERENCE)).expanduser())


def key_in_file(file: Path) -> Callable[[], str]:
    """Answer a function that reads a key from a file that only its owner may read.

    The function raises ProviderError `auth` when the file is missing, or open to others.
    """

    def read() -> str:
        try:
            if file.stat().st_mode & SHARED:
                raise ProviderError(
                    "auth", f"the key file {str(file)!r} is open to others; chmod 600 it"
                )
            return read_plain(file, KEY_BYTES_MAX)[:KEY_BYTES_MAX].decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ProviderError("auth", f"the key file {str(file)!r}: {error}") from None

    return read
