"""Making stored messages sendable: what providers refuse is left out or renamed, never stored.

The transcript keeps what a model really said; a request carries what all providers accept (IV-06).
Providers refuse blank texts, messages that say nothing, call ids that are odd or stand twice, and
tool names of other characters; one such message would otherwise be refused with every later input.
A renamed call keeps its new id and name in its result too.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from perdure.records.messages import (
    AssistantMessage,
    OpaquePart,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
)
from perdure.records.seqs import Seq

ACCEPTED_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
"""What every provider accepts as the name of a tool and as the id of a call."""

_OTHER_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_-]+")

NO_OUTPUT: Final = TextPart(text="(no output)")


class CallName(Struct, frozen=True, gc=False, kw_only=True):
    """The id and the tool name under which a call is sent."""

    call_id: str
    name: str


def sendable_assistant(
    message: AssistantMessage, entry_id: Seq
) -> tuple[AssistantMessage | None, Mapping[int, CallName]]:
    """Answer an assistant message as it may be sent, None when it says nothing, and its renames.

    Renames are by call index.
    """
    parts: list[Part] = []
    renames: dict[int, CallName] = {}
    seen: set[str] = set()
    index = 0
    for part in message.content:
        if isinstance(part, ToolCallPart):
            kept, renamed = _sendable_call(part, seen, entry_id, index)
            if renamed is not None:
                renames[index] = renamed
            parts.append(kept)
            index += 1
        elif not is_blank(part):
            parts.append(part)
    if not any(isinstance(part, TextPart | ToolCallPart) for part in parts):
        return None, renames
    if not renames and len(parts) == len(message.content):
        return message, renames
    return msgspec.structs.replace(message, content=tuple(parts)), renames


def _sendable_call(
    call: ToolCallPart, seen: set[str], entry_id: Seq, index: int
) -> tuple[ToolCallPart, CallName | None]:
    call_id, name = call.call_id, call.name
    if call_id in seen or not ACCEPTED_NAME.match(call_id):
        call_id = f"call-{entry_id}-{index}"
    if not ACCEPTED_NAME.match(name):
        name = _OTHER_CHARACTERS.sub("_", name)[:64] or "unknown"
    seen.add(call_id)
    if (call_id, name) == (call.call_id, call.name):
        return call, None
    return (
        msgspec.structs.replace(call, call_id=call_id, name=name),
        CallName(call_id=call_id, name=name),
    )


def sendable_user(message: UserMessage) -> UserMessage | None:
    """Answer a user message without blank and unknown parts, None when nothing is left."""
    parts = tuple(part for part in message.content if not is_blank(part))
    if len(parts) == len(message.content):
        return message
    return msgspec.structs.replace(message, content=parts) if parts else None


def sendable_result(message: ToolResultMessage, renamed: CallName | None) -> ToolResultMessage:
    """Answer a result under the id and name its call is sent with; it always says something."""
    parts = tuple(part for part in message.content if not is_blank(part)) or (NO_OUTPUT,)
    if renamed is None:
        if parts == message.content:
            return message
        return msgspec.structs.replace(message, content=parts)
    return msgspec.structs.replace(
        message, content=parts, call_id=renamed.call_id, tool_name=renamed.name
    )


def is_blank(part: Part) -> bool:
    """Say whether a part is left out: blank text, or a part of an unknown type (FM-04)."""
    return isinstance(part, OpaquePart) or (isinstance(part, TextPart) and not part.text.strip())
