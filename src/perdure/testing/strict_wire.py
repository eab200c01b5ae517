"""The strict wire: a fake provider that refuses what real providers refuse, for good.

Most reports of a session that can never be used again are one rule of this file, broken once and
stored. `refusals` states the rules over a request of the `Models` port:

- every call is answered exactly once, directly after the assistant message that made it, results in
  call order, under the call's own tool name; nothing stands between; no result is without its call;
- call ids are unique in their message and, like tool names, of 1 to 64 letters, digits, `_`, `-`;
- a request starts with a user message and ends with one, or with results;
- no message is empty, no text is empty or only white space, an assistant message says or calls
  something;
- text, arguments and schemas are strict JSON: no lone surrogate, no NUL, no NaN; of `args` and
  `args_text` exactly one is there;
- an image is there in bytes, is base64, and at most 5 MiB.

`StrictWire` wraps models, raises `invalid_request` when a request breaks a rule, and remembers what
the models answered: signed thinking comes back byte for byte, and with the calls it came with.
"""

import base64
import binascii
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, Self, cast

from msgspec import UNSET

from perdure.errors import ProviderError, Rejected
from perdure.ports import Models, ModelStream
from perdure.records.entries import ModelId
from perdure.records.frames import Frame
from perdure.records.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
)
from perdure.records.models import DeferredHandle, ModelInfo, ModelOutcome, ModelRequest
from perdure.records.strict_json import check

IMAGE_BYTES_MAX: Final = 5 * 1024 * 1024
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
"""What every provider accepts as the name of a tool and as the id of a call."""


def refusals(request: ModelRequest, *, start: int = 0) -> list[str]:
    """List every rule a request breaks, with its place; nothing means it is accepted.

    Args:
        request: what would be sent.
        start: leave out so many messages at the front, which were accepted before as a whole
            request; their end is then the end of an exchange.
    """
    return [*_frame_refusals(request, start), *_message_refusals(request.messages, start)]


def _frame_refusals(request: ModelRequest, start: int) -> Iterator[str]:
    if request.system is not None:
        yield from _json_refusals("the system text", request.system)
        if not request.system.strip():
            yield "the system text is empty"
    names = [tool.name for tool in request.tools]
    for tool in request.tools:
        if not NAME.match(tool.name):
            yield f"the tool name {tool.name!r} is not 1 to 64 letters, digits, _ or -"
        yield from _json_refusals(f"tool {tool.name!r}", tool.parameters)
        if tool.parameters.get("type") != "object":
            yield f"the schema of tool {tool.name!r} is not an object's"
    if len(set(names)) != len(names):
        yield f"two tools share a name: {names}"
    if not request.messages:
        yield "there is no message"
    elif start == 0 and not isinstance(request.messages[0], UserMessage):
        yield "message 0 is not a user message"
    if request.messages and isinstance(request.messages[-1], AssistantMessage):
        yield "the last message is the assistant's: there is nothing to answer"


def _message_refusals(messages: Sequence[Message], start: int) -> Iterator[str]:
    open_calls: list[ToolCallPart] = []
    for at, message in enumerate(messages[start:], start):
        if isinstance(message, ToolResultMessage):
            if open_calls:
                call = open_calls.pop(0)
                yield from _result_refusals(at, message, call)
            else:
                yield f"message {at} is a result of {message.call_id!r}, which no call waits for"
        elif open_calls:
            missing = [call.call_id for call in open_calls]
            yield f"message {at} stands where results of {missing} are due"
            open_calls = []
        yield from _content_refusals(at, message)
        if isinstance(message, AssistantMessage):
            open_calls = list(message.calls)
    if open_calls:
        yield f"the request ends with calls unanswered: {[call.call_id for call in open_calls]}"


def _result_refusals(at: int, result: ToolResultMessage, call: ToolCallPart) -> Iterator[str]:
    if result.call_id != call.call_id:
        yield f"message {at} answers {result.call_id!r} where {call.call_id!r} is due"
    if result.tool_name != call.name:
        yield f"message {at} says tool {result.tool_name!r}; the call says {call.name!r}"


def _content_refusals(at: int, message: Message) -> Iterator[str]:
    if isinstance(message, AssistantMessage):
        yield from _assistant_refusals(at, message)
    elif isinstance(message, UserMessage) and not message.content:
        yield f"message {at} is empty"
    for index, part in enumerate(message.content):
        yield from _part_refusals(f"message {at} part {index}", part)


def _assistant_refusals(at: int, message: AssistantMessage) -> Iterator[str]:
    if not any(isinstance(part, TextPart | ToolCallPart) for part in message.content):
        yield f"message {at} is the assistant's and neither says nor calls anything"
    ids = [call.call_id for call in message.calls]
    if len(set(ids)) != len(ids):
        yield f"message {at} uses a call id twice: {ids}"


def _part_refusals(place: str, part: Part) -> Iterator[str]:
    match part:
        case TextPart(text=text):
            if not text.strip():
                yield f"{place} is text of nothing but white space: {text[:20]!r}"
            yield from _json_refusals(place, text)
        case ThinkingPart(text=text):
            yield from _json_refusals(place, text)
        case ToolCallPart():
            yield from _call_refusals(place, part)
        case ImagePart():
            yield from _image_refusals(place, part)
        case _:
            pass  # an opaque part is sent as nothing (FM-04)


def _call_refusals(place: str, part: ToolCallPart) -> Iterator[str]:
    for what, name in (("id", part.call_id), ("tool name", part.name)):
        if not NAME.match(name):
            yield f"{place} has the call {what} {name!r}, not 1 to 64 letters, digits, _ or -"
    if (part.args is UNSET) == (part.args_text is UNSET):
        yield f"{place} holds not exactly one of args and argsText"
    if part.args is not UNSET:
        yield from _json_refusals(place, part.args)
    if part.args_text is not UNSET:
        yield from _json_refusals(place, part.args_text)


def _image_refusals(place: str, part: ImagePart) -> Iterator[str]:
    if part.data is UNSET:
        yield f"{place} is an image without bytes"
        return
    try:
        size = len(base64.b64decode(part.data, validate=True))
    except (binascii.Error, ValueError) as error:
        yield f"{place} is an image whose bytes are not base64: {error}"
        return
    if not 1 <= size <= IMAGE_BYTES_MAX:
        yield f"{place} is an image of {size} bytes; accepted are 1 to {IMAGE_BYTES_MAX}"


def _json_refusals(place: str, value: object) -> Iterator[str]:
    try:
        check(dict(cast("Mapping[str, object]", value)) if isinstance(value, Mapping) else value)
    except Rejected as error:
        yield f"{place} is not strict JSON: {error.message}"


class _Seen:
    """What a conversation's last accepted request ended with."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.length = len(messages)
        self.first = messages[0]
        self.last = messages[-1]

    def is_front_of(self, messages: Sequence[Message]) -> bool:
        """Say whether a request starts with the very messages that were accepted."""
        return (
            len(messages) >= self.length
            and messages[0] is self.first
            and messages[self.length - 1] is self.last
        )


class StrictWire:
    """Models behind the strict wire.

    Attributes:
        accepted: every request that broke no rule, in order.
        refused: every request that broke one, with what was said.
    """

    def __init__(self, models: Models, *, is_quick: bool = False) -> None:
        """Wrap models.

        Args:
            models: who answers what was accepted.
            is_quick: check only what a conversation's request adds to its last accepted one, found
                by the identity of its messages; a request then costs the same at any length.
        """
        self.accepted: list[ModelRequest] = []
        self.refused: list[tuple[ModelRequest, list[str]]] = []
        self._models = models
        self._is_quick = is_quick
        self._seen: dict[str, _Seen] = {}
        self._signed: dict[tuple[str, str], list[tuple[ThinkingPart, ...]]] = {}

    async def describe(self, model: ModelId) -> ModelInfo:
        """Say what the wrapped models say."""
        return await self._models.describe(model)

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[ModelStream]:
        """Start one request, or refuse it."""
        return _CheckedStream(self, self._models.stream(request), request)

    async def poll(self, handle: DeferredHandle) -> ModelOutcome:
        """Poll the wrapped models."""
        outcome = await self._models.poll(handle)
        self.remember(outcome)
        return outcome

    async def cancel(self, handle: DeferredHandle) -> None:
        """Cancel at the wrapped models."""
        await self._models.cancel(handle)

    async def close(self) -> None:
        """Close the wrapped models."""
        await self._models.close()

    def judge(self, request: ModelRequest) -> None:
        """Accept a request or refuse it.

        Raises:
            ProviderError: `invalid_request`, naming every broken rule.
        """
        seen = self._seen.get(request.cache_key) if self._is_quick else None
        start = seen.length if seen is not None and seen.is_front_of(request.messages) else 0
        broken = [*refusals(request, start=start), *self._unsigned(request, start)]
        if broken:
            self.refused.append((request, broken))
            raise ProviderError("invalid_request", f"strict wire: {'; '.join(broken)}", status=400)
        self.accepted.append(request)
        if self._is_quick:
            self._seen[request.cache_key] = _Seen(request.messages)

    def remember(self, outcome: ModelOutcome) -> None:
        """Keep the signed thinking of a reply, by each call it came with."""
        message = outcome.result
        if not isinstance(message, AssistantMessage):
            return
        signed = _signed_parts(message)
        for call in message.calls if signed else ():
            self._signed.setdefault((str(message.model), call.call_id), []).append(signed)

    def _unsigned(self, request: ModelRequest, start: int) -> Iterator[str]:
        """Yield calls whose signed thinking did not come back as it was (PV-18)."""
        if not self._signed:
            return
        for at, message in enumerate(request.messages[start:], start):
            if isinstance(message, AssistantMessage):
                back = _signed_parts(message)
                for call in message.calls:
                    sent = self._signed.get((str(request.model), call.call_id))
                    if sent is not None and back not in sent:
                        yield (
                            f"message {at}: the signed thinking that came with the call "
                            f"{call.call_id!r} is missing or changed"
                        )


def _signed_parts(message: AssistantMessage) -> tuple[ThinkingPart, ...]:
    return tuple(
        part for part in message.content if isinstance(part, ThinkingPart) and part.x is not UNSET
    )


class _NoFrames:
    """The frames of a refused request."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frame:
        raise StopAsyncIteration


_NO_FRAMES: Final = _NoFrames()


class _CheckedStream:
    """Judge a request as it starts, like a provider does, and remember what is answered."""

    def __init__(
        self,
        wire: StrictWire,
        inner: AbstractAsyncContextManager[ModelStream],
        request: ModelRequest,
    ) -> None:
        self._wire = wire
        self._inner = inner
        self._request = request
        self._refusal: ProviderError | None = None
        self._stream: ModelStream | None = None

    async def __aenter__(self) -> Self:
        try:
            self._wire.judge(self._request)
        except ProviderError as error:
            self._refusal = error
        else:
            self._stream = await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._stream is None:
            return None
        return await self._inner.__aexit__(kind, error, trace)

    def __aiter__(self) -> AsyncIterator[Frame]:
        return aiter(_NO_FRAMES if self._stream is None else self._stream)

    async def outcome(self) -> ModelOutcome:
        """Answer the reply, or raise the refusal."""
        if self._refusal is not None or self._stream is None:
            raise self._refusal or ProviderError("interrupted", "the stream was not entered")
        outcome = await self._stream.outcome()
        self._wire.remember(outcome)
        return outcome
