"""What the checks of the models suite are made of: plays, makers, and ways to ask.

A *play* says what a scripted model shall answer; a *maker* hands out models that answer so. An
implementation states without defaults what it can do.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Struct

from perdure.errors import FailureCode, ProviderError
from perdure.ports import Models
from perdure.records.codec import to_raw
from perdure.records.entries import ModelId
from perdure.records.frames import Frame, FrameReducer
from perdure.records.messages import (
    AssistantMessage,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    Usage,
    text_message,
)
from perdure.records.models import DeferredHandle, ModelOutcome, ModelRequest, ToolSpec

HANDLE_BYTES_MAX: Final = 4_096
"""Largest deferred handle (PV-26)."""

TOOL: Final = ToolSpec(
    name="weather",
    description="Current weather of a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)

PIXEL: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
"""A PNG of one pixel."""


class Abilities(Struct, frozen=True, kw_only=True):
    """What an implementation can do, said without defaults.

    Attributes:
        scripted: it answers what the maker is told.
        images, thinking, deferred: as `ModelInfo` says.
        usage: it reports usage.
        holds: it can stop in the middle of a reply until it is left.
    """

    scripted: bool
    images: bool
    thinking: bool
    deferred: bool
    usage: bool
    holds: bool


class Play(Struct, frozen=True, kw_only=True):
    """What a scripted model shall answer; the raw text of a call's arguments is its `args_text`.

    Attributes:
        parts: the reply, in order.
        usage: what is reported; None reports nothing.
        failure: the reply fails so, after its parts when there are some.
        retry_after_ms: what the failing provider asks for.
        hold: after the first text, nothing comes until the stream is left.
        pending: the reply is deferred, and so many polls say "not yet".
    """

    parts: tuple[Part, ...] = (TextPart(text="Hello there."),)
    usage: Usage | None = Usage(input=60, output=20, cache_read=40, cache_write=0, reasoning=8)
    failure: FailureCode | None = None
    retry_after_ms: int | None = None
    hold: bool = False
    pending: int | None = None


class Offered(Struct, frozen=True, kw_only=True):
    """Models under test, one model of theirs, and what it can do."""

    models: Models
    model: ModelId
    abilities: Abilities


MakeModels: TypeAlias = Callable[[Sequence[Play]], AbstractAsyncContextManager[Offered]]


def ask(offered: Offered, *messages: Any, **changes: Any) -> ModelRequest:
    """Make a request of one user message, or of the given ones."""
    asked = messages or (text_message("Say hello.", 1),)
    return ModelRequest(
        model=offered.model,
        messages=asked,
        system="Be brief.",
        options=to_raw({"max_tokens": 256}),
        **changes,
    )


async def answer(offered: Offered, request: ModelRequest) -> tuple[list[Frame], ModelOutcome]:
    """Play a request to its end."""
    async with offered.models.stream(request) as stream:
        frames = [frame async for frame in stream]
        return frames, await stream.outcome()


async def failed(offered: Offered, request: ModelRequest) -> tuple[list[Frame], ProviderError]:
    """Play a request that has to fail."""
    async with offered.models.stream(request) as stream:
        frames = [frame async for frame in stream]
        try:
            outcome = await stream.outcome()
        except ProviderError as error:
            return frames, error
    raise AssertionError(f"the request did not fail: {outcome}")


def message_of(outcome: ModelOutcome) -> AssistantMessage:
    """Answer the message of an outcome that is no handle."""
    assert isinstance(outcome.result, AssistantMessage), outcome.result
    return outcome.result


def reduced(frames: Sequence[Frame]) -> tuple[Part, ...]:
    """Answer what frames add up to, without parts that stayed empty."""
    reducer = FrameReducer()
    for frame in frames:
        reducer.add(frame)
    parts = reducer.parts()
    return tuple(part for part in parts if not (isinstance(part, TextPart) and not part.text))


def call(call_id: str, raw: str) -> ToolCallPart:
    """Make a call of the tool with raw argument text."""
    return ToolCallPart(call_id=call_id, name=TOOL.name, args_text=raw)


def result(call: ToolCallPart) -> ToolResultMessage:
    """Answer a call the way the engine would."""
    bad = call.args is UNSET
    text = "the arguments are not JSON" if bad else "20 degrees"
    return ToolResultMessage(
        call_id=call.call_id,
        tool_name=call.name,
        content=(TextPart(text=text),),
        is_error=bad,
    )


def roomy(request: ModelRequest) -> ModelRequest:
    """Leave room for thinking below the output limit."""
    return msgspec.structs.replace(request, options=to_raw({"max_tokens": 8_192}))


def text_of(parts: Sequence[Part]) -> str:
    """Join the texts of parts."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))


async def drain(stream: Any) -> None:
    """Read a stream to its end."""
    async for _ in stream:
        pass


async def until_blocked(task: "asyncio.Task[None]") -> None:
    """Give a task turns until it has had every chance to move."""
    for _ in range(100):
        if task.done():
            return
        await asyncio.sleep(0)


async def interruption(stream: Any) -> ProviderError:
    """Answer the error of a stream that was left."""
    try:
        outcome = await stream.outcome()
    except ProviderError as error:
        if error.code == "interrupted":
            return error
        raise
    raise AssertionError(f"a stream that was left has an outcome: {outcome}")


async def deferred(offered: Offered) -> DeferredHandle:
    """Start deferred work and answer its handle."""
    request = msgspec.structs.replace(ask(offered), options=to_raw({"background": True}))
    async with offered.models.stream(request) as stream:
        outcome = await stream.outcome()
    assert isinstance(outcome.result, DeferredHandle), outcome.result
    return outcome.result
