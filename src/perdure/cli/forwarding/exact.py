"""Answers as they were stored: without the texts that the wire puts beside values (WB-14)."""

from typing import Any, Final, cast

import msgspec

from perdure.records.codec import decode_json

TEXT: Final = "Text"
"""End of the name of a canonical text beside a value of the same name."""


def without_texts(data: bytes) -> bytes:
    """Answer JSON without the canonical texts that stand beside its values."""
    return msgspec.json.encode(_without(decode_json(msgspec.Raw(data))))


def _without(value: Any) -> Any:
    if isinstance(value, list):
        return [_without(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {
        name: _without(item)
        for name, item in fields.items()
        if not (name.endswith(TEXT) and name.removesuffix(TEXT) in fields)
    }
