"""Records as they go over the wire: stored names, exact numbers, one shape everywhere (WB-14).

A browser reads numbers as doubles, so whatever a model, tool or person gave is sent twice: as
JSON, and under the same name with `Text` as its canonical text. Whoever shows or compares exactly
reads the text.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from perdure.records.codec import canonical, decode_json
from perdure.records.watch import json_form
from perdure.records.writes import Commit

OPEN_FIELDS: Final = frozenset({"args", "details", "value", "checkpoint", "note", "raise"})
"""Fields that hold what somebody outside gave; each has a sibling named `…Text`."""

EXACT_MAX: Final = 2**53
"""Beyond it a double is not exact."""


def _plainly(value: object) -> object:
    """Write what is no JSON type of its own; a read-only mapping is an object."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    return json_form(value)


_ENCODE: Final = msgspec.json.Encoder(enc_hook=_plainly).encode
_WORTH_A_LOOK: Final = re.compile(rb'"(?:args|details|value|checkpoint|note|raise)":|\d{16}')


def render(answer: object) -> bytes:
    """Encode an answer, with the texts beside what must stay exact."""
    return exact(_ENCODE(answer))


def exact(body: bytes) -> bytes:
    """Answer an encoded record with the texts beside what must stay exact."""
    if _WORTH_A_LOOK.search(body) is None:
        return body
    return _ENCODE(with_texts(decode_json(msgspec.Raw(body))))


def with_texts(value: Any) -> Any:
    """Add canonical texts; what stands inside an open field is left as it was given."""
    if isinstance(value, list):
        return [with_texts(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    answer: dict[str, Any] = {}
    for name, item in fields.items():
        is_open = name in OPEN_FIELDS
        answer[name] = item if is_open else with_texts(item)
        text = f"{name}Text"
        if text not in fields and item is not None and (is_open or _is_inexact(item)):
            answer[text] = canonical(item).decode()
    return answer


def _is_inexact(value: object) -> bool:
    return type(value) is int and abs(value) > EXACT_MAX


def plain(record: object) -> Any:
    """Answer a record as plain JSON, under its stored names."""
    return decode_json(_ENCODE(record))


def commit_record(commit: Commit) -> dict[str, Any]:
    """Answer a main commit the way the event stream sends it (WT-19)."""
    writes: list[dict[str, Any]] = plain(commit.writes)
    return {
        "type": "commit",
        "firstSeq": commit.first_seq,
        "lastSeq": commit.last_seq,
        "timestamp": commit.time_ms,
        "writes": [{"seq": write["s"], "change": write} for write in writes],
    }
