"""Names, keys and addresses: what is refused, what is found, and that no secret is kept."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from perdure.errors import ProviderError, Rejected
from perdure.providers.config import (
    HOSTED,
    Provider,
    ProviderConfig,
    check_config,
    uses_proxies,
)
from perdure.records.codec import encode
from perdure.records.messages import AssistantMessage, text_message
from perdure.records.models import DeferredHandle
from perdure.testing.wire_replies import WireError, WireReply
from perdure.testing.wire_server import WireServer
from tests.unit.providers.wires import WIRES, WireName, models_for, play, request

COMPATIBLE = HOSTED["openai-compatible"]


@pytest.mark.spec("PV-23")
@pytest.mark.parametrize(
    "url",
    [
        "https://models.example.org/v1", "http://127.0.0.1:8000/v1", "http://localhost/v1",
        "http://[::1]:8080", "http://10.1.2.3/v1", "http://192.168.0.7:1234/v1",
    ],
)  # fmt: skip
def test_near_and_safe_addresses_are_accepted(url: str) -> None:
    check_config(COMPATIBLE, ProviderConfig(base_url=url))


@pytest.mark.spec("PV-23")
@pytest.mark.parametrize(
    "url", ["http://models.example.org/v1", "http://8.8.8.8/v1", "http://0.0.0.0/v1"]
)
def test_plain_http_far_away_is_refused_unless_allowed(url: str) -> None:
    with pytest.raises(Rejected, match="allow_plain_http") as caught:
        check_config(COMPATIBLE, ProviderConfig(base_url=url))
    assert caught.value.code == "invariant"
    assert repr(url) in caught.value.message
    check_config(COMPATIBLE, ProviderConfig(base_url=url, allow_plain_http=True))


@pytest.mark.spec("PV-23")
@pytest.mark.parametrize("url", ["ftp://x/", "models.example.org", "https://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Rejected, match="base_url"):
        check_config(COMPATIBLE, ProviderConfig(base_url=url))


def test_a_compatible_server_needs_its_address() -> None:
    with pytest.raises(Rejected, match="base_url"):
        check_config(COMPATIBLE, ProviderConfig())
    check_config(HOSTED["openai"], ProviderConfig())


@pytest.mark.spec("PV-22", "GN-46")
def test_a_key_never_stands_in_a_configuration() -> None:
    with pytest.raises(Rejected, match="env:NAME") as caught:
        check_config(HOSTED["openai"], ProviderConfig(key="sk-secret"))
    assert "sk-secret" not in caught.value.message


# --------------------------------------------------------------------------------------- keys


async def key_sent(wire: WireName, **settings: Any) -> str | None:
    async with WireServer(WireReply()) as server:
        models, model = models_for(wire, server, **settings)
        await play(models, request(model))
        await models.close()
        return server.requests[0].headers.get("authorization")


async def answered_later() -> str:
    return "later"


@pytest.mark.spec("PV-22")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("source", "key"),
    [(None, "own"), ("env:MY_KEY", "mine"), (lambda: "made", "made"), (answered_later, "later")],
    ids=["own variable", "reference", "function", "async function"],
)
async def test_a_key_is_found_where_it_is_kept(
    wire: WireName, source: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOSTED[wire].key_variable, "own")
    monkeypatch.setenv("MY_KEY", "mine")
    assert await key_sent(wire, key=source) == f"Bearer {key}"


@pytest.mark.spec("PV-22")
async def test_a_function_is_called_for_each_request() -> None:
    keys = iter(["one", "two"])
    async with WireServer(WireReply(), repeat=True) as server:
        models, model = models_for("openai", server, key=lambda: next(keys))
        for _ in range(2):
            await play(models, request(model))
        await models.close()
        sent = [one.headers["authorization"] for one in server.requests]
    assert sent == ["Bearer one", "Bearer two"]


@pytest.mark.spec("PV-22")
@pytest.mark.parametrize("provider", [one for one in HOSTED.values() if one.needs_key],
                         ids=lambda one: one.name)  # fmt: skip
@pytest.mark.parametrize(
    ("source", "variable"),
    [(None, None), ("env:MY_KEY", "MY_KEY"), (lambda: None, "key function")],
    ids=["own variable", "reference", "function"],
)
async def test_a_missing_key_fails_by_name_without_the_network(
    provider: Provider,
    source: str | Callable[[], None] | None,
    variable: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(provider.key_variable, raising=False)
    monkeypatch.delenv("MY_KEY", raising=False)
    async with WireServer() as server:
        models, model = models_for(provider.name, server, key=source)  # type: ignore[arg-type]  # a name of the table
        with pytest.raises(ProviderError) as caught:
            await play(models, request(model))
        await models.close()
        assert server.requests == []
    assert caught.value.code == "auth"
    assert provider.name in caught.value.message
    assert (variable or provider.key_variable) in caught.value.message


@pytest.mark.spec("GN-46")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_key_is_in_nothing_that_is_kept(
    wire: WireName, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    echo = WireError(
        status=401, type="authentication_error", message="the key sk-very-secret is wrong"
    )
    replies = (WireReply(), echo, WireReply())
    async with WireServer(*replies) as server:
        models, model = models_for(wire, server, key=lambda: "sk-very-secret")
        _, outcome = await play(models, request(model))
        with pytest.raises(ProviderError) as caught:
            await play(models, request(model))
        assert "the key [key] is wrong" in caught.value.message
        kept = [encode(outcome), repr(caught.value).encode(), caplog.text.encode()]
        if wire == "openai":
            _, later = await play(models, request(model, options={"background": True}))
            assert isinstance(later.result, DeferredHandle)
            kept.append(encode(later.result))
        await models.close()
    assert all(b"sk-very-secret" not in one for one in kept)


@pytest.mark.spec("GN-46")
@pytest.mark.parametrize("wire", ["openai", "openai-chat"])
async def test_the_cache_is_named_by_the_conversation(wire: WireName) -> None:
    async with WireServer(WireReply(), repeat=True) as server:
        models, model = models_for(wire, server)
        for key in ("s1:7", "s1:7", "s1:9"):
            await play(models, request(model, cache_key=key))
        await models.close()
        assert [one.body["prompt_cache_key"] for one in server.requests] == ["s1:7", "s1:7", "s1:9"]


# ------------------------------------------------------------------------- compatible servers


@pytest.mark.spec("PV-23")
async def test_a_compatible_server_works_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_COMPATIBLE_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-someone-else")
    assert await key_sent("openai-compatible") is None


@pytest.mark.spec("PV-23")
@pytest.mark.parametrize("stream_options", [True, False])
async def test_stream_options_are_left_out_where_they_are_not_understood(
    stream_options: bool,
) -> None:
    async with WireServer(WireReply(usage=None)) as server:
        models, model = models_for("openai-compatible", server, stream_options=stream_options)
        _, outcome = await play(models, request(model))
        await models.close()
        assert ("stream_options" in server.requests[0].body) is stream_options
    assert outcome.usage is None


@pytest.mark.spec("PV-23")
async def test_a_missing_finish_reason_is_accepted_when_the_end_is_announced() -> None:
    async with WireServer(WireReply(finish=""), WireReply(finish="")) as server:
        models, model = models_for("openai-compatible", server)
        _, outcome = await play(models, request(model))
        await models.close()
        assert isinstance(outcome.result, AssistantMessage)
        assert (outcome.result.text, outcome.result.stop) == ("Hello", "stop")
        models, model = models_for("openai-chat", server)
        with pytest.raises(ProviderError) as caught:
            await play(models, request(model))
        await models.close()
    assert caught.value.code == "stream_ended"


@pytest.mark.spec("PV-23")
async def test_the_window_is_configured_or_listed_or_unknown() -> None:
    listed = {"object": "list", "data": [{"id": "some-alias", "max_model_len": 8192}]}
    cases: tuple[tuple[dict[str, Any], Any, int | None], ...] = (
        ({"window": 4096}, listed, 4096),
        ({}, listed, 8192),
        ({}, {"object": "list", "data": [{"id": "other", "max_model_len": 1}]}, None),
        ({}, None, None),
    )
    for settings, models_json, window in cases:
        async with WireServer(models=models_json) as server:
            models, model = models_for("openai-compatible", server, **settings)
            info = await models.describe(model)
            again = await models.describe(model)
            await models.close()
            assert info == again
            assert info.context_window == window
            assert len(server.requests) == (0 if "window" in settings else 1)


async def test_proxies_are_for_servers_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    for wire in WIRES:
        assert await key_sent(wire, key=lambda: "k") == "Bearer k"
    assert uses_proxies(ProviderConfig())
    assert uses_proxies(ProviderConfig(base_url="https://models.example.org"))


async def test_a_server_that_lists_nothing_leaves_the_window_unknown() -> None:
    async with WireServer() as server:
        models, model = models_for("openai-compatible", server)
    info = await models.describe(model)
    await models.close()
    assert info.context_window is None


# ------------------------------------------------------------------------------------ options


@pytest.mark.parametrize("wire", WIRES)
async def test_options_reach_the_wire(wire: WireName) -> None:
    options = {"max_tokens": 99, "temperature": 0.5, "extra_body": {"custom": 1}}
    async with WireServer(WireReply()) as server:
        models, model = models_for(wire, server, thinking=False, model_id="gpt-4.1")
        await play(models, request(model, options=options))
        await models.close()
        body = server.requests[0].body
    name = {"openai": "max_output_tokens", "openai-chat": "max_completion_tokens"}
    assert body[name.get(wire, "max_tokens")] == 99
    assert (body["temperature"], body["custom"]) == (0.5, 1)


@pytest.mark.parametrize(
    "options", [{"max_tokns": 5}, {"max_tokens": "5"}, {"max_tokens": True}], ids=repr
)
async def test_an_option_that_would_be_dropped_fails_by_name(options: dict[str, Any]) -> None:
    async with WireServer() as server:
        models, model = models_for("openai", server)
        with pytest.raises(ProviderError) as caught:
            await play(models, request(model, text_message("Hi", 1), options=options))
        await models.close()
        assert server.requests == []
    assert caught.value.code == "invalid_request"
    assert repr(next(iter(options))) in caught.value.message


# ----------------------------------------------------------------------------------- thinking


@pytest.mark.spec("PV-10")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_level_that_would_be_dropped_is_refused_unless_said_otherwise(
    wire: WireName,
) -> None:
    name = "claude-3-haiku" if wire == "anthropic" else "gpt-4.1"
    async with WireServer(WireReply()) as server:
        models, model = models_for(wire, server, model_id=name, thinking=False)
        assert (await models.describe(model)).thinking == ()
        with pytest.raises(ProviderError, match="not known to think") as caught:
            await play(models, request(model, thinking="high"))
        assert server.posts == []
        await models.close()
        models, model = models_for(wire, server, model_id=name, thinking=True)
        assert "high" in (await models.describe(model)).thinking
        await play(models, request(model, thinking="high", options={"max_tokens": 20_000}))
        await models.close()
        body = server.posts[0].body
    assert caught.value.code == "invalid_request"
    assert {"reasoning", "reasoning_effort", "thinking"} & set(body)


@pytest.mark.spec("PV-10")
async def test_a_budget_above_the_limit_is_lowered_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with WireServer(WireReply(), repeat=True) as server:
        models, model = models_for("anthropic", server)
        for _ in range(2):
            await play(models, request(model, thinking="high", options={"max_tokens": 4096}))
        await play(models, request(model, thinking="low", options={"max_tokens": 4096}))
        await play(models, request(model, thinking="low", options={"max_tokens": 1000}))
        await models.close()
        budgets = [one.body.get("thinking", {}).get("budget_tokens") for one in server.posts]
        assert server.faults == []
    assert budgets == [2048, 2048, 2048, None]
    told = [record.getMessage() for record in caplog.records if "does not fit" in record.msg]
    assert len(told) == 2
    assert "using low" in told[0]
