"""The canonical texts beside values: a server puts them there, a client takes them away (WB-14).

A browser reads numbers as doubles, so whatever a model, tool or person gave is sent twice: as
JSON, and under the same name with `Text` as its canonical text. What stands inside an open field is
left as it was given, both ways.
"""

import re
from typing import Any, Final, cast

from msgspec import Raw

from perdure.records.codec import canonical, decode_json, encode

OPEN_FIELDS: Final = frozenset({"args", "details", "value", "checkpoint", "note", "raise"})
"""Fields that hold what somebody outside gave; each has a sibling named `…Text`."""

EXACT_MAX: Final = 2**53
"""Beyond it a double is not exact."""

TEXT: Final = "Text"

HAS_TEXTS: Final = re.compile(rb'Text":')


def with_texts(value: Any) -> Any:
    """Add canonical texts."""
    if isinstance(value, list):
        return [with_texts(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    answer: dict[str, Any] = {}
    for name, item in fields.items():
        answer[name] = item if name in OPEN_FIELDS else with_texts(item)
        text = f"{name}{TEXT}"
        if text not in fields and _has_text(name, item):
            answer[text] = canonical(item).decode()
    return answer


def without_texts(data: bytes) -> bytes:
    """Answer JSON without its canonical texts: as it was before they were added."""
    if HAS_TEXTS.search(data) is None:
        return data
    return encode(_without(decode_json(Raw(data))))


def _without(value: Any) -> Any:
    if isinstance(value, list):
        return [_without(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {
        name: item if name in OPEN_FIELDS else _without(item)
        for name, item in fields.items()
        if not (name.endswith(TEXT) and _is_text_of(item, fields, name.removesuffix(TEXT)))
    }


def _is_text_of(text: object, fields: dict[str, Any], name: str) -> bool:
    """Say whether a field was added for another; one that says something else was given so."""
    if name not in fields or not _has_text(name, fields[name]):
        return False
    return canonical(fields[name]).decode() == text


def _has_text(name: str, item: object) -> bool:
    if name in OPEN_FIELDS:
        return item is not None
    return type(item) is int and abs(item) > EXACT_MAX
