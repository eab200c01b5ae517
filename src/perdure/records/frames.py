"""Frames: a streamed reply in pieces, and the reducer that rebuilds the partial (FM-09).

A frame starts a part, adds text to it, or ends it. Frames serve the screen and the partial of an
interrupted attempt; the final message is not a frame (K37). The reducer refuses a gap, a repeat
and a change of type, so a partial is never a guess.
"""

from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from perdure.errors import InvalidArguments
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
from perdure.records.names import stored
from perdure.records.strict_json import parse_object, repair_text

BATCH_INTERVAL_MS: Final = 100
"""Shortest time between two batches of a stream, in milliseconds."""

BATCH_BYTES: Final = 4_096
"""Bytes of delta text that make a batch due before its time."""


class StartFrame(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="start",
    tag_field="t",
    omit_defaults=True,
    rename=stored,
):
    """Start part `part_index`; a toolCall starts with empty `args_text`."""

    part_index: int
    part: Part


class DeltaFrame(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="delta",
    tag_field="t",
    omit_defaults=True,
    rename=stored,
):
    """Add text (of a call: raw argument text) to a started part."""

    part_index: int
    delta_text: str


class EndFrame(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="end",
    tag_field="t",
    omit_defaults=True,
    rename=stored,
):
    """End a part, with the provider's opaque data when there is some."""

    part_index: int
    x: Extra | UnsetType = UNSET


Frame: TypeAlias = StartFrame | DeltaFrame | EndFrame


class FrameBatch(Struct, frozen=True, gc=False, kw_only=True, rename=stored):
    """One stored element of `perdure.pending.frames`."""

    v: Literal[1] = 1
    frames: tuple[Frame, ...]


class FrameError(ValueError):
    """A frame that cannot follow what came before."""


class _Open:
    """Gather one part."""

    __slots__ = ("ended", "part", "text", "x")

    def __init__(self, part: Part) -> None:
        self.part = part
        self.text: list[str] = []
        self.ended = False
        self.x: Extra | UnsetType = UNSET

    @property
    def takes_text(self) -> bool:
        if isinstance(self.part, ToolCallPart):
            return self.part.args is UNSET
        return isinstance(self.part, TextPart | ThinkingPart)

    def gathered(self) -> str:
        """Join what came; keep it joined, for a partial is read after every batch."""
        self.text = ["".join(self.text)]
        return self.text[0]


class FrameReducer:
    """Rebuild the partial reply from frames, in order."""

    def __init__(self) -> None:
        """Start with no part."""
        self._parts: list[_Open] = []

    def add(self, frame: Frame) -> None:
        """Apply one frame; raises FrameError for a gap, a repeat or a change of type.

        A frame that is refused changes nothing.
        """
        match frame:
            case StartFrame(part_index=index, part=part):
                if index != len(self._parts):
                    raise FrameError(f"part {index} starts where part {len(self._parts)} is due")
                self._parts.append(_Open(part))
            case DeltaFrame(part_index=index, delta_text=text):
                current = self._open(index)
                if not current.takes_text:
                    raise FrameError(f"part {index}, a {_word(current.part)}, takes no text")
                current.text.append(text)
            case EndFrame(part_index=index, x=extra):
                current = self._open(index)
                if extra is not UNSET and isinstance(current.part, ImagePart):
                    raise FrameError(f"part {index}, an image, takes no provider data")
                current.ended = True
                current.x = extra

    def add_batch(self, batch: FrameBatch) -> None:
        """Apply the frames of one stored batch, in order."""
        for frame in batch.frames:
            self.add(frame)

    def _open(self, index: int) -> _Open:
        if not 0 <= index < len(self._parts):
            raise FrameError(f"part {index} was never started")
        current = self._parts[index]
        if current.ended:
            raise FrameError(f"part {index} has ended")
        return current

    def parts(self) -> tuple[Part, ...]:
        """Answer every part as far as it came; an unended call keeps its raw argument text."""
        return tuple(_built(current) for current in self._parts)

    def finished_parts(self) -> tuple[Part, ...]:
        """Answer what may be kept of an interrupted reply (GN-45).

        Text as far as it came, unless it is empty; calls only when they ended; thinking only when
        it ended, and not when it stands directly before a dropped call.
        """
        kept: list[Part] = []
        for current in self._parts:
            part = _built(current)
            if isinstance(part, TextPart):
                if part.text:
                    kept.append(part)
            elif current.ended:
                kept.append(part)
            elif isinstance(part, ToolCallPart):
                while kept and isinstance(kept[-1], ThinkingPart):
                    kept.pop()
        return tuple(kept)


def _word(part: Part) -> str:
    return str(part.__struct_config__.tag)


def _built(current: _Open) -> Part:
    part, added = current.part, current.gathered()
    if isinstance(part, ImagePart):
        return part
    if current.x is not UNSET:
        part = msgspec.structs.replace(part, x=current.x)
    if isinstance(part, TextPart | ThinkingPart):
        return msgspec.structs.replace(part, text=part.text + added)
    if isinstance(part, OpaquePart) or part.args is not UNSET:
        return part
    raw = ("" if part.args_text is UNSET else part.args_text) + added
    return parsed_call(part, raw) if current.ended else _unparsed_call(part, raw)


def parsed_call(part: ToolCallPart, raw: str) -> ToolCallPart:
    """Set `args` when the raw text parses strictly (empty: no arguments), else `args_text` (FM-06).

    Text that is not clean Unicode is repaired in either case (VD-16).
    """
    try:
        args = parse_object(raw) if raw.strip() else {}
    except InvalidArguments:
        return _unparsed_call(part, raw)
    return msgspec.structs.replace(part, args=args, args_text=UNSET)


def _unparsed_call(part: ToolCallPart, raw: str) -> ToolCallPart:
    return msgspec.structs.replace(part, args=UNSET, args_text=cut_args_text(raw))


def cut_args_text(raw: str) -> str:
    """Keep at most 64 KiB of argument text that did not parse, cut with a mark (FM-06)."""
    clean, _ = repair_text(raw)
    whole = clean.encode()
    if len(whole) <= ARGS_TEXT_BYTES_MAX:
        return clean
    mark = f"[cut: {len(whole)} bytes]"
    return whole[: ARGS_TEXT_BYTES_MAX - len(mark)].decode(errors="ignore") + mark


class FrameBatcher:
    """Collect frames, and say when a working commit of them is due; time comes in.

    At most one batch per 100 ms or 4 KiB of deltas; the first one at once, for a person waits for
    it. Neighbouring deltas of one part become one. The end of a part makes nothing due: it rides
    with the batch after it, or with the last one.
    """

    def __init__(self) -> None:
        """Start with nothing to store."""
        self._frames: list[Frame] = []
        self._texts: list[str] = []
        self._bytes = 0
        self._waits = False
        self._taken_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        """Say that nothing was added since the last batch."""
        return not self._frames

    def add(self, frame: Frame) -> None:
        """Take the next frame of the stream."""
        last = self._frames[-1] if self._frames else None
        if isinstance(frame, DeltaFrame):
            self._bytes += len(frame.delta_text.encode(errors="surrogatepass"))
            if isinstance(last, DeltaFrame) and last.part_index == frame.part_index:
                self._texts.append(frame.delta_text)
                return
        self._close_delta()
        self._frames.append(frame)
        self._waits = self._waits or not isinstance(frame, EndFrame)

    def due_at_ms(self) -> int | None:
        """Answer when the next batch is due; None while nothing waits, 0 for at once."""
        if not self._waits:
            return None
        if self._taken_ms is None or self._bytes >= BATCH_BYTES:
            return 0
        return self._taken_ms + BATCH_INTERVAL_MS

    def is_due(self, now_ms: int) -> bool:
        """Say whether a batch is due at a monotonic time."""
        due = self.due_at_ms()
        return due is not None and due <= now_ms

    def take(self, now_ms: int) -> FrameBatch | None:
        """Answer what waits, due or not, and start anew; None when there is nothing."""
        if not self._frames:
            return None
        self._close_delta()
        batch = FrameBatch(frames=tuple(self._frames))
        self._frames, self._bytes, self._waits, self._taken_ms = [], 0, False, now_ms
        return batch

    def _close_delta(self) -> None:
        if self._texts:
            last = self._frames[-1]
            assert isinstance(last, DeltaFrame)
            text = "".join([last.delta_text, *self._texts])
            self._frames[-1] = DeltaFrame(part_index=last.part_index, delta_text=text)
            self._texts = []
