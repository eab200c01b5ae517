"""Strict JSON: what may be stored, and the two doors through which values come in (K32).

A *program's* value (typed values, list elements, metadata) is refused with the path of what is
wrong: `check`. *Text made by models, tools, processes and people* is repaired, never refused:
`repair`. Storage refuses whatever a door let through.

Invariants: no NaN or infinity, no bytes, only text keys, no cycles, depth at most 100, integers
of at most 4,300 digits, no lone surrogate, no NUL (VD-16 to VD-18).
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
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

REPAIR_VALUES_MAX: Final = 1_000_000
"""Most values that `repair` walks: one small object can hold itself a million times over."""

_WRITTEN_CHARACTERS_MAX: Final = 200
_WRITERS: Final[tuple[tuple[type[Any], Callable[[Any], str]], ...]] = (
    (bytes, repr),
    (bytearray, repr),
    (complex, repr),
    (Decimal, str),
    (date, date.isoformat),
    (datetime, datetime.isoformat),
    (time, time.isoformat),
    (timedelta, str),
)
_CONTAINERS: Final = cast("tuple[type[Any], ...]", (dict, list, tuple, set, frozenset))
_kind_of: Final = cast("Callable[[object], type[object]]", type)
_NOT_FINITE: Final = MappingProxyType({"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"})
_TOO_LONG: Final = f"integer of more than {INTEGER_DIGITS_MAX} digits"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Repairs(Struct, frozen=True, gc=False, kw_only=True):
    """Count what a door replaced in texts and keys: lone surrogates, NULs, secrets (SX-05)."""

    surrogates: int = 0
    nul: int = 0
    secrets: int = 0

    def __add__(self, other: "Repairs") -> "Repairs":
        """Add two counts."""
        return Repairs(
            surrogates=self.surrogates + other.surrogates,
            nul=self.nul + other.nul,
            secrets=self.secrets + other.secrets,
        )


NO_REPAIRS: Final = Repairs()


def _refuse(path: str, what: str) -> NoReturn:
    raise Rejected(
        "invariant",
        f"at {path}: {what}; a stored value is strict JSON: null, true, false, text without NUL "
        f"or lone surrogates, finite numbers, lists, and objects with text keys",
        {"path": path},
    )


def _is_bad_text(text: str) -> bool:
    if text.isascii():
        return "\x00" in text
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return "\x00" in text


def _is_too_long(number: int) -> bool:
    return number.bit_length() > _INTEGER_BITS_SAFE and abs(number) >= 10**INTEGER_DIGITS_MAX


def check(value: object, path: str = "$") -> None:
    """Refuse a program's value that is not strict JSON, naming path and type (VD-17).

    Raises:
        Rejected: `invariant`, with `details["path"]`.
    """
    if not _is_strict(value, 0):
        _refuse_fault(value, path, 0)


def _is_strict(value: Any, depth: int) -> bool:
    """Judge without spelling paths, which cost more than the rest; nearly every value passes."""
    kind = _kind_of(value)
    if kind is dict:
        for key in value:
            if type(key) is not str or _is_bad_text(key):
                return False
        value = value.values()
    elif kind is not list and kind is not tuple:
        return _is_strict_leaf(value, kind)
    if depth >= DEPTH_MAX:
        return False
    below = depth + 1
    for item in value:
        if type(item) is str:
            if _is_bad_text(item):
                return False
        elif item is not None and not _is_strict(item, below):
            return False
    return True


def _is_strict_leaf(value: Any, kind: type[object]) -> bool:
    if kind is int:
        return not _is_too_long(value)
    if kind is float:
        return math.isfinite(value)
    if kind is str:
        return not _is_bad_text(value)
    return value is None or kind is bool


def _refuse_fault(value: Any, path: str, depth: int) -> None:
    """Walk again, spelling paths, to the first fault."""
    fault = _fault(value, depth)
    if fault is not None:
        _refuse(path, fault)
    if type(value) is dict:
        for key, item in cast("dict[object, object]", value).items():
            if type(key) is not str:
                _refuse(path, f"a key of type {type(key).__name__}")
            if _is_bad_text(key):
                _refuse(path, f"a key: {_text_fault(key)}")
            _refuse_fault(item, f"{path}.{key}", depth + 1)
    elif type(value) is list or type(value) is tuple:
        for index, item in enumerate(cast("list[object]", value)):
            _refuse_fault(item, f"{path}[{index}]", depth + 1)


def _fault(value: Any, depth: int) -> str | None:
    kind = _kind_of(value)
    if kind is dict or kind is list or kind is tuple:
        return f"nesting deeper than {DEPTH_MAX} (or a cycle)" if depth >= DEPTH_MAX else None
    if _is_strict_leaf(value, kind):
        return None
    if kind is str:
        return _text_fault(value)
    if kind is int:
        return f"an integer of more than {INTEGER_DIGITS_MAX} digits"
    return f"the number {value}" if kind is float else f"a value of type {kind.__name__}"


def _text_fault(text: str) -> str:
    return "text with a NUL" if "\x00" in text else "text with a lone surrogate"


def repair_text(text: str) -> tuple[str, Repairs]:
    """Replace lone surrogates by U+FFFD and NUL by U+2400, and count them (VD-16)."""
    if not _is_bad_text(text):
        return text, NO_REPAIRS
    nul = text.count("\x00")
    fixed, surrogates = _SURROGATE.subn("\ufffd", text.replace("\x00", "\u2400"))
    return fixed, Repairs(surrogates=surrogates, nul=nul)


def repair(value: object) -> tuple[JsonValue, Repairs]:
    """Turn a tool's or model's value into strict JSON of its own; nothing raises (VD-16).

    Text as `repair_text`, keys too (a key that then collides gets `~2`, `~3`, …); NaN and
    infinities become the texts "NaN", "Infinity", "-Infinity"; sets become lists. What is no
    JSON at all becomes a text: bytes, decimals and times as Python writes them, cut to 200
    characters; any other object as its type's name, such as `<Socket>`. So does a container that
    holds itself, lies deeper than 100, or comes after the first million values.

    No code of the value's own type is run, so a hostile object can neither raise nor wait here.
    """
    walk = _Repair()
    fixed = walk.value(value, 0)
    return fixed, Repairs(surrogates=walk.surrogates, nul=walk.nul)


class _Repair:
    """Walk one value; hold the counts, and the containers that are open around the walk."""

    __slots__ = ("_left", "_open", "nul", "surrogates")

    def __init__(self) -> None:
        self.surrogates = self.nul = 0
        self._open: set[int] = set()
        self._left = REPAIR_VALUES_MAX

    def value(self, value: Any, depth: int) -> JsonValue:
        kind = _kind_of(value)
        self._left -= 1
        if issubclass(kind, str):
            return self.text(str.__str__(value))
        if issubclass(kind, _CONTAINERS):
            return self._container(value, kind, depth)
        return self._leaf(value, kind)

    def text(self, text: str) -> str:
        fixed, repairs = repair_text(text)
        self.surrogates += repairs.surrogates
        self.nul += repairs.nul
        return fixed

    def _leaf(self, value: Any, kind: type[object]) -> JsonValue:
        if value is None or kind is bool:
            return value
        if issubclass(kind, int):
            number = int.__int__(value)
            return _TOO_LONG if _is_too_long(number) else number
        if issubclass(kind, float):
            number = float.__float__(value)
            return number if math.isfinite(number) else _NOT_FINITE[repr(number)]
        return self.text(_described(value, kind))

    def _container(self, value: Any, kind: type[object], depth: int) -> JsonValue:
        if depth >= DEPTH_MAX or id(value) in self._open or self._left < 0:
            return self.text(f"<{_type_name(kind)}>")
        self._open.add(id(value))
        # The built-in type's methods, for a subclass's own may do anything; copied, for another
        # thread may change the container meanwhile.
        own = next(own for own in _CONTAINERS if issubclass(kind, own))
        fixed: JsonValue
        if own is dict:
            fixed = self._object(list(cast("Any", dict).items(value)), depth + 1)
        else:
            fixed = [self.value(item, depth + 1) for item in list(own.__iter__(value))]
        self._open.discard(id(value))
        return fixed

    def _object(self, pairs: list[tuple[object, object]], depth: int) -> JsonValue:
        fixed: dict[str, JsonValue] = {}
        last_numbers: dict[str, int] = {}
        for raw_key, item in pairs:
            key = unique = self._key(raw_key)
            while unique in fixed:
                last_numbers[key] = last_numbers.get(key, 1) + 1
                unique = f"{key}~{last_numbers[key]}"
            fixed[unique] = self.value(item, depth)
        return fixed

    def _key(self, key: Any) -> str:
        kind = _kind_of(key)
        if issubclass(kind, str):
            return self.text(str.__str__(key))
        if issubclass(kind, _CONTAINERS):
            return self.text(f"<{_type_name(kind)}>")
        leaf = self._leaf(key, kind)
        return leaf if isinstance(leaf, str) else json.dumps(leaf)


def _described(value: Any, kind: type[object]) -> str:
    """Write an object that is no JSON, with code of the standard library only."""
    # Compared by identity: a metaclass may do anything in `==` and `hash`, a foreign zone in
    # `utcoffset`.
    write = next((write for known, write in _WRITERS if known is kind), None)
    zone: object = value.tzinfo if kind is datetime or kind is time else None
    if write is not None and (zone is None or type(zone) is timezone):
        return write(value)[:_WRITTEN_CHARACTERS_MAX]
    return f"<{_type_name(kind)}>"


def _type_name(kind: type[object]) -> str:
    # The slot itself: a metaclass may answer anything, or raise, for `kind.__name__`.
    return type.__dict__["__name__"].__get__(kind)[:_WRITTEN_CHARACTERS_MAX]


def parse_object(text: str) -> dict[str, Any]:
    """Parse the raw text of a call's arguments to an object, strictly (PV-09).

    Refused: NaN, infinities and numbers that overflow, trailing commas, two documents, duplicate
    keys, a top level that is not an object, depth over 100, integers over 4,300 digits, cut text.
    Lone surrogates and NULs, raw or as escapes, are repaired and not refused (VD-16).

    Raises:
        InvalidArguments: with the fault, for the model to read.
    """
    return parse_repaired(text)[0]


def parse_repaired(text: str) -> tuple[dict[str, Any], Repairs]:
    """Parse as `parse_object`, and count what was repaired, for `meta.repaired`.

    Raises:
        InvalidArguments: with the fault, for the model to read.
    """
    clean, raw_repairs = repair_text(text)
    try:
        value: object = _DECODER.decode(clean)
    except RecursionError:
        raise InvalidArguments(_TOO_DEEP) from None
    except ValueError as error:
        raise InvalidArguments(f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArguments(f"the top level is {_JSON_WORDS[type(value)]}, not an object")
    fields = cast("dict[str, Any]", value)
    if _is_strict(fields, 0):
        return fields, raw_repairs
    # The decoder lets two things through: what is nested too deep, and texts to be repaired.
    if _is_deep(fields, 0):
        raise InvalidArguments(_TOO_DEEP)
    fixed, repairs = repair(fields)
    return cast("dict[str, Any]", fixed), raw_repairs + repairs


def _is_deep(value: object, depth: int) -> bool:
    if isinstance(value, dict):
        inner = list(cast("dict[str, object]", value).values())
    elif isinstance(value, list):
        inner = cast("list[object]", value)
    else:
        return False
    return depth >= DEPTH_MAX or any(_is_deep(item, depth + 1) for item in inner)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidArguments(f"the key {key[:80]!r} stands twice in one object")
            seen.add(key)
    return result


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise InvalidArguments(f"the number {text[:40]} is out of range")
    return number


def _integer(text: str) -> int:
    if len(text.removeprefix("-")) > INTEGER_DIGITS_MAX:
        raise InvalidArguments(f"an integer of more than {INTEGER_DIGITS_MAX} digits")
    return int(text)


def _no_constant(text: str) -> NoReturn:
    raise InvalidArguments(f"{text} is not JSON")


_TOO_DEEP: Final = f"nesting deeper than {DEPTH_MAX}"
_JSON_WORDS: Final[Mapping[type[object], str]] = MappingProxyType(
    {
        list: "a list",
        str: "a text",
        int: "a number",
        float: "a number",
        bool: "a boolean",
        type(None): "null",
    }
)

_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_no_duplicates,
    parse_float=_finite,
    parse_int=_integer,
    parse_constant=_no_constant,
)
