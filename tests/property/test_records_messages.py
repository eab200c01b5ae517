"""Random messages: they round-trip, foreign parts keep their bytes, previews always fit."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from perdure.records.codec import to_raw
from perdure.records.entries import PREVIEW_CHARACTERS_MAX, EntryMeta, checked_meta, preview_of
from perdure.records.messages import (
    OpaquePart,
    TextPart,
    UserMessage,
    UserPayload,
    check_payload,
    normalize_input,
    read_payload,
)
from perdure.records.strict_json import NO_REPAIRS

CLEAN = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | CLEAN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(CLEAN, inner, max_size=3),
    max_leaves=6,
)
SPACED = st.sampled_from([None, 0, 1, 3])
KNOWN = ("text", "image", "thinking", "toolCall", "opaque")


@given(st.dictionaries(CLEAN, JSON, max_size=3), CLEAN, SPACED, CLEAN)
def test_a_foreign_part_keeps_its_bytes_beside_known_ones(
    fields: dict[str, Any], kind: str, indent: int | None, text: str
) -> None:
    if kind in KNOWN:
        return
    part = json.dumps({**fields, "type": kind}, indent=indent, ensure_ascii=False)
    known = json.dumps({"type": "text", "text": text})
    raw = Raw(
        f'{{"v":1,"messages":[{{"role":"user","content":[{part},{known}],"timestamp":1}}]}}'.encode()
    )
    foreign, own = read_payload(raw, UserPayload).messages[0].content
    assert isinstance(foreign, OpaquePart)
    assert bytes(foreign.x.opaque_data).decode() == part
    assert own == TextPart(text=text)


@given(st.lists(st.lists(CLEAN.filter(bool), min_size=1, max_size=3), min_size=1, max_size=3))
def test_a_clean_input_is_taken_as_it_is_and_round_trips(texts: list[list[str]]) -> None:
    given_messages = [
        UserMessage(content=tuple(TextPart(text=text) for text in some), timestamp=1)
        for some in texts
    ]
    messages, repairs = normalize_input(given_messages)
    assert (list(messages), repairs) == (given_messages, NO_REPAIRS)
    payload = UserPayload(messages=messages)
    raw = to_raw(payload)
    check_payload(raw, UserPayload)
    assert read_payload(raw, UserPayload) == payload


@pytest.mark.spec("FM-02")
@given(st.text(st.characters() | st.characters(categories=("Cs", "Mn", "Cc")), max_size=400))
def test_a_preview_is_one_short_clean_line_that_fits(text: str) -> None:
    preview = preview_of(text)
    assert len(preview) <= PREVIEW_CHARACTERS_MAX
    assert preview.isprintable() or not any(
        char < " " or "\x7f" <= char <= "\x9f" for char in preview
    )
    assert "  " not in preview
    assert len(bytes(checked_meta(EntryMeta(preview=preview)))) < 600
