"""What the wire server answers, and how each of the three provider wires spells it.

A `WireReply` is written once, in neutral words, and rendered as OpenAI chat completions, OpenAI
responses, or Anthropic messages events. Text comes in pieces; each piece is one delta, and a piece
may hold half of a surrogate pair, since that is what real providers send (PV-08).
"""

import asyncio
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

Wire: TypeAlias = Literal["chat", "responses", "anthropic"]
Event: TypeAlias = tuple[str | None, object]
"""Name of a server-sent event, where the wire names events, and its JSON."""

JsonFields: TypeAlias = dict[str, Any]

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class WireText(Struct, frozen=True, kw_only=True):
    """Text, one delta a piece."""

    pieces: tuple[str, ...]

    @property
    def whole(self) -> str:
        """Join the pieces."""
        return "".join(self.pieces)


class WireThinking(Struct, frozen=True, kw_only=True):
    """Reasoning; `signature` is the opaque proof the provider wants back, by any wire's name.

    With `apart` the responses wire makes each piece a summary of its own.
    """

    pieces: tuple[str, ...] = ()
    signature: str = "c2lnbmF0dXJl"
    redacted: bool = False
    apart: bool = False

    @property
    def summaries(self) -> tuple[tuple[str, ...], ...]:
        """Answer the pieces of each summary."""
        if not self.pieces:
            return ()
        return tuple((piece,) for piece in self.pieces) if self.apart else (self.pieces,)

    @property
    def whole(self) -> str:
        """Join the pieces."""
        return "".join(self.pieces)


class WireCall(Struct, frozen=True, kw_only=True):
    """A tool call; `pieces` is the raw text of its arguments, one delta a piece."""

    id: str
    name: str
    pieces: tuple[str, ...] = ("{}",)

    @property
    def whole(self) -> str:
        """Join the pieces."""
        return "".join(self.pieces)


WirePart: TypeAlias = WireText | WireThinking | WireCall


class WireUsage(Struct, frozen=True, kw_only=True):
    """Tokens in neutral words: `input` without the cache, `output` with the reasoning."""

    input: int = 60
    output: int = 20
    cache_read: int = 40
    cache_write: int = 0
    reasoning: int = 8


class WireError(Struct, frozen=True, kw_only=True):
    """An error, by status before a stream or as an event inside one."""

    status: int = 500
    code: str | None = None
    type: str = "server_error"
    message: str = "the server had an error"
    param: str | None = None
    headers: Mapping[str, str] = NO_HEADERS


class WireReply(Struct, frozen=True, kw_only=True):
    """One scripted reply.

    Attributes:
        parts: what the model says, in order.
        usage: what is reported; None reports nothing.
        finish: the vendor's word; None derives it, "" leaves it out.
        end: how the stream ends: whole; `cut` (socket reset); `stop` (closed politely without its
            final event); or with an error event.
        after: events sent before a cut, stop, error or hold; -1 is all but the final ones.
        hold: wait for `WireServer.release` after `after` events.
        pending: on the responses wire with `background`: polls that say "in progress" first.
    """

    parts: tuple[WirePart, ...] = (WireText(pieces=("Hello",)),)
    usage: WireUsage | None = WireUsage()
    finish: str | None = None
    end: Literal["whole", "cut", "stop"] | WireError = "whole"
    after: int = -1
    hold: bool = False
    pending: int = 0

    @property
    def calls(self) -> bool:
        """Say whether the reply holds a call."""
        return any(isinstance(part, WireCall) for part in self.parts)


class Rendered(Struct, frozen=True, kw_only=True):
    """A reply as events: the body, then what only a whole stream sends."""

    body: tuple[Event, ...]
    final: tuple[Event, ...]


def render(wire: Wire, reply: WireReply, *, reply_id: str, model: str, usage: bool) -> Rendered:
    """Spell a reply as the events of a wire; `usage` says whether the client asked for usage."""
    match wire:
        case "chat":
            return _chat(reply, reply_id, model, with_usage=usage)
        case "responses":
            return _responses(reply, reply_id, model)
        case "anthropic":
            return _anthropic(reply, reply_id, model)


def error_body(wire: Wire, error: WireError) -> object:
    """Spell an error as a wire's JSON body."""
    if wire == "anthropic":
        return {"type": "error", "error": {"type": error.type, "message": error.message}}
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_event(wire: Wire, error: WireError) -> Event:
    """Spell an error as an event inside a stream."""
    if wire == "anthropic":
        return "error", error_body(wire, error)
    if wire == "chat":
        return None, error_body(wire, error)
    event = {
        "type": "error",
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "sequence_number": 99,
    }
    return "error", event


# ------------------------------------------------------------------------------------ chat


def chat_usage(usage: WireUsage) -> dict[str, Any]:
    """Spell usage the chat way: prompt tokens hold the cached ones."""
    prompt = usage.input + usage.cache_read + usage.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _chat(reply: WireReply, reply_id: str, model: str, *, with_usage: bool) -> Rendered:
    base = {"id": reply_id, "object": "chat.completion.chunk", "created": 1, "model": model}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return None, {**base, "choices": [choice]}

    body: list[Event] = [chunk({"role": "assistant", "content": ""})]
    calls = 0
    for part in reply.parts:
        match part:
            case WireText():
                body += [chunk({"content": piece}) for piece in part.pieces]
            case WireThinking():
                body += [chunk({"reasoning_content": piece}) for piece in part.pieces]
            case WireCall():
                body += [chunk({"tool_calls": [call]}) for call in _chat_call(part, calls)]
                calls += 1
    finish = reply.finish if reply.finish is not None else "tool_calls" if reply.calls else "stop"
    final: list[Event] = [chunk({}, finish)] if finish else []
    if with_usage and reply.usage is not None:
        final.append((None, {**base, "choices": [], "usage": chat_usage(reply.usage)}))
    final.append((None, "[DONE]"))
    return Rendered(body=tuple(body), final=tuple(final))


def _chat_call(part: WireCall, index: int) -> Iterator[dict[str, Any]]:
    first = {"name": part.name, "arguments": ""}
    yield {"index": index, "id": part.id, "type": "function", "function": first}
    for piece in part.pieces:
        yield {"index": index, "function": {"arguments": piece}}


# ------------------------------------------------------------------------------- responses


def response_object(reply_id: str, model: str, status: str, **changes: object) -> dict[str, Any]:
    """Make the object of the responses wire."""
    return {
        "id": reply_id,
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": model,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1,
        "output": [],
        "usage": None,
        **changes,
    }


def response_usage(usage: WireUsage) -> dict[str, Any]:
    """Spell usage the responses way: input tokens hold the cached ones."""
    whole = usage.input + usage.cache_read + usage.cache_write
    cached = {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write}
    return {
        "input_tokens": whole,
        "output_tokens": usage.output,
        "total_tokens": whole + usage.output,
        "input_tokens_details": cached,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def response_item(part: WirePart, index: int) -> dict[str, Any]:
    """Spell a finished part as an output item."""
    match part:
        case WireText():
            content: JsonFields = {"type": "output_text", "text": part.whole, "annotations": []}
            return {
                "type": "message",
                "id": f"msg_{index}",
                "role": "assistant",
                "status": "completed",
                "content": [content],
            }
        case WireThinking():
            return {
                "type": "reasoning",
                "id": f"rs_{index}",
                "summary": [
                    {"type": "summary_text", "text": "".join(pieces)} for pieces in part.summaries
                ],
                "encrypted_content": part.signature,
            }
        case WireCall():
            return {
                "type": "function_call",
                "id": f"fc_{index}",
                "call_id": part.id,
                "name": part.name,
                "arguments": part.whole,
                "status": "completed",
            }


_CUT_SHORT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "length": "max_output_tokens",
        "max_output_tokens": "max_output_tokens",
        "content_filter": "content_filter",
    }
)
"""Why a response may be incomplete, by the finish a reply asks for."""


def finished_response(reply: WireReply, reply_id: str, model: str) -> dict[str, Any]:
    """Make the whole object of a finished reply."""
    reason = _CUT_SHORT.get(reply.finish or "")
    changes: dict[str, object] = {
        "output": [response_item(part, index) for index, part in enumerate(reply.parts)],
        "usage": None if reply.usage is None else response_usage(reply.usage),
    }
    if reason is not None:
        changes["incomplete_details"] = {"reason": reason}
    status = "completed" if reason is None else "incomplete"
    return response_object(reply_id, model, status, **changes)


def _responses(reply: WireReply, reply_id: str, model: str) -> Rendered:
    body: list[Event] = []

    def add(kind: str, **fields: object) -> None:
        body.append((kind, {"type": kind, "sequence_number": len(body), **fields}))

    add("response.created", response=response_object(reply_id, model, "in_progress"))
    for index, part in enumerate(reply.parts):
        done = response_item(part, index)
        add("response.output_item.added", output_index=index, item=_opened(done))
        place = {"output_index": index, "item_id": done["id"]}
        match part:
            case WireText():
                empty: JsonFields = {"type": "output_text", "text": "", "annotations": []}
                add("response.content_part.added", **place, content_index=0, part=empty)
                for piece in part.pieces:
                    kind = "response.output_text.delta"
                    add(kind, **place, content_index=0, delta=piece, logprobs=[])
                kind = "response.output_text.done"
                add(kind, **place, content_index=0, text=part.whole, logprobs=[])
            case WireThinking():
                for number, pieces in enumerate(part.summaries):
                    opened = {"type": "summary_text", "text": ""}
                    kind = "response.reasoning_summary_part.added"
                    add(kind, **place, summary_index=number, part=opened)
                    for piece in pieces:
                        kind = "response.reasoning_summary_text.delta"
                        add(kind, **place, summary_index=number, delta=piece)
            case WireCall():
                for piece in part.pieces:
                    add("response.function_call_arguments.delta", **place, delta=piece)
                kind = "response.function_call_arguments.done"
                add(kind, **place, arguments=part.whole, name=part.name)
        add("response.output_item.done", output_index=index, item=done)
    whole = finished_response(reply, reply_id, model)
    kind = f"response.{whole['status']}"
    final = (kind, {"type": kind, "sequence_number": len(body), "response": whole})
    return Rendered(body=tuple(body), final=(final,))


def _opened(item: dict[str, Any]) -> dict[str, Any]:
    match item["type"]:
        case "message":
            return {**item, "status": "in_progress", "content": []}
        case "reasoning":
            return {"type": "reasoning", "id": item["id"], "summary": []}
        case _:
            return {**item, "arguments": "", "status": "in_progress"}


# ------------------------------------------------------------------------------- anthropic


def anthropic_usage(usage: WireUsage, output: int) -> dict[str, Any]:
    """Spell usage the Anthropic way: input tokens leave the cached ones out."""
    return {
        "input_tokens": usage.input,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
        "output_tokens": output,
    }


def _anthropic(reply: WireReply, reply_id: str, model: str) -> Rendered:
    usage = reply.usage or WireUsage(input=0, output=0, cache_read=0)
    message: JsonFields = {
        "id": reply_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": anthropic_usage(usage, 1),
    }
    body: list[Event] = [_named("message_start", message=message)]
    for index, part in enumerate(reply.parts):
        block, deltas = _anthropic_block(part)
        body.append(_named("content_block_start", index=index, content_block=block))
        body += [_named("content_block_delta", index=index, delta=delta) for delta in deltas]
        body.append(_named("content_block_stop", index=index))
    finish = reply.finish if reply.finish is not None else "tool_use" if reply.calls else "end_turn"
    if finish == "length":
        finish = "max_tokens"
    delta = {"stop_reason": finish or None, "stop_sequence": None}
    report = {"output_tokens": usage.output}
    final = (_named("message_delta", delta=delta, usage=report), _named("message_stop"))
    return Rendered(body=tuple(body), final=final)


def _named(kind: str, **fields: object) -> Event:
    return kind, {"type": kind, **fields}


def _anthropic_block(part: WirePart) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match part:
        case WireText():
            deltas = [{"type": "text_delta", "text": piece} for piece in part.pieces]
            return {"type": "text", "text": ""}, deltas
        case WireThinking(redacted=True):
            return {"type": "redacted_thinking", "data": part.signature}, []
        case WireThinking():
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in part.pieces]
            deltas.append({"type": "signature_delta", "signature": part.signature})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case WireCall():
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in part.pieces]
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}, deltas


class Script:
    """Hand out replies in order; the last one may be repeated."""

    def __init__(self, *replies: WireReply | WireError, repeat: bool = False) -> None:
        """Take the replies; `repeat` gives the last one for ever."""
        self._replies = list(replies)
        self._repeat = repeat
        self.release = asyncio.Event()

    def take(self) -> WireReply | WireError:
        """Answer the next reply; a used-up script answers status 500 and says so."""
        if not self._replies:
            return WireError(message="the wire server's script is used up")
        if self._repeat and len(self._replies) == 1:
            return self._replies[0]
        return self._replies.pop(0)
