"""Frames: the reducer never guesses, the batcher never hurries."""

from typing import Any

import pytest
from msgspec import Raw

from perdure.records.addresses import frames_of
from perdure.records.codec import decode, decode_json, to_raw
from perdure.records.frames import (
    BATCH_BYTES,
    DeltaFrame,
    EndFrame,
    Frame,
    FrameBatch,
    FrameBatcher,
    FrameError,
    FrameReducer,
    StartFrame,
    cut_args_text,
)
from perdure.records.messages import (
    ARGS_TEXT_BYTES_MAX,
    Extra,
    ImagePart,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from perdure.records.seqs import Seq

X = Extra(provider_name="p", api_name="a", adapter_version=1, opaque_data=Raw(b'"s"'))
TEXT = TextPart(text="")
THINKING = ThinkingPart(text="")
CALL = ToolCallPart(call_id="c", name="t", args_text="")
IMAGE = ImagePart(mime="image/png", sha256="", blob=True)


def start(index: int, part: Part) -> StartFrame:
    return StartFrame(part_index=index, part=part)


def delta(index: int, text: str) -> DeltaFrame:
    return DeltaFrame(part_index=index, delta_text=text)


def end(index: int, **x: Any) -> EndFrame:
    return EndFrame(part_index=index, **x)


def reduced(*frames: Frame) -> FrameReducer:
    reducer = FrameReducer()
    for frame in frames:
        reducer.add(frame)
    return reducer


@pytest.mark.spec("FM-09")
def test_a_batch_has_the_stored_shape_and_its_address() -> None:
    batch = FrameBatch(frames=(start(0, TEXT), delta(0, "a"), end(0), start(1, CALL), end(1, x=X)))
    assert decode_json(to_raw(batch)) == {
        "v": 1,
        "f": [
            {"t": "start", "i": 0, "part": {"type": "text", "text": ""}},
            {"t": "delta", "i": 0, "d": "a"},
            {"t": "end", "i": 0},
            {"t": "start", "i": 1,
             "part": {"type": "toolCall", "callId": "c", "name": "t", "argsText": ""}},
            {"t": "end", "i": 1, "x": {"p": "p", "a": "a", "n": 1, "d": "s"}},
        ],
    }  # fmt: skip
    assert decode(to_raw(batch), FrameBatch) == batch
    address = frames_of(Seq(9), 2, 3)
    assert (address.kind, address.namespace, address.key, address.working_scope) == (
        "list", "perdure.pending.frames", "2.3", "9",
    )  # fmt: skip


@pytest.mark.spec("FM-09")
@pytest.mark.parametrize(
    ("before", "refused", "says"),
    [
        ([], start(1, TEXT), "part 0 is due"),
        ([start(0, TEXT)], start(2, TEXT), "part 1 is due"),
        ([start(0, TEXT)], start(0, TEXT), "part 1 is due"),
        ([start(0, TEXT), end(0)], start(0, THINKING), "part 1 is due"),
        ([], delta(0, "a"), "never started"),
        ([start(0, TEXT)], delta(1, "a"), "never started"),
        ([start(0, TEXT)], delta(-1, "a"), "never started"),
        ([start(0, TEXT), end(0)], delta(0, "a"), "has ended"),
        ([start(0, TEXT), end(0)], end(0), "has ended"),
        ([], end(0), "never started"),
        ([start(0, IMAGE)], delta(0, "a"), "takes no text"),
        ([start(0, IMAGE)], end(0, x=X), "no provider data"),
        ([start(0, OpaquePart(x=X))], delta(0, "a"), "takes no text"),
        ([start(0, ToolCallPart(call_id="c", name="t", args={}))], delta(0, "{}"), "takes no text"),
    ],
)
def test_a_gap_a_repeat_and_a_change_of_type_are_refused(
    before: list[Frame], refused: Frame, says: str
) -> None:
    reducer = reduced(*before)
    parts = reducer.parts()
    with pytest.raises(FrameError, match=says):
        reducer.add(refused)
    assert reducer.parts() == parts


@pytest.mark.spec("FM-09")
def test_the_partial_is_rebuilt_from_any_prefix() -> None:
    frames: list[Frame] = [
        start(0, THINKING), delta(0, "h"), delta(0, "m"), start(1, CALL), end(0, x=X),
        delta(1, '{"a":'), delta(1, "1}"), end(1),
    ]  # fmt: skip
    partials: list[tuple[Part, ...]] = [
        (),
        (THINKING,),
        (ThinkingPart(text="h"),),
        (ThinkingPart(text="hm"),),
        (ThinkingPart(text="hm"), CALL),
        (ThinkingPart(text="hm", x=X), CALL),
        (ThinkingPart(text="hm", x=X), ToolCallPart(call_id="c", name="t", args_text='{"a":')),
        (ThinkingPart(text="hm", x=X), ToolCallPart(call_id="c", name="t", args_text='{"a":1}')),
        (ThinkingPart(text="hm", x=X), ToolCallPart(call_id="c", name="t", args={"a": 1})),
    ]
    for length, partial in enumerate(partials):
        assert reduced(*frames[:length]).parts() == partial
    whole = FrameReducer()
    whole.add_batch(FrameBatch(frames=tuple(frames)))
    assert whole.parts() == partials[-1]


@pytest.mark.parametrize(
    ("frames", "kept"),
    [
        ([start(0, TEXT), delta(0, "a")], ["text"]),
        ([start(0, TEXT)], []),
        ([start(0, THINKING), delta(0, "a")], []),
        ([start(0, THINKING), end(0), start(1, TEXT), delta(1, "a")], ["thinking", "text"]),
        ([start(0, CALL), delta(0, "{}")], []),
        ([start(0, CALL), end(0)], ["toolCall"]),
        ([start(0, THINKING), end(0), start(1, CALL)], []),
        ([start(0, THINKING), end(0), start(1, THINKING), end(1), start(2, CALL)], []),
        ([start(0, THINKING), end(0), start(1, TEXT), start(2, CALL)], []),
        ([start(0, THINKING), end(0), start(1, CALL), end(1), start(2, CALL)],
         ["thinking", "toolCall"]),
        ([start(0, THINKING), end(0), start(1, TEXT), delta(1, "a"), start(2, CALL)],
         ["thinking", "text"]),
    ],
)  # fmt: skip
def test_an_interrupted_reply_keeps_what_was_whole(frames: list[Frame], kept: list[str]) -> None:
    parts = reduced(*frames).finished_parts()
    assert [part.__struct_config__.tag for part in parts] == kept


def test_a_call_without_argument_text_has_no_arguments() -> None:
    assert reduced(start(0, CALL), delta(0, " "), end(0)).parts() == (
        ToolCallPart(call_id="c", name="t", args={}),
    )


@pytest.mark.parametrize("raw", ['{"a":1', "[]", '{"a":NaN}', '{"a":1,"a":2}'])
def test_argument_text_that_does_not_parse_is_kept_raw(raw: str) -> None:
    assert reduced(start(0, CALL), delta(0, raw), end(0)).parts() == (
        ToolCallPart(call_id="c", name="t", args_text=raw),
    )


def test_raw_argument_text_is_cut_with_a_mark_and_clean() -> None:
    assert cut_args_text("a" * ARGS_TEXT_BYTES_MAX) == "a" * ARGS_TEXT_BYTES_MAX
    cut = cut_args_text("\U0001f600" * ARGS_TEXT_BYTES_MAX)
    assert len(cut.encode()) <= ARGS_TEXT_BYTES_MAX
    assert cut.endswith(f"\U0001f600[cut: {4 * ARGS_TEXT_BYTES_MAX} bytes]")
    assert cut_args_text("{\x00\ud800") == "{\u2400\ufffd"


# ------------------------------------------------------------------------------ batches


def test_the_first_batch_is_due_at_once_and_the_next_after_100_ms() -> None:
    batcher = FrameBatcher()
    assert batcher.take(0) is None
    assert not batcher.is_due(10**9)
    batcher.add(start(0, TEXT))
    assert batcher.is_due(0)
    assert batcher.take(1_000) == FrameBatch(frames=(start(0, TEXT),))
    assert batcher.is_empty
    batcher.add(delta(0, "a"))
    assert batcher.due_at_ms() == 1_100
    assert not batcher.is_due(1_099)
    assert batcher.is_due(1_100)


def test_four_kib_of_deltas_are_due_before_their_time() -> None:
    batcher = FrameBatcher()
    batcher.add(start(0, TEXT))
    batcher.take(1_000)
    batcher.add(delta(0, "é" * (BATCH_BYTES // 2 - 1)))
    batcher.add(delta(0, "a"))
    assert not batcher.is_due(1_000)
    batcher.add(delta(0, "b"))
    assert batcher.is_due(1_000)
    batcher.take(1_000)
    batcher.add(delta(0, "c"))
    assert not batcher.is_due(1_000)


def test_neighbouring_deltas_of_one_part_become_one() -> None:
    batcher = FrameBatcher()
    stream: list[Frame] = [
        start(0, TEXT), delta(0, "a"), delta(0, "b"), delta(0, "c"), start(1, TEXT), delta(1, "d"),
        delta(0, "e"), delta(0, "f"), end(0), delta(1, "g"),
    ]  # fmt: skip
    for frame in stream:
        batcher.add(frame)
    assert batcher.take(0) == FrameBatch(
        frames=(
            start(0, TEXT), delta(0, "abc"), start(1, TEXT), delta(1, "d"), delta(0, "ef"), end(0),
            delta(1, "g"),
        )
    )  # fmt: skip


def test_the_end_of_a_part_makes_nothing_due_and_is_not_lost() -> None:
    batcher = FrameBatcher()
    batcher.add(start(0, TEXT))
    batcher.take(0)
    batcher.add(end(0))
    assert batcher.due_at_ms() is None
    assert not batcher.is_empty
    batcher.add(start(1, TEXT))
    assert batcher.due_at_ms() == 100
    assert batcher.take(100) == FrameBatch(frames=(end(0), start(1, TEXT)))
    batcher.add(end(1))
    assert batcher.take(101) == FrameBatch(frames=(end(1),))
