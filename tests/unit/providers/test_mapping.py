"""What goes to a provider: its own parts back unaltered, foreign ones left out, bytes stable."""

import base64
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import UNSET, Raw
from pydantic_ai import messages as vendor

from perdure.errors import ProviderError
from perdure.providers.mapping import Home, extra_of, family, to_vendor
from perdure.records.codec import decode, decode_json, encode
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
from perdure.testing.models_lab import PIXEL
from perdure.testing.wire_replies import WireCall, WireError, WireReply, WireText, WireThinking
from perdure.testing.wire_server import WireServer
from tests.unit.providers.wires import TOOL, WIRES, WireName, models_for, play, request

SIGNATURE = base64.b64encode(bytes(range(250)) * 6).decode()
OTHER_SIGNATURE = SIGNATURE[::-1]

MESSAGES_FIELD = {"openai": "input", "anthropic": "messages"}

OWN_APIS = {"openai": "openai-responses", "anthropic": "anthropic-messages"}

THOUGHTFUL = WireReply(
    parts=(
        WireThinking(pieces=("let me ", "think"), signature=SIGNATURE),
        WireText(pieces=("I look.",)),
        WireCall(id="c1", name="weather", pieces=('{"city":"Paris"}',)),
        WireThinking(pieces=("and",), signature=OTHER_SIGNATURE),
        WireCall(id="c2", name="weather", pieces=('{"city":"Rome","n":1.50}',)),
    )
)


def results(message: AssistantMessage) -> list[ToolResultMessage]:
    return [
        ToolResultMessage(
            call_id=call.call_id,
            tool_name=call.name,
            content=(TextPart(text=f"{call.call_id}: 20 degrees"),),
            is_error=call.call_id == "c2",
        )
        for call in message.calls
    ]


def stored(message: AssistantMessage) -> AssistantMessage:
    """Go through the store: the bytes, and back."""
    return decode(encode(message), AssistantMessage)


async def history(wire: WireName, **settings: Any) -> list[Message]:
    """Play one thoughtful turn and answer it as a stored history."""
    async with WireServer(THOUGHTFUL) as server:
        models, model = models_for(wire, server, **settings)
        asked = request(model, tools=(TOOL,), thinking="low")
        _, outcome = await play(models, asked)
        await models.close()
    assert isinstance(outcome.result, AssistantMessage)
    message = stored(outcome.result)
    return [*asked.messages, message, *results(message)]


async def sent(wire: WireName, messages: Sequence[Message], **settings: Any) -> bytes:
    """Send a history and answer the request's bytes."""
    async with WireServer(WireReply()) as server:
        models, model = models_for(wire, server, **settings)
        asked = request(model, *messages, tools=(TOOL,), thinking="low")
        await play(models, asked)
        await models.close()
        assert server.faults == []
        return server.requests[0].raw


@pytest.mark.spec("PV-18", "FM-05", "BB-33")
@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_signatures_go_back_byte_equal(wire: WireName) -> None:
    raw = await sent(wire, await history(wire))
    assert raw.count(SIGNATURE.encode()) == 1
    assert raw.count(OTHER_SIGNATURE.encode()) == 1
    if wire == "openai":
        items = json.loads(raw)["input"]
        assert [item.get("id") for item in items[1:6]] == ["rs_0", "msg_1", "fc_2", "rs_3", "fc_4"]


@pytest.mark.spec("PV-18", "BB-33")
@pytest.mark.parametrize("wire", ["openai-chat", "openai-compatible"])
async def test_thinking_without_signatures_goes_back_in_its_field(wire: WireName) -> None:
    raw = await sent(wire, await history(wire))
    assistant = json.loads(raw)["messages"][2]
    assert "let me think" in assistant["reasoning_content"]


@pytest.mark.spec("PV-18", "BB-33")
async def test_redacted_thinking_goes_back_byte_equal() -> None:
    hidden = WireThinking(signature=SIGNATURE, redacted=True)
    reply = WireReply(parts=(hidden, WireText(pieces=("Hi",))))
    async with WireServer(reply, WireReply()) as server:
        models, model = models_for("anthropic", server)
        asked = request(model, thinking="low")
        _, outcome = await play(models, asked)
        assert isinstance(outcome.result, AssistantMessage)
        thought = outcome.result.content[0]
        assert isinstance(thought, ThinkingPart)
        assert thought.redacted
        later = (*asked.messages, stored(outcome.result), text_message("go on", 2))
        await play(models, request(model, *later, thinking="low"))
        await models.close()
        (block, _) = server.requests[1].body["messages"][1]["content"]
    assert block == {"type": "redacted_thinking", "data": SIGNATURE}


@pytest.mark.spec("PV-18", "BB-33")
@pytest.mark.parametrize("wire", WIRES)
async def test_after_a_model_change_foreign_thinking_is_left_out(wire: WireName) -> None:
    raw = await sent(wire, await history(wire), model_id="claude-opus-4-6")
    for foreign in (SIGNATURE, OTHER_SIGNATURE, "let me think", "rs_0", "msg_1", "fc_2"):
        assert foreign.encode() not in raw
    for kept in ("I look.", "Paris", "Rome", "c1", "c2"):
        assert kept.encode() in raw


@pytest.mark.spec("PV-18")
@pytest.mark.parametrize(("wire", "other"), list(itertools.permutations(WIRES, 2)))
async def test_after_a_provider_change_nothing_foreign_goes_along(
    wire: WireName, other: WireName
) -> None:
    raw = await sent(other, await history(wire))
    for foreign in (SIGNATURE, "let me think", "rs_0", "msg_1", "fc_2"):
        assert foreign.encode() not in raw
    for kept in ("I look.", "Paris", "Rome"):
        assert kept.encode() in raw


@pytest.mark.parametrize(
    ("model_id", "name"),
    [
        ("claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("gpt-5-mini", "gpt-5-mini"),
        ("x-latest", "x"),
        ("claude-opus-4-6@20260101", "claude-opus-4-6"),
    ],
)
def test_a_dated_model_is_of_the_family_without_its_date(model_id: str, name: str) -> None:
    assert family(model_id) == name


@pytest.mark.spec("PV-18", "BB-33")
@pytest.mark.parametrize("wire", WIRES)
async def test_thinking_without_its_end_is_never_sent(wire: WireName) -> None:
    message = AssistantMessage(
        content=(ThinkingPart(text="half a thou"), TextPart(text="Sorry.")),
        api=OWN_APIS.get(wire, "openai-chat"),
        model=models_for(wire, None, base_url="https://example.org")[1],
        stop="aborted",
    )
    raw = await sent(wire, [text_message("Hi", 1), message, text_message("again", 2)])
    assert b"half a thou" not in raw
    assert b"Sorry." in raw


@pytest.mark.spec("FM-05")
@pytest.mark.parametrize("wire", WIRES)
async def test_what_others_keep_of_a_part_is_not_sent(wire: WireName) -> None:
    marker = Extra(
        provider_name=wire, api_name="other", adapter_version=1, opaque_data=Raw(b'{"id":"@@"}')
    )
    parts: tuple[Part, ...] = (
        TextPart(text="Hi.", x=marker),
        OpaquePart(x=marker),
        ToolCallPart(call_id="c1", name="weather", args={}, x=marker),
    )
    model = ModelId(provider=wire, model_id="x")
    for api in ("other", OWN_APIS.get(wire, "openai-chat")):
        message = AssistantMessage(content=parts, api=api, model=model, stop="toolUse")
        raw = await sent(wire, [text_message("Hi", 1), message, *results(message)])
        assert b"@@" not in raw


# -------------------------------------------------------------------------------- stable bytes


@pytest.mark.spec("PV-19", "BB-32")
@pytest.mark.parametrize("wire", WIRES)
async def test_every_request_begins_with_the_bytes_of_the_one_before(wire: WireName) -> None:
    replies = [THOUGHTFUL, WireReply(), THOUGHTFUL, WireReply(), WireReply()]
    said: list[Message] = [text_message("Grüße 😀", 1)]
    async with WireServer(*replies) as server:
        for turn, _ in enumerate(replies):
            # A new adapter each time, and messages from stored bytes: nothing may be remembered.
            models, model = models_for(wire, server)
            asked = request(model, *said, tools=(TOOL,), thinking="low", cache_key="s:1")
            _, outcome = await play(models, asked)
            await models.close()
            assert isinstance(outcome.result, AssistantMessage)
            message = stored(outcome.result)
            said += [message, *(stored_result(one) for one in results(message))]
            if not message.calls:
                said.append(text_message(f"turn {turn}", turn))
        assert server.faults == []
        raws = [one.raw for one in server.requests]
    field = MESSAGES_FIELD.get(wire, "messages")
    for earlier, later in itertools.pairwise(raws):
        assert array_of(later, field).startswith(array_of(earlier, field)[:-1] + b",")
        for fixed in ("tools", "system", "instructions"):
            assert array_of(later, fixed) == array_of(earlier, fixed)


def stored_result(result: ToolResultMessage) -> ToolResultMessage:
    return decode(encode(result), ToolResultMessage)


def array_of(raw: bytes, field: str) -> bytes:
    """Cut the bytes of a top-level field out of a body; empty when it is not there."""
    text = raw.decode()
    at = 0
    decoder = json.JSONDecoder()
    body = json.loads(text)
    if field not in body:
        return b""
    while True:
        at = text.index(f'"{field}":', at) + len(field) + 3
        value, end = decoder.raw_decode(text, at)
        if value == body[field]:
            return text[at:end].encode()


@pytest.mark.spec("BB-32")
@pytest.mark.parametrize("wire", WIRES)
async def test_results_stand_in_call_order_right_after_their_message(wire: WireName) -> None:
    body = json.loads(await sent(wire, await history(wire)))
    if wire == "anthropic":
        (user, assistant, answers) = body["messages"]
        assert [block["tool_use_id"] for block in answers["content"]] == ["c1", "c2"]
        assert [block["is_error"] for block in answers["content"]] == [False, True]
        assert (user["role"], assistant["role"]) == ("user", "assistant")
    elif wire == "openai":
        outputs = [item for item in body["input"] if item.get("type") == "function_call_output"]
        assert [item["call_id"] for item in outputs] == ["c1", "c2"]
    else:
        tools = body["messages"][-2:]
        assert [message["tool_call_id"] for message in tools] == ["c1", "c2"]


# ------------------------------------------------------------------------------------- content


@pytest.mark.parametrize("wire", WIRES)
async def test_images_of_people_and_tools_are_sent_as_they_are(wire: WireName) -> None:
    image = ImagePart(mime="image/png", sha256="0" * 64, data=PIXEL)
    user = UserMessage(content=(TextPart(text="See:"), image), timestamp=1)
    said = await history(wire)
    shown = ToolResultMessage(
        call_id="c1", tool_name="weather", content=(TextPart(text="here"), image), is_error=False
    )
    raw = await sent(wire, [user, said[1], shown, said[3]])
    assert raw.count(PIXEL.encode()) == 2


@pytest.mark.spec("PV-20")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_model_that_sees_no_images_is_told_so_in_words(wire: WireName) -> None:
    image = ImagePart(mime="image/png", sha256="0" * 64, data=PIXEL)
    user = UserMessage(content=(TextPart(text="See:"), image), timestamp=1)
    said = await history(wire)
    shown = ToolResultMessage(
        call_id="c1", tool_name="weather", content=(TextPart(text="here"), image), is_error=False
    )
    raw = await sent(wire, [user, said[1], shown, said[3]], images=False)
    assert PIXEL.encode() not in raw
    assert raw.count(b"[an image (image/png), which this model cannot see]") == 2


async def test_an_image_without_its_bytes_is_said_in_words() -> None:
    image = ImagePart(mime="image/png", sha256="0" * 64, blob=True)
    raw = await sent("anthropic", [UserMessage(content=(image,), timestamp=1)])
    assert b"could not be read" in raw


@pytest.mark.parametrize("wire", WIRES)
async def test_an_empty_message_is_left_out(wire: WireName) -> None:
    empty = AssistantMessage(
        content=(), api="x", model=ModelId(provider="p", model_id="m"), stop="error"
    )
    said = [text_message("Hi", 1), empty, UserMessage(content=(TextPart(text=""),), timestamp=2)]
    body = json.loads(await sent(wire, [*said, text_message("Go", 3)]))
    roles = [one["role"] for one in body[MESSAGES_FIELD.get(wire, "messages")]]
    assert [role for role in roles if role != "system"] == ["user", "user"]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_result_without_content_is_still_a_result(wire: WireName) -> None:
    said = await history(wire)
    hollow = [
        ToolResultMessage(call_id=one, tool_name="weather", content=(), is_error=False)
        for one in ("c1", "c2")
    ]
    await sent(wire, [*said[:2], *hollow])


@pytest.mark.spec("PV-11")
def test_times_bytes_and_objects_become_text() -> None:
    @dataclass
    class Odd:
        n: int = 1

    when = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
    part = vendor.TextPart(
        content="x",
        id="i",
        provider_details={"at": when, "raw": b"\x00\xff", "odd": Odd(), "nan": float("nan")},
    )
    home = Home(
        model=ModelId(provider="p", model_id="m"), api="a", vendor_name="v", url="u", signed=True
    )
    extra = extra_of(part, home)
    assert extra is not UNSET
    assert (extra.provider_name, extra.api_name, extra.adapter_version) == ("p", "a", 1)
    kept = decode_json(extra.opaque_data)
    details = kept["provider_details"]
    assert details["at"] == "2026-11-29T12:00:00+00:00"
    assert details["raw"] == "AP8="
    assert details["nan"] == "NaN"
    assert isinstance(details["odd"], str)
    assert kept["id"] == "i"
    message = AssistantMessage(
        content=(TextPart(text="x", x=extra),), api="a", model=home.model, stop="stop"
    )
    (again,) = to_vendor([stored(message)], home).messages
    assert isinstance(again, vendor.ModelResponse)
    (back,) = again.parts
    assert isinstance(back, vendor.TextPart)
    assert (back.id, back.provider_details) == ("i", details)


# ------------------------------------------------------------------------------ refused parts


@pytest.mark.spec("PV-21")
async def test_a_named_block_is_found_in_the_request() -> None:
    image = ImagePart(mime="image/png", sha256="0" * 64, data=PIXEL)
    user = UserMessage(content=(TextPart(text=""), TextPart(text="See:"), image), timestamp=1)
    shown = ToolResultMessage(
        call_id="c1", tool_name="weather", content=(TextPart(text="here"), image), is_error=False
    )
    said = await history("anthropic")
    messages = [user, said[1], shown, said[3]]
    words = {
        "messages.0.content.1.image.source.base64.data: could not process image": (0, 2),
        "messages.2.content.0.tool_result.content.1.image: too large": (2, 1),
        "messages.9.content.0: no": None,
        "could not process image": None,
    }
    for text, place in words.items():
        error = WireError(status=400, type="invalid_request_error", message=text)
        async with WireServer(error) as server:
            models, model = models_for("anthropic", server)
            with pytest.raises(ProviderError) as caught:
                await play(models, request(model, *messages))
            await models.close()
        assert caught.value.refused == place, text


@pytest.mark.spec("PV-21")
async def test_a_named_block_is_found_behind_the_system_message() -> None:
    image = ImagePart(mime="image/png", sha256="0" * 64, data=PIXEL)
    user = UserMessage(content=(TextPart(text="See:"), image), timestamp=1)
    error = WireError(
        status=400, type="invalid_request_error", message="Invalid image.",
        param="messages[1].content[1].image_url",
    )  # fmt: skip
    async with WireServer(error) as server:
        models, model = models_for("openai-chat", server)
        with pytest.raises(ProviderError) as caught:
            await play(models, request(model, user))
        await models.close()
    assert caught.value.refused == (0, 1)


@pytest.mark.spec("PV-18", "BB-33")
async def test_reasoning_in_several_summaries_goes_back_as_one_item() -> None:
    thought = WireThinking(pieces=("first", "second"), signature=SIGNATURE, apart=True)
    call = WireCall(id="c1", name="weather", pieces=("{}",))
    hidden = WireThinking(signature=OTHER_SIGNATURE)
    reply = WireReply(parts=(thought, WireText(pieces=("I look.",)), hidden, call))
    async with WireServer(reply, WireReply()) as server:
        models, model = models_for("openai", server)
        asked = request(model, thinking="low")
        _, outcome = await play(models, asked)
        assert isinstance(outcome.result, AssistantMessage)
        message = stored(outcome.result)
        said = (*asked.messages, message, *results(message))
        await play(models, request(model, *said, thinking="low"))
        await models.close()
        assert server.faults == []
        items = server.posts[1].body["input"]
    assert items[1] == {
        "id": "rs_0", "type": "reasoning", "encrypted_content": SIGNATURE,
        "summary": [{"text": "first", "type": "summary_text"},
                    {"text": "second", "type": "summary_text"}],
    }  # fmt: skip
    assert [item.get("id") for item in items[1:5]] == ["rs_0", "msg_1", "rs_2", "fc_3"]
    assert items[3]["encrypted_content"] == OTHER_SIGNATURE


@pytest.mark.spec("PV-18")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_that_was_cut_off_goes_back_without_ids(wire: WireName) -> None:
    parts = (
        WireThinking(pieces=("hm",), signature=SIGNATURE),
        WireText(pieces=("Half",)),
        WireText(pieces=("a word",)),
    )
    async with WireServer(WireReply(parts=parts, end="cut"), WireReply()) as server:
        models, model = models_for(wire, server)
        asked = request(model, thinking="low")
        with pytest.raises(ProviderError) as caught:
            await play(models, asked)
        partial = caught.value.partial
        assert isinstance(partial, AssistantMessage)
        said = (*asked.messages, stored(partial), text_message("go on", 2))
        await play(models, request(model, *said, thinking="low"))
        await models.close()
        assert server.faults == []
        raw = server.posts[1].raw
    assert b"Half" in raw
    assert b"msg_" not in raw
    assert b"rs_" not in raw
    assert (SIGNATURE.encode() in raw) is (wire == "anthropic")
