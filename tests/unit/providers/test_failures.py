"""Failures: the tables, row by row, and the same classification on every wire."""

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic_ai import exceptions as vendor

from perdure.errors import FailureCode, ProviderError, Rejected
from perdure.providers import failures
from perdure.providers.failures import Wording, failure, overflow_window, retry_after_ms
from perdure.records.messages import AssistantMessage, text_message
from perdure.records.models import ModelOutcome
from perdure.testing.wire_replies import (
    WireCall,
    WireError,
    WireReply,
    WireText,
    WireThinking,
    WireUsage,
)
from perdure.testing.wire_server import WireServer
from tests.unit.providers.wires import NOW_MS, WIRES, WireName, models_for, play, request

TABLES = (failures.OVERFLOWS, failures.ACCOUNTS, failures.FILTERS, failures.TRANSIENT)


async def fails(wire: WireName, *replies: WireReply | WireError, **settings: Any) -> ProviderError:
    async with WireServer(*replies) as server:
        models, model = models_for(wire, server, **settings)
        with pytest.raises(ProviderError) as caught:
            await play(models, request(model))
        await models.close()
        assert len(server.posts) == 1, "one attempt is one request"
        return caught.value


def bad(status: int, kind: str, message: str, code: str | None = None) -> WireError:
    return WireError(status=status, type=kind, message=message, code=code)


@pytest.mark.spec("PV-17")
@pytest.mark.parametrize("row", failures.OVERFLOWS, ids=lambda row: row.sample[:30])
def test_every_overflow_wording_knows_its_sample(row: Wording) -> None:
    for error in (
        vendor.ModelHTTPError(400, "m", {"message": row.sample}),
        vendor.ModelHTTPError(413, "m", {"message": row.sample}),
        vendor.ModelHTTPError(500, "m", {"message": row.sample}),
        vendor.ModelAPIError("m", row.sample),
    ):
        assert failure(error, now_ms=NOW_MS).code == "overflow"
    assert failure(vendor.ModelHTTPError(429, "m", {"message": row.sample}), now_ms=0).code != (
        "overflow"
    )


@pytest.mark.spec("PV-15")
@pytest.mark.parametrize(
    "row",
    [row for table in TABLES[1:] for row in table],
    ids=lambda row: row.sample[:30],
)
def test_every_other_wording_knows_its_sample(row: Wording) -> None:
    assert failure(vendor.ModelAPIError("m", row.sample), now_ms=0).code == row.code


ROWS: tuple[tuple[str, WireError, FailureCode], ...] = (
    ("window", bad(400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"),
     "overflow"),
    ("quota", bad(429, "insufficient_quota", "You exceeded your current quota",
                  "insufficient_quota"), "quota"),
    ("billing", bad(400, "invalid_request_error", "Your credit balance is too low"), "billing"),
    ("payment", bad(402, "billing_error", "pay first"), "billing"),
    ("rate", bad(429, "rate_limit_error", "slow down", "rate_limit_exceeded"), "rate_limited"),
    ("overload", bad(529, "overloaded_error", "Overloaded"), "overloaded"),
    ("key", bad(401, "authentication_error", "no such key"), "auth"),
    ("forbidden", bad(403, "permission_error", "not yours"), "auth"),
    ("model", bad(404, "not_found_error", "no such model", "model_not_found"), "model_not_found"),
    ("filter", bad(400, "invalid_request_error", "content management policy", "content_filter"),
     "content_filter"),
    ("request", bad(400, "invalid_request_error", "temperature is out of range"),
     "invalid_request"),
    ("unprocessable", bad(422, "invalid_request_error", "no"), "invalid_request"),
    ("conflict", bad(409, "conflict", "no"), "invalid_request"),
    ("slow request", bad(408, "timeout_error", "request timeout"), "timeout"),
    ("early", bad(425, "too_early", "early"), "server"),
    ("server", bad(500, "api_error", "the server had an error"), "server"),
    ("gateway", bad(502, "api_error", "bad gateway"), "server"),
    ("unavailable", bad(503, "api_error", "unavailable"), "server"),
    ("edge", bad(524, "api_error", "a timeout at the edge"), "server"),
)  # fmt: skip


@pytest.mark.spec("PV-15")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("name", "error", "code"), ROWS, ids=[row[0] for row in ROWS])
async def test_a_status_means_the_same_on_every_wire(
    wire: WireName, name: str, error: WireError, code: FailureCode
) -> None:
    caught = await fails(wire, error)
    assert caught.code == code
    assert caught.status == error.status
    assert error.message in caught.message
    assert caught.partial is None
    assert caught.usage is None


@pytest.mark.spec("PV-16", "PV-15")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (bad(529, "overloaded_error", "Overloaded", "overloaded"), "overloaded"),
        (bad(429, "rate_limit_error", "slow down", "rate_limit_exceeded"), "rate_limited"),
        (bad(500, "server_error", "the server had an error", "server_error"), "server"),
        (bad(400, "invalid_request_error", "prompt is too long", "context_length_exceeded"),
         "overflow"),
    ],
    ids=["overloaded", "rate", "server", "window"],
)  # fmt: skip
async def test_an_error_inside_a_stream_is_classified_like_its_status(
    wire: WireName, error: WireError, code: FailureCode
) -> None:
    said = WireText(pieces=("Half", " a"))
    caught = await fails(wire, WireReply(parts=(said,), end=error))
    assert caught.code == code
    assert isinstance(caught.partial, AssistantMessage)
    assert caught.partial.text == "Half a"
    assert caught.partial.stop == "error"


@pytest.mark.spec("PV-15")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_cut_socket_is_the_network(wire: WireName) -> None:
    caught = await fails(wire, WireReply(parts=(WireText(pieces=("Half",)),), end="cut"))
    assert caught.code == "network"
    assert isinstance(caught.partial, AssistantMessage)
    assert caught.partial.text == "Half"


@pytest.mark.spec("PV-15")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_polite_end_without_the_final_event_is_stream_ended(wire: WireName) -> None:
    caught = await fails(wire, WireReply(parts=(WireText(pieces=("Half",)),), end="stop"))
    assert caught.code == "stream_ended"
    assert isinstance(caught.partial, AssistantMessage)
    assert caught.partial.text == "Half"


@pytest.mark.spec("PV-15")
@pytest.mark.parametrize("wire", WIRES)
async def test_silence_is_a_timeout(wire: WireName) -> None:
    reply = WireReply(parts=(WireText(pieces=("Half",)),), hold=True)
    caught = await fails(wire, reply, silence_timeout_ms=100)
    assert caught.code == "timeout"
    assert isinstance(caught.partial, AssistantMessage)


@pytest.mark.spec("PV-15")
def test_no_connection_in_time_is_a_timeout() -> None:
    error = vendor.ModelTimeoutError("m", "timed out", phase="connect")
    assert failure(error, now_ms=0).code == "timeout"


@pytest.mark.spec("PV-15")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_refused_connection_is_the_network(wire: WireName) -> None:
    async with WireServer() as server:
        models, model = models_for(wire, server)
    with pytest.raises(ProviderError) as caught:
        await play(models, request(model))
    await models.close()
    assert caught.value.code == "network"


@pytest.mark.spec("PV-15")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_filtered_reply_is_content_filter(wire: WireName) -> None:
    word = "refusal" if wire == "anthropic" else "content_filter"
    caught = await fails(wire, WireReply(parts=(WireText(pieces=("Half",)),), finish=word))
    assert caught.code == "content_filter"
    assert isinstance(caught.partial, AssistantMessage)
    assert caught.usage is not None


@pytest.mark.spec("PV-15")
def test_anything_else_is_an_invalid_request_with_its_class_name() -> None:
    caught = failure(ZeroDivisionError("oops"), now_ms=0)
    assert caught.code == "invalid_request"
    assert caught.message == "ZeroDivisionError: oops"


@pytest.mark.spec("PV-15")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectionResetError("gone"), "network"),
        (TimeoutError("late"), "timeout"),
        (EOFError(), "network"),
        (vendor.UnexpectedModelBehavior("Streamed response ended without content"),
         "stream_ended"),
    ],
    ids=["reset", "timeout", "eof", "ended"],
)  # fmt: skip
def test_transport_exceptions_of_python_are_retryable(error: Exception, code: FailureCode) -> None:
    assert failure(error, now_ms=0).code == code


def test_an_error_of_ours_in_the_chain_passes_through() -> None:
    ours = ProviderError("auth", "no key")
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = ours
    assert failure(wrapped, now_ms=0) is ours
    refused = failure(Rejected("invariant", "no such thing"), now_ms=0)
    assert (refused.code, refused.message) == ("invalid_request", "no such thing")


def test_a_page_of_html_is_cut_and_stays_strict_text() -> None:
    caught = failure(vendor.ModelAPIError("m", "\ud83d" + "x" * 100_000), now_ms=0)
    assert len(caught.message) <= failures.MESSAGE_CHARACTERS_MAX
    caught.message.encode()


@pytest.mark.spec("PV-16")
@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "7"}, 7_000),
        ({"Retry-After": "1.5"}, 1_500),
        ({"retry-after": "0"}, 0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 250),
        ({"retry-after": "Sat, 29 Nov 2025 07:06:50 GMT"}, 10_000),
        ({"retry-after": "Sat, 29 Nov 2025 07:06:30 GMT"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_or_absent(headers: Mapping[str, str], wait: int | None) -> None:
    assert retry_after_ms(headers, NOW_MS) == wait


@pytest.mark.spec("PV-16")
@pytest.mark.parametrize("wire", WIRES)
async def test_retry_after_arrives_on_every_wire(wire: WireName) -> None:
    error = WireError(status=429, type="rate_limit_error", headers={"retry-after": "7"})
    assert (await fails(wire, error)).retry_after_ms == 7_000
    error = WireError(status=429, type="rate_limit_error", headers={"retry-after": "-7"})
    assert (await fails(wire, error)).retry_after_ms is None


@pytest.mark.spec("PV-17")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("status", [400, 413, 500])
async def test_an_overflow_is_known_by_its_words_on_every_wire(wire: WireName, status: int) -> None:
    words = "the request (9001 tokens) exceeds the available context size (4096 tokens)"
    caught = await fails(wire, bad(status, "invalid_request_error", words))
    assert caught.code == "overflow"
    assert caught.window == 4096


@pytest.mark.spec("PV-17")
@pytest.mark.parametrize("wire", WIRES)
async def test_an_empty_reply_that_stops_at_the_limit_is_an_overflow(wire: WireName) -> None:
    nothing = WireReply(
        parts=(), finish="length", usage=WireUsage(input=8_000, output=0, reasoning=0)
    )
    assert (await fails(wire, nothing)).code == "overflow"


@pytest.mark.spec("PV-17")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_that_was_all_reasoning_is_no_overflow(wire: WireName) -> None:
    spent = WireReply(parts=(), finish="length", usage=WireUsage(input=80, output=64, reasoning=64))
    async with WireServer(spent) as server:
        models, model = models_for(wire, server)
        _, outcome = await play(models, request(model))
        await models.close()
    assert stop_of(outcome) == "length"


@pytest.mark.spec("PV-17")
def test_a_named_window_is_read() -> None:
    assert overflow_window("prompt is too long: 210000 tokens > 200000 maximum") == 200_000
    assert overflow_window("maximum context length is 8192 tokens") == 8_192
    assert overflow_window("prompt is too long") is None


@pytest.mark.spec("PV-05")
@pytest.mark.parametrize("wire", WIRES)
async def test_one_attempt_is_one_request(wire: WireName) -> None:
    replies = (
        WireError(status=429, type="rate_limit_error", headers={"retry-after": "0"}),
        WireError(status=500),
        WireReply(end="cut"),
        WireError(status=400, type="invalid_request_error",
                  message="thinking: The block is bound to a different conversation"),
    )  # fmt: skip
    async with WireServer(*replies) as server:
        models, model = models_for(wire, server)
        for count, _ in enumerate(replies, start=1):
            with pytest.raises(ProviderError):
                await play(models, request(model))
            assert len(server.requests) == count
        await models.close()


def stop_of(outcome: ModelOutcome) -> str:
    assert isinstance(outcome.result, AssistantMessage)
    return outcome.result.stop


@pytest.mark.spec("PV-07")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("finish", "stop"), [("stop", "toolUse"), ("tool_calls", "toolUse"), ("length", "length")]
)
async def test_stop_comes_from_the_parts(wire: WireName, finish: str, stop: str) -> None:
    word = {"stop": "end_turn", "tool_calls": "tool_use"}.get(finish, finish)
    call = WireCall(id="c1", name="weather", pieces=('{"city":"Paris"}',))
    reply = WireReply(parts=(call,), finish=word if wire == "anthropic" else finish)
    async with WireServer(reply) as server:
        models, model = models_for(wire, server)
        _, outcome = await play(models, request(model))
        await models.close()
    message = outcome.result
    assert isinstance(message, AssistantMessage)
    assert message.stop == stop
    assert message.stop_detail == {
        "openai": "max_output_tokens" if finish == "length" else "completed",
        "anthropic": "max_tokens" if finish == "length" else word,
    }.get(wire, finish)
    assert len(message.calls) == 1


@pytest.mark.spec("PV-05")
async def test_thinking_the_server_refuses_is_not_sent_again_by_the_library() -> None:
    """The library would repeat such a request without its thinking, behind the journal's back."""
    words = "messages.1.content.0: The block is bound to a different conversation"
    refused = WireError(status=400, type="invalid_request_error", message=words)
    thought = WireThinking(pieces=("hm",), signature="c2ln")
    reply = WireReply(parts=(thought, WireText(pieces=("Hi",))))
    async with WireServer(reply, refused, WireReply()) as server:
        models, model = models_for("anthropic", server, model_id="claude-opus-5-5")
        asked = request(model, thinking="low")
        _, outcome = await play(models, asked)
        assert isinstance(outcome.result, AssistantMessage)
        said = (*asked.messages, outcome.result, text_message("go on", 2))
        with pytest.raises(ProviderError) as caught:
            await play(models, request(model, *said, thinking="low"))
        await models.close()
        assert len(server.requests) == 2
    assert caught.value.code == "invalid_request"


@pytest.mark.spec("PV-07")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_without_calls_stops_whatever_the_vendor_says(wire: WireName) -> None:
    word = "tool_use" if wire == "anthropic" else "tool_calls"
    async with WireServer(WireReply(finish=word)) as server:
        models, model = models_for(wire, server)
        _, outcome = await play(models, request(model))
        await models.close()
    assert stop_of(outcome) == "stop"
