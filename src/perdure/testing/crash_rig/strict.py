"""What a strict provider refuses in a request of the engine's own shape."""

from collections.abc import Sequence

from perdure.records.codec import encode
from perdure.records.messages import (
    AssistantMessage,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
)
from perdure.records.models import ModelRequest


def refusal_of(request: ModelRequest) -> str | None:
    """Say why real providers would answer 400 to this request; None when they would not."""
    messages: Sequence[Message] = list(request.messages)
    if not messages:
        return "there are no messages"
    open_calls: list[str] = []
    for at, message in enumerate(messages):
        fault = _content_fault(message)
        if fault is not None:
            return f"message {at}: {fault}"
        if isinstance(message, ToolResultMessage):
            if not open_calls or message.call_id != open_calls[0]:
                return f"message {at} answers {message.call_id!r}, open are {open_calls}"
            open_calls.pop(0)
            continue
        if open_calls:
            return f"message {at} stands before the results of {open_calls}"
        if isinstance(message, AssistantMessage):
            open_calls = [
                part.call_id for part in message.content if isinstance(part, ToolCallPart)
            ]
    if open_calls:
        return f"calls {open_calls} are not answered"
    return "the last message is the assistant's" if _is_assistant(messages[-1]) else None


def _is_assistant(message: Message) -> bool:
    return isinstance(message, AssistantMessage)


def _content_fault(message: Message) -> str | None:
    if not message.content:
        return "it is empty"
    for part in message.content:
        if isinstance(part, TextPart) and not part.text.strip():
            return "a text block is empty"
        if isinstance(part, ToolCallPart) and not part.call_id:
            return f"the call {part.name!r} has no id"
    text = encode(message).decode()
    if any("\ud800" <= char <= "\udfff" for char in text) or "\\u0000" in text.replace("\\\\", ""):
        return "a text holds a lone surrogate or a NUL"
    return None
