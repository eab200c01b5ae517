"""Random streams: what is stored in batches is rebuilt exactly, and nothing else is accepted."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from perdure.records.codec import decode, to_raw
from perdure.records.frames import (
    BATCH_BYTES,
    BATCH_INTERVAL_MS,
    DeltaFrame,
    EndFrame,
    Frame,
    FrameBatch,
    FrameBatcher,
    FrameError,
    FrameReducer,
    StartFrame,
)
from perdure.records.messages import (
    Extra,
    ImagePart,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)

X = Extra(provider_name="p", api_name="a", adapter_version=1, opaque_data=Raw(b'{"s":[1.0]}'))
STARTS: list[Part] = [
    TextPart(text=""),
    TextPart(text="begun "),
    ThinkingPart(text=""),
    ToolCallPart(call_id="c", name="t", args_text=""),
    ToolCallPart(call_id="c", name="t", args={"a": 1}),
    ImagePart(mime="image/png", sha256="0", blob=True),
    OpaquePart(x=X),
]
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=6) | st.sampled_from(
    ['{"a":', "1}", "x" * 3_000]
)


@st.composite
def streams(draw: st.DrawFn) -> list[Frame]:
    """Draw a legal stream: parts start in order, deltas come to open parts, in any mixture."""
    frames: list[Frame] = []
    started: list[Part] = []
    open_parts: set[int] = set()
    for step in draw(st.lists(st.sampled_from(["start", "delta", "delta", "end"]), max_size=25)):
        if step == "start" or not open_parts:
            part = draw(st.sampled_from(STARTS))
            frames.append(StartFrame(part_index=len(started), part=part))
            open_parts.add(len(started))
            started.append(part)
            continue
        index = draw(st.sampled_from(sorted(open_parts)))
        part = started[index]
        if step == "end":
            has_x = not isinstance(part, ImagePart) and draw(st.booleans())
            frames.append(EndFrame(part_index=index, x=X if has_x else UNSET))
            open_parts.discard(index)
        elif not isinstance(part, ImagePart | OpaquePart) and getattr(part, "args", UNSET) is UNSET:
            frames.append(DeltaFrame(part_index=index, delta_text=draw(TEXTS)))
    return frames


def reduced(frames: list[Frame]) -> FrameReducer:
    reducer = FrameReducer()
    for frame in frames:
        reducer.add(frame)
    return reducer


def law_of_batches(frames: list[Frame], gaps: list[int]) -> None:
    batcher, stored, now = FrameBatcher(), FrameReducer(), 0
    times: list[tuple[int, int]] = []

    def take() -> None:
        batch = batcher.take(now)
        assert batch is not None
        size = sum(len(f.delta_text.encode()) for f in batch.frames if isinstance(f, DeltaFrame))
        times.append((now, size))
        assert not any(
            isinstance(one, DeltaFrame)
            and isinstance(two, DeltaFrame)
            and one.part_index == two.part_index
            for one, two in itertools.pairwise(batch.frames)
        )
        stored.add_batch(decode(to_raw(batch), FrameBatch))

    for count, frame in enumerate(frames):
        now += gaps[count % len(gaps)]
        batcher.add(frame)
        if batcher.is_due(now):
            take()
            # Everything so far is stored: the partial agrees with the stream's at this point.
            assert stored.parts() == reduced(frames[: count + 1]).parts()
    if not batcher.is_empty:
        take()
        times.pop()
    whole = reduced(frames)
    assert stored.parts() == whole.parts()
    assert stored.finished_parts() == whole.finished_parts()
    for (before, _), (after, size) in itertools.pairwise(times):
        assert after - before >= BATCH_INTERVAL_MS or size >= BATCH_BYTES


@pytest.mark.spec("FM-09")
@given(streams(), st.lists(st.integers(0, 120), min_size=1, max_size=5))
def test_encoder_and_reducer_agree(frames: list[Frame], gaps: list[int]) -> None:
    law_of_batches(frames, gaps)


@pytest.mark.deep
@settings(max_examples=3_000)
@given(streams(), st.lists(st.integers(0, 120), min_size=1, max_size=5))
def test_encoder_and_reducer_agree_many_times(frames: list[Frame], gaps: list[int]) -> None:
    law_of_batches(frames, gaps)


@pytest.mark.spec("FM-09")
@given(streams(), st.data())
def test_a_lost_or_repeated_start_or_end_is_never_guessed_over(
    frames: list[Frame], data: st.DataObject
) -> None:
    marks = [n for n, frame in enumerate(frames) if not isinstance(frame, DeltaFrame)]
    if not marks:
        return
    at = data.draw(st.sampled_from(marks))
    with pytest.raises(FrameError):
        reduced([*frames[: at + 1], *frames[at:]])
    later = [frame for frame in frames[at + 1 :] if isinstance(frame, StartFrame)]
    if isinstance(frames[at], StartFrame) and later:
        with pytest.raises(FrameError):
            reduced([*frames[:at], *frames[at + 1 :]])


FRAMES: Any = st.one_of(
    st.builds(StartFrame, part_index=st.integers(-1, 3), part=st.sampled_from(STARTS)),
    st.builds(DeltaFrame, part_index=st.integers(-1, 3), delta_text=TEXTS),
    st.builds(EndFrame, part_index=st.integers(-1, 3), x=st.sampled_from([X, UNSET])),
)


@given(st.lists(FRAMES, max_size=20))
def test_any_noise_is_refused_frame_by_frame_and_changes_nothing(noise: list[Frame]) -> None:
    reducer, accepted = FrameReducer(), list[Frame]()
    for frame in noise:
        before = reducer.parts()
        try:
            reducer.add(frame)
        except FrameError:
            assert reducer.parts() == before
        else:
            accepted.append(frame)
    assert reducer.parts() == reduced(accepted).parts()
