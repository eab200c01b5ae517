"""Records as they go over the wire: stored names, exact numbers, one shape everywhere (WB-14).

Whoever shows or compares exactly reads the texts that stand beside values (`client.texts`).
"""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from perdure.client.texts import with_texts
from perdure.records.codec import decode_json
from perdure.records.watch import json_form
from perdure.records.writes import Commit


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
