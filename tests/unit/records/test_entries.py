"""Meta: small, resident, exactly named; previews that never end in half a character."""

import json
import math
from typing import Any

import pytest
from msgspec import UNSET

from perdure.errors import Rejected
from perdure.records.codec import to_raw
from perdure.records.entries import (
    META_BYTES_MAX,
    Entry,
    EntryMeta,
    ModelId,
    Repaired,
    Split,
    checked_meta,
    preview_of,
    repaired_meta,
)
from perdure.records.seqs import Seq
from perdure.records.strict_json import Repairs

DE, FR = "\U0001f1e9\U0001f1ea", "\U0001f1eb\U0001f1f7"
FULL = EntryMeta(
    timestamp=1764400000000, bytes=3, tokens=1, preview="hi", repaired=Repaired(surrogates=1),
    mode="steer", as_kind="user", from_subject="me", handoff=True, stop="stop",
    model=ModelId(provider="local", model_id="m"), request_as_of=Seq(4), prefix_version=1,
    context_tokens=5, fixed_tokens=6, answers=Seq(7), is_error=False, outcome="notStarted",
    tokens_before=8, split=Split(turn_start=Seq(9)), note={"a": [1]},
)  # fmt: skip


@pytest.mark.spec("FM-02")
def test_meta_has_the_stored_names_and_nothing_absent() -> None:
    assert json.loads(bytes(checked_meta(FULL))) == {
        "timestamp": 1764400000000, "bytes": 3, "tokens": 1, "preview": "hi",
        "repaired": {"surrogates": 1}, "mode": "steer", "as": "user", "from": "me",
        "handoff": True, "stop": "stop", "model": {"provider": "local", "modelId": "m"},
        "requestAsOf": 4, "prefixVersion": 1, "contextTokens": 5, "fixedTokens": 6, "answers": 7,
        "isError": False, "outcome": "notStarted", "tokensBefore": 8, "split": {"turnStart": 9},
        "note": {"a": [1]},
    }  # fmt: skip
    assert bytes(checked_meta(EntryMeta())) == b"{}"
    entry = Entry(
        id=Seq(1), conv_id=Seq(1), kind="user", meta_json=checked_meta(FULL), commit_end=Seq(2)
    )
    assert entry.meta == FULL
    assert entry.payload is None


def test_an_entry_round_trips_and_absent_fields_stay_absent() -> None:
    entry = Entry(
        id=Seq(5), conv_id=Seq(1), kind="tool_result", written_by=Seq(4), call_index=0,
        through=Seq(2), key="k", ref=Seq(3), meta_json=to_raw({}), payload_json=to_raw([1]),
        commit_end=Seq(6),
    )  # fmt: skip
    assert json.loads(bytes(to_raw(entry))) == {
        "id": 5, "conv": 1, "kind": "tool_result", "by": 4, "callIndex": 0, "through": 2,
        "key": "k", "ref": 3, "meta": {}, "payload": [1], "commitEnd": 6,
    }  # fmt: skip
    assert entry.payload == [1]
    bare = Entry(id=Seq(5), conv_id=Seq(1), kind="user", meta_json=to_raw({}), commit_end=Seq(6))
    assert set(json.loads(bytes(to_raw(bare)))) == {"id", "conv", "kind", "meta", "commitEnd"}


@pytest.mark.spec("FM-02")
def test_meta_over_one_kib_is_refused() -> None:
    room = META_BYTES_MAX - len(b'{"note":""}')
    assert len(bytes(checked_meta(EntryMeta(note="x" * room)))) == META_BYTES_MAX
    with pytest.raises(Rejected, match="1025 bytes; at most 1024") as refusal:
        checked_meta(EntryMeta(note="x" * (room + 1)))
    assert refusal.value.code == "invariant"


@pytest.mark.parametrize(
    "meta",
    [
        EntryMeta(preview="\ud800"),
        EntryMeta(from_subject="\x00"),
        EntryMeta(note=math.nan),
        EntryMeta(note={"a": b"x"}),
        {"own": math.inf},
        {"own": object()},
    ],
)
def test_meta_is_strict_json(meta: Any) -> None:
    with pytest.raises(Rejected):
        checked_meta(meta)


def test_a_plugins_own_meta_is_taken_too() -> None:
    assert bytes(checked_meta({"timestamp": 1, "own": [None]})) == b'{"timestamp":1,"own":[null]}'


@pytest.mark.spec("FM-02")
@pytest.mark.parametrize(
    ("text", "preview"),
    [
        ("", ""),
        ("a" * 120, "a" * 120),
        ("a" * 121, "a" * 120),
        ("  two\n\n lines\t", "two lines"),
        ("esc\x1b[31m\x07\x9b", "esc [31m"),
        ("a\x00\ud800", "a\u2400\ufffd"),
        # Precomposed and joined characters at the edge: whole or left out.
        ("a" * 119 + "e\u0301", "a" * 119),
        ("a" * 118 + "e\u0301b", "a" * 118 + "e\u0301"),
        ("a" * 119 + "\U0001f468\u200d\U0001f469", "a" * 119),
        ("a" * 118 + "\U0001f468\u200d\U0001f469", "a" * 118),
        ("a" * 119 + "\u2764\ufe0f", "a" * 119),
        ("a" * 119 + "\U0001f44d\U0001f3fd", "a" * 119),
        ("a" * 119 + DE, "a" * 119),
        ("a" * 118 + DE + FR, "a" * 118 + DE),
        ("a" * 117 + DE + FR, "a" * 117 + DE),
        ("a" + " " * 478 + DE + "b", "a"),
        ("\u0301" * 200, "\u0301" * 120),
        ("\U0001f1e9" * 201, "\U0001f1e9" * 120),
    ],
)  # fmt: skip
def test_a_preview_never_ends_in_half_a_character(text: str, preview: str) -> None:
    assert preview_of(text) == preview


def test_a_preview_always_fits_into_meta() -> None:
    for char in ("\U0001f600", '"', "\\", "\x00", "漢"):
        checked_meta(EntryMeta(preview=preview_of(char * 500)))


def test_only_repairs_that_happened_stand_in_meta() -> None:
    assert repaired_meta(Repairs()) is UNSET
    assert repaired_meta(Repairs(nul=2)) == Repaired(nul=2)
    assert json.loads(bytes(to_raw(repaired_meta(Repairs(surrogates=1))))) == {"surrogates": 1}
