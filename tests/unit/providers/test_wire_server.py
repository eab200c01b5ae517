"""The wire server: its rules bite, it records what came, and its breaks are real breaks."""

import json
from typing import Any

import httpx2
import pytest

from perdure.testing.wire_replies import Wire, WireCall, WireError, WireReply, WireText
from perdure.testing.wire_rules import WireFault, check_body, decoded
from perdure.testing.wire_server import WireServer

USER = {"role": "user", "content": "hi"}


def chat_call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def chat(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages)}


def tool(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "x"}


def calls(*ids: str, arguments: str = "{}") -> dict[str, Any]:
    asked = [chat_call(one, arguments) for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": asked}


def use(call_id: str, given: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {} if given is None else given}


def result(call_id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "x"}


def claude(*messages: tuple[str, Any], **fields: Any) -> dict[str, Any]:
    said = [{"role": role, "content": content} for role, content in messages]
    return {"model": "m", "max_tokens": 100, "messages": said, **fields}


def items(*said: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "input": list(said)}


def function_call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments}


def output(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "x"}


GOOD: tuple[tuple[Wire, dict[str, Any]], ...] = (
    ("chat", chat(USER)),
    ("chat", chat(USER, calls("a", "b"), tool("a"), tool("b"), USER)),
    ("chat", chat(USER, calls("a"), tool("a"), calls("a"), tool("a"))),
    ("responses", items(USER)),
    ("responses", items(USER, function_call("a"), function_call("b"), output("a"), output("b"))),
    ("responses", items(USER, {"type": "reasoning", "id": "r"}, function_call("a"), output("a"))),
    ("anthropic", claude(("user", "hi"))),
    ("anthropic", claude(("user", "hi"), ("assistant", [use("a"), use("b")]),
                         ("user", [result("a"), result("b"), {"type": "text", "text": "so?"}]))),
)  # fmt: skip

BAD: tuple[tuple[Wire, dict[str, Any], str], ...] = (
    ("chat", {"messages": [USER]}, "no model"),
    ("chat", chat(), "no messages"),
    ("chat", chat({"role": "user", "content": ""}), "empty"),
    ("chat", chat({"role": "robot", "content": "x"}), "role"),
    ("chat", chat(USER, {"role": "assistant", "content": ""}), "empty"),
    ("chat", chat(USER, calls("a")), "never answered"),
    ("chat", chat(USER, calls("a"), USER), "directly after"),
    ("chat", chat(USER, calls("a", "b"), tool("b"), tool("a")), "in order"),
    ("chat", chat(USER, tool("a")), "in order"),
    ("chat", chat(USER, calls("a"), tool("a"), tool("a")), "in order"),
    ("chat", chat(USER, calls("a", arguments='{"x":'), tool("a")), "arguments"),
    ("chat", chat(USER, calls("a", arguments="[1]"), tool("a")), "arguments"),
    ("responses", items(), "no input"),
    ("responses", items(USER, function_call("a")), "never answered"),
    ("responses", items(USER, output("a")), "in order"),
    ("responses", items(USER, function_call("a"), function_call("b"), output("b")), "in order"),
    ("responses", items(USER, function_call("a"), USER), "before the next user"),
    ("responses", items(USER, function_call("a", "x"), output("a")), "arguments"),
    ("responses", items(USER, {"type": "reasoning", "id": "r"}), "nothing after"),
    ("responses", items({"role": "user", "content": ""}), "empty"),
    ("anthropic", {**claude(("user", "hi")), "max_tokens": None}, "max_tokens"),
    ("anthropic", claude(("assistant", "hi")), "first message"),
    ("anthropic", claude(("user", "")), "empty"),
    ("anthropic", claude(("user", [{"type": "text", "text": " "}])), "empty"),
    ("anthropic", claude(("user", "hi"), ("assistant", [use("a")])), "never answered"),
    ("anthropic", claude(("user", "hi"), ("assistant", [use("a")]), ("user", "so?")), "answered"),
    ("anthropic", claude(("user", "hi"), ("assistant", [use("a")]),
                         ("user", [{"type": "text", "text": "so?"}, result("a")])), "first"),
    ("anthropic", claude(("user", "hi"), ("assistant", [use("a", [1])]),
                         ("user", [result("a")])), "not an object"),
    ("anthropic", claude(("user", "hi"), ("assistant", [{"type": "thinking", "thinking": "x"}])),
     "signature"),
    ("anthropic", claude(("user", "hi"), thinking={"type": "enabled", "budget_tokens": 100}),
     "budget"),
)  # fmt: skip


@pytest.mark.parametrize(("wire", "body"), GOOD)
def test_a_good_request_passes(wire: Wire, body: dict[str, Any]) -> None:
    check_body(wire, decoded(json.dumps(body).encode()))


@pytest.mark.parametrize(("wire", "body", "words"), BAD)
def test_a_bad_request_is_refused_by_its_rule(wire: Wire, body: dict[str, Any], words: str) -> None:
    with pytest.raises(WireFault, match=words):
        check_body(wire, body)


@pytest.mark.parametrize(
    "raw",
    [b"[1]", b'{"a":NaN}', b'{"a":1,"a":2}', b'{"a":"\\ud83d"}', b'{"a":"\\u0000"}', b"\xff{}"],
)
def test_a_body_is_strict_json(raw: bytes) -> None:
    with pytest.raises(WireFault):
        decoded(raw)


async def test_a_broken_rule_is_a_400_and_is_kept() -> None:
    async with WireServer(WireReply()) as server, httpx2.AsyncClient(trust_env=False) as client:
        url = f"{server.base_url}/chat/completions"
        refused = await client.post(url, json=chat(USER, calls("a")))
        assert refused.status_code == 400
        assert "never answered" in refused.json()["error"]["message"]
        assert len(server.faults) == 1
        assert (await client.post(url, json=chat(USER))).status_code == 200
        assert [one.path for one in server.requests] == ["/v1/chat/completions"] * 2
        assert json.loads(server.requests[0].raw) == server.requests[0].body


async def test_a_script_that_is_used_up_says_so() -> None:
    async with WireServer() as server, httpx2.AsyncClient(trust_env=False) as client:
        gone = await client.post(f"{server.base_url}/chat/completions", json=chat(USER))
        assert gone.status_code == 500
        assert "used up" in gone.text
        lost = await client.get(f"{server.root_url}/nowhere")
        assert lost.status_code == 404


async def test_a_cut_is_a_broken_connection_and_a_stop_is_not() -> None:
    said = WireText(pieces=("Hel", "lo"))
    cut = WireReply(parts=(said,), end="cut", after=2)
    stop = WireReply(parts=(said,), end="stop", after=2)
    body = {**chat(USER), "stream": True}
    async with WireServer(cut, stop) as server, httpx2.AsyncClient(trust_env=False) as client:
        url = f"{server.base_url}/chat/completions"
        with pytest.raises(httpx2.TransportError):
            await client.post(url, json=body)
        half = await client.post(url, json=body)
        assert half.status_code == 200
        assert "Hel" in half.text
        assert "[DONE]" not in half.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat(USER)),
        ("/v1/messages", claude(("user", "hi"))),
        ("/v1/responses", items(USER)),
    ],
)
async def test_half_a_character_is_sent_as_half_a_character(
    path: str, body: dict[str, Any]
) -> None:
    parts = (WireText(pieces=("a\ud83d", "\ude00")), WireCall(id="c", name="f", pieces=("\ud83d",)))
    async with (
        WireServer(WireReply(parts=parts)) as server,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        streamed = await client.post(server.root_url + path, json={**body, "stream": True})
    assert '"a\\ud83d"' in streamed.text
    assert '"\\ude00"' in streamed.text


async def test_headers_of_an_error_are_sent() -> None:
    error = WireError(status=429, headers={"retry-after": "7"})
    async with WireServer(error) as server, httpx2.AsyncClient(trust_env=False) as client:
        refused = await client.post(f"{server.root_url}/v1/messages", json=claude(("user", "hi")))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
