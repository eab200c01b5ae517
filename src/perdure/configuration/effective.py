"""Every key in force and where it comes from (CG-01)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from perdure.configuration.config import Config
from perdure.configuration.tables import NAMED

DEFAULT: Final = "default"
FLAG: Final = "flag"


class KeyInForce(Struct, frozen=True, kw_only=True):
    """One key: its value as TOML would write it, and what set it."""

    key: str
    value: str | None
    origin: str


def effective(config: Config, flags: Mapping[str, str | None]) -> Sequence[KeyInForce]:
    """Answer every key; a flag that is not None wins over the file."""
    rows: list[KeyInForce] = []
    for key, value in _leaves((), msgspec.to_builtins(config.values)):
        flag = flags.get(key)
        rows.append(
            KeyInForce(
                key=key,
                value=_text(value if flag is None else flag),
                origin=config.origins.get(key, DEFAULT) if flag is None else FLAG,
            )
        )
    return rows


def _leaves(at: tuple[str, ...], value: Any) -> Iterator[tuple[str, Any]]:
    """Walk down to tables, and into tables of tables."""
    for name, inner in cast("dict[str, Any]", value).items():
        keys = (*at, name)
        is_table = len(keys) == 1 or (len(keys) == 2 and at[0] in NAMED)
        if is_table and isinstance(inner, dict):
            yield from _leaves(keys, inner)
        else:
            yield ".".join(keys), inner


def _text(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
