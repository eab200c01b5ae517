"""The local model's answer, read back: in whatever pieces, it is the same text or call."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.providers.local_reply import ReplyReader, repeats_itself
from perdure.records.frames import DeltaFrame, Frame, FrameReducer
from perdure.records.messages import Part, TextPart, ToolCallPart


def read(pieces: list[str], *, is_json: bool) -> tuple[list[Frame], tuple[Part, ...]]:
    """Read a reply in pieces."""
    reader = ReplyReader(is_json=is_json, call_id="c")
    frames = [frame for piece in pieces for frame in reader.add(piece)]
    frames += reader.end()
    reducer = FrameReducer()
    for frame in frames:
        reducer.add(frame)
    return frames, reducer.parts()


def cut(text: str, sizes: list[int]) -> list[str]:
    """Cut a text into pieces of these sizes, over and over."""
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    return pieces


def only(parts: tuple[Part, ...]) -> Part:
    """Answer the one part."""
    (part,) = parts
    return part


SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=5)
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))


@given(text=WORDS, sizes=SIZES)
def test_plain_text_streams_as_it_comes(text: str, sizes: list[int]) -> None:
    frames, parts = read(cut(text, sizes), is_json=False)
    if not text.strip():
        assert frames == []
        return
    assert only(parts) == TextPart(text=text.lstrip())


@given(text=WORDS, sizes=SIZES, escaped=st.booleans())
def test_an_answer_is_decoded_while_it_grows(text: str, sizes: list[int], escaped: bool) -> None:
    raw = json.dumps({"answer": text}, ensure_ascii=escaped, indent=2)
    _, parts = read(cut(raw, sizes), is_json=True)
    assert parts == ((TextPart(text=text),) if text else ())


@pytest.mark.spec("PV-24")
def test_an_answer_streams_before_its_end() -> None:
    reader = ReplyReader(is_json=True, call_id="c")
    assert reader.add('{"ans') == []
    frames = [frame for piece in ('wer": "One', " two", '"}') for frame in reader.add(piece)]
    assert [frame.delta_text for frame in frames if isinstance(frame, DeltaFrame)] == [
        "One",
        " two",
    ]


@given(sizes=SIZES)
def test_a_call_is_one_part_whatever_the_pieces(sizes: list[int]) -> None:
    raw = '{\n  "tool": "list",\n  "arguments": {\n    "path": "src"\n  }\n}'
    frames, parts = read(cut(raw, sizes), is_json=True)
    assert only(parts) == ToolCallPart(call_id="c", name="list", args={"path": "src"})
    assert len(frames) == 3


@pytest.mark.spec("PV-24")
@pytest.mark.parametrize(
    "arguments",
    ['{"n": NaN}', '{"n": 1e999}', '{"a": 1, "a": 2}', '{"a": "half', "{", '{"a": 1,}'],
)
def test_arguments_go_through_the_strict_parser_and_stay_raw_when_they_fail(arguments: str) -> None:
    _, parts = read(['{"tool": "list", "arguments": ' + arguments], is_json=True)
    part = only(parts)
    assert isinstance(part, ToolCallPart)
    assert (part.name, part.args_text) == ("list", arguments)


@pytest.mark.parametrize("raw", ['{"tool": "li', '{"other": 1}', "no json at all"])
def test_a_cut_reply_that_names_no_tool_is_kept_as_text(raw: str) -> None:
    assert only(read([raw], is_json=True)[1]) == TextPart(text=raw)


def test_a_cut_answer_keeps_what_came() -> None:
    assert only(read(['{"answer": "half \\u00'], is_json=True)[1]) == TextPart(text="half ")


def test_halves_of_a_character_arrive_as_one_and_orphans_are_replaced() -> None:
    pair = "\U0001f600".encode("utf-16", "surrogatepass")
    high, low = (pair[at : at + 2].decode("utf-16-le", "surrogatepass") for at in (2, 4))
    frames, parts = read(["a", high, low, "b"], is_json=False)
    texts = [frame.delta_text for frame in frames if isinstance(frame, DeltaFrame)]
    assert all(text.encode() for text in texts)
    assert isinstance(only(parts), TextPart)
    _, escaped = read(['{"answer": "\\ud83d', "\\ude00 \\ud800", '!"}'], is_json=True)
    assert only(escaped) == TextPart(text="\U0001f600 \ufffd!")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("roi, la femme au roi, la femme au roi, la femme au roi,", True),
        ("a list:\n- README.md\n- README.md\n- README.md", True),
        ("x" * 12, True),
        ("one two three, one two four, one two five", False),
        ("ha ha", False),
        ("", False),
        ("- a.txt\n- b.txt\n- c.txt\n- d.txt", False),
        (" " * 12, False),
    ],
)
def test_a_text_that_goes_round_in_circles_is_noticed(text: str, found: bool) -> None:
    assert repeats_itself(text) is found
