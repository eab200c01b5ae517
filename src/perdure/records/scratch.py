"""What a live task has to show so far: the reduced forms of its working scope (D26, X22).

A task kind reduces its stored pages into one of these; whoever watches applies the deltas that
follow with the same functions, so both come to the same form.
"""

from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, structs

from perdure.records.codec import decode, decode_json, to_raw
from perdure.records.frames import DeltaFrame, EndFrame, FrameBatch, FrameError, StartFrame
from perdure.records.messages import TextPart, ThinkingPart, ToolCallPart
from perdure.records.names import stored

OUTPUT_TAIL_BYTES: Final = 4_096
"""How much of a running tool's output its reduced form keeps, from the end."""


class StreamedPart(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=stored):
    """One part of a reply as far as it came; of a call, `text` is its raw argument text."""

    type: str
    text: str = ""
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    ended: bool = False


class GenerationScratch(Struct, frozen=True, gc=False, kw_only=True):
    """The reply so far of a generation that streams."""

    parts: tuple[StreamedPart, ...] = ()


class ToolScratch(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The end of a running tool's output, and its last checkpoint."""

    output: str = ""
    progress: Any | UnsetType = UNSET


def with_frames(scratch: GenerationScratch, batch: FrameBatch) -> GenerationScratch:
    """Answer the reply with one more batch of frames; raises FrameError for one that cannot follow.

    Texts of one batch are joined once, so a long reply in few batches costs little.
    """
    parts = list(scratch.parts)
    for frame in batch.frames:
        if isinstance(frame, StartFrame):
            if frame.part_index != len(parts):
                raise FrameError(f"part {frame.part_index} starts where {len(parts)} is due")
            parts.append(_started(frame))
            continue
        if not 0 <= frame.part_index < len(parts) or parts[frame.part_index].ended:
            raise FrameError(f"part {frame.part_index} is not open")
        parts[frame.part_index] = _gone_on(parts[frame.part_index], frame)
    return GenerationScratch(parts=tuple(parts))


def _started(frame: StartFrame) -> StreamedPart:
    part = frame.part
    kind = str(part.__struct_config__.tag)
    if isinstance(part, TextPart | ThinkingPart):
        return StreamedPart(type=kind, text=part.text)
    if isinstance(part, ToolCallPart):
        text = "" if part.args_text is UNSET else part.args_text
        return StreamedPart(type=kind, text=text, call_id=part.call_id, name=part.name)
    return StreamedPart(type=kind)


def _gone_on(part: StreamedPart, frame: DeltaFrame | EndFrame) -> StreamedPart:
    if isinstance(frame, EndFrame):
        return structs.replace(part, ended=True)
    return structs.replace(part, text=part.text + frame.delta_text)


def with_output(scratch: ToolScratch, text: str) -> ToolScratch:
    """Answer the output with more text, cut to its last 4 KiB on whole characters."""
    held = (scratch.output + text).encode()[-OUTPUT_TAIL_BYTES:]
    return structs.replace(scratch, output=held.decode(errors="ignore"))


def with_checkpoint(scratch: ToolScratch, checkpoint: Raw | None) -> ToolScratch:
    """Answer the output beside a checkpoint, None for none."""
    progress = UNSET if checkpoint is None else decode_json(checkpoint)
    return structs.replace(scratch, progress=progress)


def with_delta(scratch: Raw | None, kind: str, payload: Raw) -> Raw | None:
    """Answer a task's reduced form after a delta; None when there is nothing to show.

    `reset` puts its payload in place of what was there (null: nothing); a kind that no reducer
    knows changes nothing.
    """
    if kind == "reset":
        return None if payload == Raw(b"null") else payload
    if kind == "frame":
        reply = GenerationScratch() if scratch is None else decode(scratch, GenerationScratch)
        return to_raw(with_frames(reply, decode(payload, FrameBatch)))
    if kind not in ("output", "progress"):
        return scratch
    shown = ToolScratch() if scratch is None else decode(scratch, ToolScratch)
    if kind == "output":
        return to_raw(with_output(shown, decode(payload, str)))
    return to_raw(structs.replace(shown, progress=decode_json(payload)))
