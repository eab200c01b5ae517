"""Frames: a streamed reply in pieces, and the reducer that rebuilds the partial (FM-09).

A frame starts a part, adds text to it, or ends it. Frames serve the screen and the partial of an
interrupted attempt; the final message is not a frame (K37). The reducer refuses a gap, a repeat
and a change of type, so a partial is never a guess.
"""

from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from perdure.errors import InvalidArguments
from perdure.records.messages import (
    ARGS_TEXT_BYTES_MAX,
    Extra,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from perdure.records.names import stored
from perdure.records.strict_json import parse_object


class StartFrame(
    Struct,
    frozen=True,
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


class FrameBatch(Struct, frozen=True, kw_only=True, rename=stored):
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


class FrameReducer:
    """Rebuild the partial reply from frames, in order."""

    def __init__(self) -> None:
        """Start with no part."""
        self._parts: list[_Open] = []

    def add(self, frame: Frame) -> None:
        """Apply one frame; raises FrameError for a gap, a repeat or a change of type."""
        match frame:
            case StartFrame(part_index=index, part=part):
                if index != len(self._parts):
                    raise FrameError(f"part {index} starts where part {len(self._parts)} is due")
                self._parts.append(_Open(part))
            case DeltaFrame(part_index=index, delta_text=text):
                current = self._open(index)
                if isinstance(current.part, OpaquePart):
                    raise FrameError(f"part {index} takes no text")
                current.text.append(text)
            case EndFrame(part_index=index, x=extra):
                current = self._open(index)
                current.ended = True
                current.x = extra

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

        Text as far as it came; calls only when they ended; thinking only when it ended, and not
        when it stands directly before a dropped call.
        """
        kept: list[Part] = []
        for current in self._parts:
            if isinstance(current.part, ToolCallPart) and not current.ended:
                while kept and isinstance(kept[-1], ThinkingPart):
                    kept.pop()
            elif current.ended or isinstance(current.part, TextPart):
                kept.append(_built(current))
        return tuple(part for part in kept if not (isinstance(part, TextPart) and not part.text))


def _built(current: _Open) -> Part:
    added = "".join(current.text)
    match current.part:
        case TextPart(text=text, x=x) | ThinkingPart(text=text, x=x):
            extra = current.x if current.x is not UNSET else x
            return msgspec.structs.replace(current.part, text=text + added, x=extra)
        case ToolCallPart(args_text=start, x=x):
            raw = ("" if start is UNSET else start) + added
            extra = current.x if current.x is not UNSET else x
            if current.part.args is not UNSET:
                return msgspec.structs.replace(current.part, x=extra)
            if not current.ended:
                return msgspec.structs.replace(current.part, args_text=raw, x=extra)
            return parsed_call(msgspec.structs.replace(current.part, x=extra), raw)
        case _:
            return current.part


def parsed_call(part: ToolCallPart, raw: str) -> ToolCallPart:
    """Set `args` when the raw text parses strictly (empty text is no arguments), else `args_text`."""
    try:
        args = parse_object(raw) if raw.strip() else {}
    except InvalidArguments:
        return msgspec.structs.replace(part, args=UNSET, args_text=cut_args_text(raw))
    return msgspec.structs.replace(part, args=args, args_text=UNSET)


def cut_args_text(raw: str) -> str:
    """Keep at most 64 KiB of argument text that did not parse, cut with a mark (FM-06)."""
    from_bytes = raw.encode()
    if len(from_bytes) <= ARGS_TEXT_BYTES_MAX:
        return raw
    return from_bytes[: ARGS_TEXT_BYTES_MAX - 40].decode(errors="ignore") + (
        f"[cut: {len(from_bytes)} bytes]"
    )
