"""The door for what models say: no reply can carry text that the store refuses (VD-16, PV-08).

Adapters repair what they read; this is the last check before a record is made, so that no adapter,
however careless, stops a session with a lone surrogate or a NUL.
"""

from typing import Final

import msgspec
from msgspec import UNSET

from perdure.records.codec import encode
from perdure.records.frames import DeltaFrame, EndFrame, Frame, StartFrame
from perdure.records.messages import (
    AssistantMessage,
    MessageError,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from perdure.records.strict_json import NO_REPAIRS, Repairs, repair, repair_text

_NUL: Final = b"\\u0000"


def clean_message(message: AssistantMessage) -> tuple[AssistantMessage, Repairs]:
    """Answer the message with every text repaired, and what was replaced."""
    try:
        if _NUL not in encode(message):
            return message, NO_REPAIRS
    except UnicodeEncodeError:
        pass
    cleaned = [clean_part(part) for part in message.content]
    total = sum((repairs for _, repairs in cleaned), NO_REPAIRS)
    detail, response_id = message.stop_detail, message.response_id
    return (
        msgspec.structs.replace(
            message,
            content=tuple(part for part, _ in cleaned),
            stop_detail=UNSET if detail is UNSET else repair_text(detail)[0],
            response_id=UNSET if response_id is UNSET else repair_text(response_id)[0],
            error=UNSET if message.error is UNSET else clean_error(message.error),
        ),
        total,
    )


def clean_part(part: Part) -> tuple[Part, Repairs]:
    """Answer one part with its texts repaired."""
    match part:
        case TextPart(text=text) | ThinkingPart(text=text):
            fixed, repairs = repair_text(text)
            return msgspec.structs.replace(part, text=fixed), repairs
        case ToolCallPart():
            call_id, of_id = repair_text(part.call_id)
            name, of_name = repair_text(part.name)
            args, of_args = (UNSET, NO_REPAIRS) if part.args is UNSET else repair(part.args)
            raw, of_raw = (
                (UNSET, NO_REPAIRS) if part.args_text is UNSET else repair_text(part.args_text)
            )
            return (
                msgspec.structs.replace(part, call_id=call_id, name=name, args=args, args_text=raw),
                of_id + of_name + of_args + of_raw,
            )
        case _:
            return part, NO_REPAIRS


def clean_error(error: MessageError) -> MessageError:
    """Answer a failure whose words can be stored."""
    return MessageError(code=error.code, message=repair_text(error.message)[0])


def clean_frame(frame: Frame) -> Frame:
    """Answer a frame whose texts can be stored."""
    match frame:
        case DeltaFrame(part_index=index, delta_text=text):
            fixed, repairs = repair_text(text)
            if repairs is NO_REPAIRS:
                return frame
            return DeltaFrame(part_index=index, delta_text=fixed)
        case StartFrame(part=part):
            return msgspec.structs.replace(frame, part=clean_part(part)[0])
        case EndFrame():
            return frame
