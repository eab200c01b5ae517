"""What a function returned, as JSON: everything that has one meaning, nothing that has none."""

import dataclasses
import enum
from collections.abc import Mapping, Set
from typing import Final, NoReturn, cast

import msgspec
from msgspec import Struct

from perdure.errors import ToolFailed
from perdure.records.strict_json import DEPTH_MAX, JsonValue

_PLAIN: Final = (str, int, float, bool, type(None))


def to_json(value: object) -> JsonValue:
    """Convert a returned value to JSON, by the rules of msgspec (TL-32).

    Mappings, lists, tuples, sets, dataclasses, Structs, enums, dates, UUIDs, decimals and bytes
    (as base64) convert. Numbers that are not finite pass: the sink's door names them (VD-16).

    Raises:
        ToolFailed: for anything else, naming path and type.
    """
    return _convert(value, "$", 0)


def _fail(path: str, what: str) -> NoReturn:
    raise ToolFailed(
        f"the tool ran, but what it returned does not convert to JSON: at {path} {what}; "
        f"accepted: text, numbers, booleans, None, lists, mappings with text keys, dataclasses"
    )


def _convert(value: object, path: str, depth: int) -> JsonValue:
    if type(value) in _PLAIN:
        return cast("JsonValue", value)
    if depth >= DEPTH_MAX:
        _fail(path, f"it is nested deeper than {DEPTH_MAX}, or contains itself")
    if isinstance(value, Struct):
        value = msgspec.structs.asdict(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {
            _key(key, path): _convert(item, f"{path}.{key}", depth + 1)
            for key, item in cast("Mapping[object, object]", value).items()
        }
    if isinstance(value, list | tuple | Set):
        items = cast("list[object]", value)
        return [_convert(item, f"{path}[{at}]", depth + 1) for at, item in enumerate(items)]
    return _leaf(value, path)


def _key(key: object, path: str) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, bool) or not isinstance(key, str | int):
        _fail(path, f"stands a key of type {type(key).__name__}")
    return str(key)


def _leaf(value: object, path: str) -> JsonValue:
    try:
        return cast("JsonValue", msgspec.to_builtins(value))
    except (TypeError, ValueError):
        _fail(path, f"stands a value of type {type(value).__name__}")
