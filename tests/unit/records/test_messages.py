"""Parts, payloads and inputs: what is stored of what was said."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from perdure.errors import Rejected
from perdure.records.codec import decode_json, to_raw
from perdure.records.entries import ModelId
from perdure.records.images import image_part
from perdure.records.messages import (
    AssistantMessage,
    AssistantPayload,
    Cost,
    Cut,
    Extra,
    ImagePart,
    MessageError,
    OpaquePart,
    Part,
    SummaryPayload,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    ToolResultPayload,
    UsageElement,
    UserMessage,
    UserPayload,
    check_payload,
    estimated_tokens,
    normalize_input,
    read_payload,
    text_message,
)
from perdure.records.seqs import Seq
from perdure.records.strict_json import Repairs

MODEL = ModelId(provider="anthropic", model_id="claude")
X = Extra(provider_name="p", api_name="a", adapter_version=3, opaque_data=Raw(b'{"k":  1.00}'))
GIF = b"GIF89a\x01\x00\x01\x00\x00\x00\x00"


def assistant(*parts: Part) -> AssistantMessage:
    return AssistantMessage(content=parts, api="messages", model=MODEL, stop="stop", timestamp=5)


# ------------------------------------------------------------------------------ stored shapes


@pytest.mark.parametrize(
    ("payload", "shape"),
    [
        (
            UserPayload(messages=(UserMessage(content=(TextPart(text="hi"),), timestamp=5),)),
            {"v": 1, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}],
                                   "timestamp": 5}]},
        ),
        (
            AssistantPayload(
                message=AssistantMessage(
                    content=(
                        ThinkingPart(text="hm", redacted=True, x=X),
                        ToolCallPart(call_id="c1", name="t", args={"n": 2**64}),
                        ToolCallPart(call_id="c2", name="t", args_text="{"),
                        OpaquePart(x=X),
                        ImagePart(mime="image/png", sha256="00", blob=True),
                    ),
                    api="messages", model=MODEL, response_id="r", stop="error", stop_detail="odd",
                    error=MessageError(code="server", message="no"), timestamp=5,
                )
            ),
            {"v": 1, "message": {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "text": "hm", "redacted": True,
                     "x": {"p": "p", "a": "a", "n": 3, "d": {"k": 1.0}}},
                    {"type": "toolCall", "callId": "c1", "name": "t", "args": {"n": 2**64}},
                    {"type": "toolCall", "callId": "c2", "name": "t", "argsText": "{"},
                    {"type": "opaque", "x": {"p": "p", "a": "a", "n": 3, "d": {"k": 1.0}}},
                    {"type": "image", "mime": "image/png", "sha256": "00", "blob": True},
                ],
                "api": "messages", "model": {"provider": "anthropic", "modelId": "claude"},
                "responseId": "r", "stop": "error", "stopDetail": "odd",
                "error": {"code": "server", "message": "no"}, "timestamp": 5,
            }},
        ),
        (
            ToolResultPayload(
                message=ToolResultMessage(
                    call_id="c1", tool_name="t", content=(TextPart(text="out"),),
                    details=Raw(b'{"a":1}'), is_error=False, cut=Cut(bytes=9, kept="tail"),
                    checkpoint=Raw(b"null"),
                )
            ),
            {"v": 1, "message": {
                "role": "toolResult", "callId": "c1", "toolName": "t",
                "content": [{"type": "text", "text": "out"}], "details": {"a": 1},
                "isError": False, "cut": {"bytes": 9, "kept": "tail"}, "checkpoint": None,
            }},
        ),
        (SummaryPayload(text="short"), {"v": 1, "text": "short"}),
    ],
)  # fmt: skip
def test_payloads_have_the_stored_shape(payload: Any, shape: Any) -> None:
    raw = to_raw(payload)
    assert json.loads(bytes(raw)) == shape
    check_payload(raw, type(payload))
    assert msgspec.json.decode(raw, type=type(payload)) == payload


@pytest.mark.parametrize(
    "wrong",
    [
        {"v": 1},
        {"messages": []},
        {"v": 2, "messages": []},
        {"v": 1, "messages": [], "extra": 1},
        {"v": 1, "messages": [{"role": "user", "content": [], "timestamp": 1, "name": "x"}]},
        {"v": 1, "messages": [{"role": "assistant", "content": [], "timestamp": 1}]},
        {"v": 1, "messages": [{"role": "user", "content": [{"type": "new"}], "timestamp": 1}]},
        {"v": 1, "messages": [{"role": "user", "content": [{"type": "text"}], "timestamp": 1}]},
        [],
    ],
)
def test_a_payload_with_a_missing_or_extra_field_is_refused(wrong: Any) -> None:
    if wrong == {"messages": []}:
        # The version is a field like any other: writers spell it out.
        with pytest.raises(Rejected, match="default"):
            check_payload(to_raw(wrong), UserPayload)
        return
    with pytest.raises(Rejected) as refusal:
        check_payload(to_raw(wrong), UserPayload)
    assert refusal.value.code == "invariant"


@pytest.mark.parametrize(
    "call",
    [
        ToolCallPart(call_id="c", name="t"),
        ToolCallPart(call_id="c", name="t", args={}, args_text=""),
    ],
)
def test_a_call_has_exactly_one_of_args_and_raw_text(call: ToolCallPart) -> None:
    with pytest.raises(Rejected, match="exactly one"):
        check_payload(to_raw(AssistantPayload(message=assistant(call))), AssistantPayload)


@pytest.mark.spec("FM-08")
def test_a_usage_element_has_the_stored_shape() -> None:
    element = UsageElement(
        v=1, task=Seq(1), conv_id=Seq(2), attempt=1, kind="adjust", of=Seq(7), model=MODEL,
        input=1, output=None, cache_read=2, cache_write=None, reasoning=0,
        cost=Cost(amount="0.0123", currency="USD", prices="2026-11-01"),
    )  # fmt: skip
    assert decode_json(to_raw(element)) == {
        "v": 1, "task": 1, "conv": 2, "attempt": 1, "kind": "adjust", "of": 7,
        "model": {"provider": "anthropic", "modelId": "claude"},
        "input": 1, "output": None, "cacheRead": 2, "cacheWrite": None, "reasoning": 0,
        "cost": {"amount": "0.0123", "currency": "USD", "prices": "2026-11-01"},
    }  # fmt: skip


# ------------------------------------------------------------------------------ unknown parts


@pytest.mark.parametrize(
    "part",
    [
        b'{"type":"video" , "d":1.50, "big":123456789012345678901234567890, "e":1e400000}',
        b'{"type":"text","texts":["a"]}',
        b'{"type":"image","mime":1}',
        b'{"kind":"text"}',
        b'"just text"',
        b"null",
        b'{"type":"text","text":"a","type":"video"}',
    ],
)
def test_an_unknown_part_keeps_its_very_bytes(part: bytes) -> None:
    known = b'{"type":"text","text":"a"}'
    raw = Raw(
        b'{"v":1,"messages":[{"role":"user","content":[%s, %s ],"timestamp":5}]}' % (known, part)
    )
    message = read_payload(raw, UserPayload).messages[0]
    assert message.content[0] == TextPart(text="a")
    kept = message.content[1]
    assert isinstance(kept, OpaquePart)
    assert bytes(kept.x.opaque_data) == part
    assert message.timestamp == 5
    again = read_payload(to_raw(UserPayload(messages=(message,))), UserPayload)
    assert again.messages[0] == message


def test_unknown_parts_of_answers_and_results_are_kept_too() -> None:
    answer = to_raw(AssistantPayload(message=assistant(TextPart(text="?"))))
    raw = Raw(bytes(answer).replace(b'{"type":"text","text":"?"}', b'{"type":"new","n":1.0}'))
    (part,) = read_payload(raw, AssistantPayload).message.content
    assert isinstance(part, OpaquePart)
    assert bytes(part.x.opaque_data) == b'{"type":"new","n":1.0}'


@pytest.mark.parametrize("wrong", [b"[]", b"{}", b'{"v":1,"message":{}}', b'{"v":1,"message":[]}'])
def test_a_payload_of_another_kind_is_refused(wrong: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        read_payload(Raw(wrong), AssistantPayload)


def test_provider_data_comes_back_byte_for_byte() -> None:
    raw = to_raw(AssistantPayload(message=assistant(ThinkingPart(text="t", x=X))))
    (part,) = read_payload(raw, AssistantPayload).message.content
    assert isinstance(part, ThinkingPart)
    assert part.x is not UNSET
    assert bytes(part.x.opaque_data) == b'{"k":  1.00}'


# ------------------------------------------------------------------------------ inputs


def test_a_text_is_one_message_and_is_not_trimmed() -> None:
    messages, repairs = normalize_input("  hi \n", now_ms=7)
    assert messages == (UserMessage(content=(TextPart(text="  hi \n"),), timestamp=7),)
    assert repairs == Repairs()


def test_messages_are_taken_as_they_are_and_get_the_time_they_lack() -> None:
    early = text_message("a", timestamp=3)
    late = UserMessage(content=(TextPart(text=""), image_part(GIF)))
    messages, _ = normalize_input([early, late], now_ms=9)
    assert messages == (early, msgspec.structs.replace(late, timestamp=9))
    assert normalize_input(early, now_ms=9)[0] == (early,)
    assert normalize_input((early,))[0] == (early,)


@pytest.mark.spec("VD-16")
def test_an_inputs_text_is_repaired_and_counted() -> None:
    content = [text_message("a\x00", 1), text_message("\ud800b\x00", 1)]
    messages, repairs = normalize_input(content)
    assert messages == (text_message("a\u2400", 1), text_message("\ufffdb\u2400", 1))
    assert repairs == Repairs(surrogates=1, nul=2)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "without text or image"),
        ([], "an empty list"),
        (UserMessage(content=()), "without text or image"),
        ([text_message("a"), text_message("")], "without text or image"),
        (UserMessage(content=(OpaquePart(x=X),)), "without text or image"),
        ([assistant(TextPart(text="a"))], "role user"),
        (["a"], "role user"),
        (UserMessage(content=(ThinkingPart(text="a"),)), "ThinkingPart"),
        (UserMessage(content=(ToolCallPart(call_id="c", name="t", args={}),)), "ToolCallPart"),
        (b"bytes", "type bytes"),
        (None, "type NoneType"),
        ({"role": "user"}, "type dict"),
    ],
)
def test_what_is_no_input_is_refused(content: Any, says: str) -> None:
    with pytest.raises(Rejected, match=says) as refusal:
        normalize_input(content)
    assert refusal.value.code == "invariant"


# ------------------------------------------------------------------------------ tokens


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ((), 0),
        ((TextPart(text="abcd"),), 1),
        ((TextPart(text="abcde"),), 2),
        ((TextPart(text="ab"), ThinkingPart(text="cd")), 1),
        ((ImagePart(mime="image/png", sha256="", blob=True), TextPart(text="a")), 1201),
        # Characters, not bytes: {"a":"漢字"} is ten, the name two more.
        ((ToolCallPart(call_id="c", name="ab", args={"a": "漢字"}),), 3),
        ((ToolCallPart(call_id="c", name="ab", args_text="{'a'"),), 2),
        ((OpaquePart(x=X),), 0),
    ],
)
def test_tokens_are_estimated_from_characters(parts: tuple[Part, ...], tokens: int) -> None:
    assert estimated_tokens(parts) == tokens
