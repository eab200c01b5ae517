"""The strict wire: one broken rule a case, each refused by name; what is right is accepted."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.errors import ProviderError
from perdure.providers.script import Deferred, call, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.codec import to_raw
from perdure.records.entries import ModelId
from perdure.records.messages import (
    AssistantMessage,
    Extra,
    ImagePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    text_message,
)
from perdure.records.models import DeferredHandle, ModelOutcome, ModelRequest, ToolSpec
from perdure.testing.strict_wire import IMAGE_BYTES_MAX, StrictWire, refusals

MODEL = ModelId(provider="scripted", model_id="strict")
USER = text_message("go")


def said(*parts: Part) -> AssistantMessage:
    """Make an assistant message."""
    return AssistantMessage(content=parts, api="x", model=MODEL, stop="stop")


def result(call_id: str, text: str = "done", name: str = "go") -> ToolResultMessage:
    """Make a result."""
    content = (TextPart(text=text),)
    return ToolResultMessage(call_id=call_id, tool_name=name, content=content, is_error=False)


def called(*ids: str) -> AssistantMessage:
    """Make an assistant message of calls."""
    return said(*(call("go", call_id=each) for each in ids))


def ask(*messages: Message, **changes: Any) -> ModelRequest:
    """Make a request."""
    return ModelRequest(model=MODEL, messages=messages, **changes)


def image(size: int) -> ImagePart:
    """Make an image part of so many bytes."""
    return ImagePart(mime="image/png", sha256="0", data=base64.b64encode(bytes(size)).decode())


X = Extra(provider_name="p", api_name="a", adapter_version=1, opaque_data=to_raw("sig"))
SIGNED = ThinkingPart(text="because", x=X)

RIGHT: dict[str, ModelRequest] = {
    "one message": ask(USER),
    "parallel calls": ask(USER, called("a", "b"), result("a"), result("b")),
    "calls, then words": ask(USER, called("a"), result("a"), said(TextPart(text="so")), USER),
    "user after results": ask(USER, called("a"), result("a"), USER),
    "two users": ask(USER, USER),
    "raw arguments": ask(USER, said(call("go", call_id="a", args_text="{")), result("a")),
    "thinking": ask(USER, said(SIGNED, TextPart(text="so")), USER),
    "an image": ask(UserMessage(content=(image(3),))),
    "an opaque part": ask(USER, said(OpaquePart(x=X), TextPart(text="so")), USER),
    "a reused id": ask(USER, called("a"), result("a"), called("a"), result("a")),
}

WRONG: dict[str, tuple[ModelRequest, str]] = {
    "unanswered": (ask(USER, called("a")), "unanswered: ['a']"),
    "half answered": (ask(USER, called("a", "b"), result("a")), "unanswered: ['b']"),
    "answered late": (ask(USER, called("a"), USER, result("a")), "results of ['a'] are due"),
    "user between": (
        ask(USER, called("a", "b"), result("a"), USER, result("b")),
        "results of ['b'] are due",
    ),
    "wrong order": (ask(USER, called("a", "b"), result("b"), result("a")), "where 'a' is due"),
    "answered twice": (ask(USER, called("a"), result("a"), result("a")), "no call waits for"),
    "orphan": (ask(USER, result("a")), "no call waits for"),
    "other tool": (ask(USER, called("a"), result("a", name="no")), "says tool 'no'"),
    "nothing": (ask(), "there is no message"),
    "starts with the model": (ask(said(TextPart(text="x")), USER), "message 0"),
    "ends with the model": (ask(USER, said(TextPart(text="x"))), "nothing to answer"),
    "empty user": (ask(UserMessage(content=())), "message 0 is empty"),
    "empty assistant": (ask(USER, said(), USER), "neither says nor calls"),
    "thinking only": (ask(USER, said(SIGNED), USER), "neither says nor calls"),
    "blank text": (ask(text_message(" \n")), "white space"),
    "blank result": (ask(USER, called("a"), result("a", text="")), "white space"),
    "lone surrogate": (ask(text_message("a\ud800")), "surrogate"),
    "nul": (ask(text_message("a\x00")), "NUL"),
    "nan": (ask(USER, said(call("go", {"n": float("nan")}, call_id="a")), result("a")), "nan"),
    "surrogate in arguments": (
        ask(USER, said(call("go", {"n": ["\udc00"]}, call_id="a")), result("a")),
        "surrogate",
    ),
    "surrogate in the system text": (ask(USER, system="\ud800"), "system text"),
    "empty system text": (ask(USER, system=" "), "system text is empty"),
    "bad id": (ask(USER, called("a.b"), result("a.b")), "call id 'a.b'"),
    "empty id": (ask(USER, called(""), result("")), "call id ''"),
    "id twice": (ask(USER, called("a", "a"), result("a"), result("a")), "twice"),
    "bad called name": (
        ask(USER, said(call("go away", call_id="a")), result("a", name="go away")),
        "tool name 'go away'",
    ),
    "no arguments": (
        ask(USER, said(ToolCallPart(call_id="a", name="go")), result("a")),
        "exactly one of args",
    ),
    "arguments twice": (
        ask(USER, said(ToolCallPart(call_id="a", name="go", args={}, args_text="")), result("a")),
        "exactly one of args",
    ),
    "image too big": (
        ask(UserMessage(content=(image(IMAGE_BYTES_MAX + 1),))),
        f"accepted are 1 to {IMAGE_BYTES_MAX}",
    ),
    "image without bytes": (
        ask(UserMessage(content=(ImagePart(mime="image/png", sha256="0", blob=True),))),
        "without bytes",
    ),
    "image not base64": (
        ask(UserMessage(content=(ImagePart(mime="image/png", sha256="0", data="#"),))),
        "not base64",
    ),
    "bad tool name": (
        ask(USER, tools=(ToolSpec(name="a b", description="", parameters={"type": "object"}),)),
        "tool name 'a b'",
    ),
    "tools of one name": (
        ask(USER, tools=(ToolSpec(name="a", description="", parameters={"type": "object"}),) * 2),
        "share a name",
    ),
    "schema of no object": (
        ask(USER, tools=(ToolSpec(name="a", description="", parameters={"type": "string"}),)),
        "is not an object's",
    ),
}


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_a_valid_request_is_accepted(name: str) -> None:
    assert refusals(RIGHT[name]) == []


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_broken_rule_is_refused_by_name(name: str) -> None:
    request, words = WRONG[name]
    assert any(words in refusal for refusal in refusals(request)), refusals(request)


async def outcome(wire: StrictWire, request: ModelRequest) -> ModelOutcome:
    """Play a request."""
    async with wire.stream(request) as stream:
        async for _ in stream:
            pass
        return await stream.outcome()


async def test_the_wrapper_answers_what_is_right_and_refuses_the_rest_for_good() -> None:
    wire = StrictWire(ScriptedModels([say("one"), say("two")]))
    for _ in range(2):
        with pytest.raises(ProviderError, match="strict wire: message 0 part 0") as caught:
            await outcome(wire, ask(text_message(" ")))
        assert caught.value.code == "invalid_request"
    await outcome(wire, ask(USER))
    assert [len(request.messages) for request in wire.accepted] == [1]
    assert len(wire.refused) == 2
    assert (await wire.describe(MODEL)).model == MODEL
    await wire.close()


async def test_frames_pass_through() -> None:
    wire = StrictWire(ScriptedModels([say("one")]))
    async with wire.stream(ask(USER)) as stream:
        assert len([frame async for frame in stream]) == 3


async def test_signed_thinking_comes_back_as_it_was() -> None:
    wire = StrictWire(ScriptedModels([say(SIGNED, call("go", call_id="a"))] + [say("x")] * 3))
    message = (await outcome(wire, ask(USER))).result
    assert isinstance(message, AssistantMessage)
    await outcome(wire, ask(USER, message, result("a")))
    changed = ThinkingPart(text="because ", x=X)
    for parts in ((changed, message.calls[0]), (message.calls[0],)):
        with pytest.raises(ProviderError, match="signed thinking"):
            await outcome(wire, ask(USER, said(*parts), result("a")))
    other = ModelRequest(
        model=ModelId(provider="scripted", model_id="other"),
        messages=(USER, said(message.calls[0]), result("a")),
    )
    await outcome(wire, other)


async def test_deferred_work_passes_through() -> None:
    wire = StrictWire(ScriptedModels([say("late", deferred=Deferred(polls=0))]))
    handle = (await outcome(wire, ask(USER))).result
    assert isinstance(handle, DeferredHandle)
    assert isinstance((await wire.poll(handle)).result, AssistantMessage)
    await wire.cancel(handle)


class Counted(list[Message]):
    """Count how many messages are looked at."""

    seen = 0

    def __iter__(self) -> Iterator[Message]:
        Counted.seen += len(self)
        return super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        Counted.seen += len(found) if isinstance(at, slice) else 1
        return found


async def test_the_quick_wire_looks_at_what_is_new_only_and_misses_nothing_in_it() -> None:
    wire = StrictWire(ScriptedModels(lambda _: "ok", record=False), is_quick=True)
    messages = Counted([USER])
    for _ in range(400):
        messages += [said(TextPart(text="ok")), USER]
    await outcome(wire, ask(*messages, cache_key="c"))
    tail = [called("a"), result("a")]
    longer = ModelRequest(model=MODEL, messages=Counted([*messages, *tail]), cache_key="c")
    Counted.seen = 0
    await outcome(wire, longer)
    assert Counted.seen < 20
    for broken in ([called("a")], [said(TextPart(text="")), USER], [result("a")]):
        with pytest.raises(ProviderError, match="strict wire"):
            await outcome(wire, ask(*messages, *broken, cache_key="c"))
    with pytest.raises(ProviderError, match="white space"):
        await outcome(wire, ask(text_message(""), *messages[1:], cache_key="c"))
