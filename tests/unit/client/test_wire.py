"""Addresses, events and errors, read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.client.places import Place, place_of
from perdure.client.sse import SseEvent, SseParser
from perdure.client.texts import OPEN_FIELDS, with_texts, without_texts
from perdure.client.wire import error_of
from perdure.errors import (
    Closed,
    Faulted,
    Fenced,
    FormatUnsupported,
    PerdureError,
    Rejected,
    StorageBusy,
    StorageDamaged,
)
from perdure.records.codec import decode_json, encode
from perdure.web.refusals import refusal_of
from perdure.web.wire import render

NAMES = st.sampled_from([*sorted(OPEN_FIELDS), "argsText", "n", "nText", "text", "Text"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.spec("WB-14")
@given(JSON)
def test_texts_are_taken_away_as_they_were_added(value: Any) -> None:
    body = encode({"args": value, "rest": value})
    sent = encode(with_texts(decode_json(body)))
    assert without_texts(sent) == body


@pytest.mark.spec("WB-14")
def test_what_somebody_gave_under_the_name_of_a_text_stays() -> None:
    given_ = {"args": {"q": 1, "args": 2, "argsText": "2"}, "n": 2**60, "noteText": "mine"}
    assert without_texts(render(given_)) == encode(given_)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://127.0.0.1:8700", Place(host="127.0.0.1", port=8700, token="t")),
        ("http://localhost:8700/", Place(host="localhost", port=8700, token="t")),
        ("http://[::1]:8700", Place(host="::1", port=8700, token="t")),
        ("http://example.org", Place(host="example.org", port=80, token="t")),
        ("unix:/run/x/socket", Place(path="/run/x/socket", token="t")),
    ],
)
def test_an_address_is_read(url: str, place: Place) -> None:
    assert place_of(url, "t") == place
    assert str(place) == url.rstrip("/")


@pytest.mark.spec("WB-02")
def test_the_fragment_of_an_address_is_its_token_unless_one_is_given() -> None:
    url = "http://127.0.0.1:8700/#secret"
    assert place_of(url).token == "secret"
    assert place_of(url, "other").token == "other"
    assert place_of("unix:/x").token is None


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8700", "https://x", "ftp://x", "http://", "http://x:y", "http://x/v1",
        "http://x?a=b", "http://u:p@x", "unix:here", "unix:", "sqlite:x", "", "http://[::1",
    ],
)  # fmt: skip
def test_another_address_is_refused_by_name_without_its_token(url: str) -> None:
    with pytest.raises(Rejected, match="is not http://HOST:PORT or unix:/PATH") as refused:
        perdure.connect(url + "#secret")
    assert repr(url) in refused.value.message
    assert "secret" not in refused.value.message


def test_an_address_without_a_token_is_refused() -> None:
    with pytest.raises(Rejected, match="no token"):
        perdure.connect("http://127.0.0.1:1")


@pytest.mark.spec("WB-15")
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_events_are_read_from_blocks_of_any_size(size: int) -> None:
    body = b": ping\n\nevent: base\nid: 7\ndata: {}\n\nevent: delta\ndata: a\ndata: b\n\nevent: cut"
    parser = SseParser()
    found = [
        event
        for start in range(0, len(body), size)
        for event in parser.feed(body[start : start + size])
    ]
    assert found == [
        SseEvent(name="base", id="7", data=b"{}"),
        SseEvent(name="delta", id="", data=b"a\nb"),
    ]


ERRORS: list[PerdureError] = [
    Rejected("busy", "not now", {"task": 7}),
    Rejected("deleted", "gone"),
    Closed("it was closed"),
    Faulted("the disk is full"),
    Faulted("a defect", code="defect"),
    Fenced("another one has it"),
    StorageBusy("it is taken", {"pid": 41}),
    StorageDamaged("row 7"),
    FormatUnsupported("format 9"),
]


@pytest.mark.spec("WB-06")
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_comes_back_as_what_it_was(error: PerdureError) -> None:
    refusal = refusal_of(error)
    came = error_of(refusal.status, render({"error": refusal.problem}))
    assert type(came) is type(error)
    assert str(came) == str(error)
    assert vars(came) == vars(error)


@pytest.mark.spec("WB-06")
def test_what_only_a_server_says_keeps_its_code() -> None:
    came = error_of(413, b'{"error":{"code":"too_large","message":"m","details":{"bytes_max":1}}}')
    assert isinstance(came, perdure.Refused)
    assert (came.code, came.message, came.details) == ("too_large", "m", {"bytes_max": 1})


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error":"x"}', b"\xff"])
def test_an_answer_of_somebody_else_is_named(body: bytes) -> None:
    came = error_of(502, body)
    assert isinstance(came, perdure.Refused)
    assert came.code == "unknown"
    assert "502" in came.message
