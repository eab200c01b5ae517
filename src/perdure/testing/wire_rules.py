"""What a strict provider refuses: the rules of the three wires, over decoded request bodies.

Real providers answer a request that breaks one of these with status 400, and a session that keeps
sending it is dead. The wire server applies them to every request it sees.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias, cast

from perdure.testing.wire_replies import Wire

Body: TypeAlias = Mapping[str, Any]

NO_FIELDS: Final[Body] = MappingProxyType({})


class WireFault(ValueError):
    """Which rule a request breaks."""


def _refuse(what: str) -> NoReturn:
    raise WireFault(what)


def decoded(raw: bytes) -> Body:
    """Decode a body strictly: UTF-8, no NaN, no duplicate keys, no lone surrogate, no NUL."""
    try:
        value = json.loads(
            raw.decode(), parse_constant=_no_constant, object_pairs_hook=_no_duplicates
        )
    except ValueError as error:
        raise WireFault(f"the body is not strict JSON: {error}") from None
    if not isinstance(value, dict):
        _refuse("the body is not an object")
    body = cast("Body", value)
    for text in _texts(body):
        if any("\ud800" <= char <= "\udfff" for char in text):
            _refuse("a text holds a lone surrogate")
        if "\x00" in text:
            _refuse("a text holds a NUL")
    return body


def _no_constant(text: str) -> NoReturn:
    raise WireFault(f"{text} is not JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        _refuse("an object holds a key twice")
    return result


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in cast("dict[str, object]", value).items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _texts(item)


def check_body(wire: Wire, body: Body) -> None:
    """Refuse what a provider of this wire refuses.

    Raises:
        WireFault: naming the rule.
    """
    if not body.get("model"):
        _refuse("no model")
    match wire:
        case "chat":
            check_chat(body.get("messages", []))
        case "responses":
            check_responses(body.get("input", []))
        case "anthropic":
            check_anthropic(body)


_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})


def check_chat(messages: Sequence[Body]) -> None:
    """A message with calls is followed directly by one tool message a call, in call order."""
    open_calls: list[str] = []
    for message in messages:
        role = message.get("role")
        if open_calls and role != "tool":
            _refuse(f"calls {open_calls} are not answered directly after their message")
        if role == "tool":
            if not open_calls or message.get("tool_call_id") != open_calls[0]:
                _refuse(f"result {message.get('tool_call_id')!r} answers no call in order")
            open_calls.pop(0)
        elif role == "assistant":
            open_calls = _chat_calls(message)
        elif role not in _ROLES or message.get("content") in (None, "", []):
            _refuse(f"a {role} message is empty, or its role does not exist")
    if open_calls:
        _refuse(f"calls {open_calls} are never answered")
    if not messages:
        _refuse("no messages")


def _chat_calls(message: Body) -> list[str]:
    calls: Sequence[Body] = message.get("tool_calls") or ()
    if not calls and not message.get("content"):
        _refuse("an assistant message is empty")
    for call in calls:
        _arguments(call["function"]["arguments"])
    return [call["id"] for call in calls]


def _arguments(text: object) -> None:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        _refuse(f"the arguments {text!r} are not a JSON object in text")


def check_responses(items: object) -> None:
    """Each function call has one output, in order; what a reasoning item led to follows it."""
    if not isinstance(items, list) or not items:
        _refuse("no input")
    known = cast("list[Body]", items)
    waiting: list[str] = []
    for index, item in enumerate(known):
        kind = item.get("type", "message")
        if kind == "function_call":
            _arguments(item.get("arguments"))
            waiting.append(item["call_id"])
        elif kind == "function_call_output":
            if item["call_id"] not in waiting[:1]:
                _refuse(f"output {item['call_id']!r} answers none of {waiting} in order")
            waiting.pop(0)
        elif kind == "reasoning":
            _check_reasoning(item, known[index + 1 :])
        elif item.get("content") in (None, "", []):
            _refuse("a message is empty")
        elif item.get("role") == "user" and waiting:
            _refuse(f"calls {waiting} are not answered before the next user message")
    if waiting:
        _refuse(f"calls {waiting} are never answered")


def _check_reasoning(item: Body, after: Sequence[Body]) -> None:
    if not after or after[0].get("role") == "user" or "output" in after[0]:
        _refuse(f"reasoning item {item.get('id')!r} has nothing after it")


def check_anthropic(body: Body) -> None:
    """Results stand first in the turn right after their calls; thinking carries a signature."""
    thinking: Body = body.get("thinking") or NO_FIELDS
    if not isinstance(body.get("max_tokens"), int):
        _refuse("no max_tokens")
    if thinking.get("type") == "enabled" and thinking["budget_tokens"] >= body["max_tokens"]:
        _refuse("budget_tokens is not below max_tokens")
    messages: Sequence[Body] = body.get("messages", [])
    if not messages or messages[0]["role"] != "user":
        _refuse("the first message is not a user message")
    asked: list[str] = []
    for message in messages:
        blocks = _blocks(message)
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if results != asked:
            _refuse(f"calls {asked} are answered as {results}")
        if results and [block["type"] for block in blocks[: len(results)]] != (
            ["tool_result"] * len(results)
        ):
            _refuse("results do not stand first in their message")
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        for block in blocks:
            _anthropic_block(block)
    if asked:
        _refuse(f"calls {asked} are never answered")


def _blocks(message: Body) -> Sequence[Body]:
    content = message["content"]
    if not content:
        _refuse(f"a {message['role']} message is empty")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _anthropic_block(block: Body) -> None:
    match block["type"]:
        case "text" if not block["text"].strip():
            _refuse("a text block is empty")
        case "thinking" if not block.get("signature"):
            _refuse("a thinking block has no signature")
        case "tool_use" if not isinstance(block["input"], dict):
            _refuse("the input of a call is not an object")
        case _:
            pass
