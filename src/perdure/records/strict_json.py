"""Strict JSON: what may be stored, and the two doors through which values come in (K32).

A *program's* value (typed values, list elements, metadata) is refused with the path of what is
wrong: `check`. *Text made by models, tools, processes and people* is repaired, never refused:
`repair`. Storage refuses whatever a door let through.

Invariants: no NaN or infinity, no bytes, only text keys, no cycles, depth at most 100, integers
of at most 4,300 digits, no lone surrogate, no NUL (VD-16 to VD-18).
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias, cast

from msgspec import Struct

from perdure.errors import InvalidArguments, Rejected

JsonValue: TypeAlias = (
    bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"] | None
)
JsonObject: TypeAlias = Mapping[str, JsonValue]

DEPTH_MAX: Final = 100
"""Deepest nesting at any door (SX-13)."""

INTEGER_DIGITS_MAX: Final = 4_300
"""Longest integer at any door; Python itself refuses to print longer ones (K33)."""

_INTEGER_BITS_SAFE: Final = 14_000
"""Integers up to this many bits certainly have fewer digits than the limit."""


class Repairs(Struct, frozen=True, kw_only=True):
    """Count what `repair` replaced: lone surrogates, NULs, and numbers that are not finite."""

    surrogates: int = 0
    nul: int = 0

    def __add__(self, other: "Repairs") -> "Repairs":
        """Add two counts."""
        return Repairs(surrogates=self.surrogates + other.surrogates, nul=self.nul + other.nul)


NO_REPAIRS: Final = Repairs()


def _refuse(path: str, what: str) -> NoReturn:
    raise Rejected(
        "invariant",
        f"at {path}: {what}; a stored value is strict JSON: null, true, false, text without NUL "
        f"or lone surrogates, finite numbers, lists, and objects with text keys",
        {"path": path},
    )


def _bad_text(text: str) -> str | None:
    if "\x00" in text:
        return "text with a NUL"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "text with a lone surrogate"
    return None


def _too_long(number: int) -> bool:
    return number.bit_length() > _INTEGER_BITS_SAFE and abs(number) >= 10**INTEGER_DIGITS_MAX


def check(value: object, path: str = "$") -> None:
    """Refuse a program's value that is not strict JSON, naming path and type (VD-17).

    Raises:
        Rejected: `invariant`, with `details["path"]`.
    """
    _check(value, path, 0)


def _check(value: object, path: str, depth: int) -> None:
    kind = type(value)
    if kind is str:
        fault = _bad_text(cast("str", value))
        if fault:
            _refuse(path, fault)
    elif value is None or kind is bool:
        return
    elif kind is int:
        if _too_long(cast("int", value)):
            _refuse(path, f"an integer of more than {INTEGER_DIGITS_MAX} digits")
    elif kind is float:
        if not math.isfinite(cast("float", value)):
            _refuse(path, f"the number {value}")
    elif depth >= DEPTH_MAX:
        _refuse(path, f"nesting deeper than {DEPTH_MAX} (or a cycle)")
    elif kind is dict:
        for key, item in cast("dict[object, object]", value).items():
            if type(key) is not str:
                _refuse(path, f"a key of type {type(key).__name__}")
            fault = _bad_text(key)
            if fault:
                _refuse(path, f"a key: {fault}")
            _check(item, f"{path}.{key}", depth + 1)
    elif kind is list or kind is tuple:
        for index, item in enumerate(cast("list[object]", value)):
            _check(item, f"{path}[{index}]", depth + 1)
    else:
        _refuse(path, f"a value of type {kind.__name__}")


def repair_text(text: str) -> tuple[str, Repairs]:
    """Replace lone surrogates by U+FFFD and NUL by U+2400, and count them (VD-16)."""
    if text.isascii() and "\x00" not in text:
        return text, NO_REPAIRS
    nul = text.count("\x00")
    if nul:
        text = text.replace("\x00", "\u2400")
    try:
        text.encode()
    except UnicodeEncodeError:
        surrogates = sum(1 for char in text if "\ud800" <= char <= "\udfff")
        fixed = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
        return fixed, Repairs(surrogates=surrogates, nul=nul)
    return text, Repairs(nul=nul) if nul else NO_REPAIRS


def repair(value: object) -> tuple[JsonValue, Repairs]:
    """Turn a tool's or model's value into strict JSON; nothing raises (VD-16).

    Text as `repair_text`, keys too (a key that then collides gets `~2`, `~3`, …); NaN and
    infinities become the texts "NaN", "Infinity", "-Infinity"; anything that is not JSON, is
    nested too deep or is too long an integer becomes its `repr`, cut to 200 characters.
    """
    return _repair(value, 0)


def _repair(value: object, depth: int) -> tuple[JsonValue, Repairs]:
    if isinstance(value, str):
        return repair_text(value)
    if value is None or isinstance(value, bool):
        return value, NO_REPAIRS
    if isinstance(value, int):
        return (
            (int(value), NO_REPAIRS) if not _too_long(value) else ("integer too long", NO_REPAIRS)
        )
    if isinstance(value, float):
        return _repair_float(value), NO_REPAIRS
    if depth < DEPTH_MAX and isinstance(value, Mapping):
        return _repair_mapping(cast("Mapping[object, object]", value), depth)
    if depth < DEPTH_MAX and isinstance(value, list | tuple):
        total = NO_REPAIRS
        items: list[JsonValue] = []
        for item in cast("Sequence[object]", value):
            fixed, repairs = _repair(item, depth + 1)
            items.append(fixed)
            total += repairs
        return items, total
    return repair_text(_short_repr(value))


def _short_repr(value: object) -> str:
    try:
        return repr(value)[:200]
    except Exception:  # noqa: BLE001 - a foreign object's repr may do anything; this door never raises
        return f"<{type(value).__name__}>"


def _repair_float(value: float) -> JsonValue:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(value)


def _repair_mapping(value: Mapping[object, object], depth: int) -> tuple[JsonValue, Repairs]:
    total = NO_REPAIRS
    fixed: dict[str, JsonValue] = {}
    for raw_key, raw_item in value.items():
        key, key_repairs = repair_text(raw_key if isinstance(raw_key, str) else str(raw_key))
        unique, number = key, 2
        while unique in fixed:
            unique, number = f"{key}~{number}", number + 1
        fixed[unique], item_repairs = _repair(raw_item, depth + 1)
        total = total + key_repairs + item_repairs
    return fixed, total


def parse_object(text: str) -> dict[str, Any]:
    """Parse the raw text of a call's arguments to an object, strictly (PV-09).

    Refused: NaN, infinities and numbers that overflow, trailing commas, two documents, duplicate
    keys, a top level that is not an object, depth over 100, integers over 4,300 digits, cut text.

    Raises:
        InvalidArguments: with the fault, for the model to read.
    """
    try:
        value: object = _DECODER.decode(text)
    except InvalidArguments:
        raise
    except RecursionError:
        raise InvalidArguments(f"nesting deeper than {DEPTH_MAX}") from None
    except ValueError as error:
        raise InvalidArguments(f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArguments(f"the top level is a {type(value).__name__}, not an object")
    try:
        check(cast("object", value))
    except Rejected as error:
        if (
            error.details.get("path") is not None
            and "surrogate" not in error.message
            and ("NUL" not in error.message)
        ):
            raise InvalidArguments(error.message) from None
        repaired, _ = repair(cast("object", value))
        return cast("dict[str, Any]", repaired)
    return cast("dict[str, Any]", value)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidArguments(f"the key {key!r} stands twice in one object")
            seen.add(key)
    return result


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise InvalidArguments(f"the number {text[:40]} is out of range")
    return number


def _integer(text: str) -> int:
    if len(text) > INTEGER_DIGITS_MAX:
        raise InvalidArguments(f"an integer of more than {INTEGER_DIGITS_MAX} digits")
    return int(text)


def _no_constant(text: str) -> NoReturn:
    raise InvalidArguments(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_no_duplicates,
    parse_float=_finite,
    parse_int=_integer,
    parse_constant=_no_constant,
)
