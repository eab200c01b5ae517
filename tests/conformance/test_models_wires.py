"""The models suite, on every wire of the pydantic-ai adapter."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from perdure.errors import FailureCode
from perdure.records.messages import TextPart, ThinkingPart, ToolCallPart
from perdure.testing.models_suite import CHECKS, Abilities, Check, MakeModels, Offered, Play
from perdure.testing.wire_replies import (
    WireCall,
    WireError,
    WirePart,
    WireReply,
    WireText,
    WireThinking,
    WireUsage,
)
from perdure.testing.wire_server import WireServer
from tests.unit.providers.wires import WIRES, WireName, models_for

FAILURES: dict[FailureCode, WireError] = {
    "rate_limited": WireError(status=429, type="rate_limit_error", code="rate_limit_exceeded"),
    "server": WireError(status=500, type="api_error", code="server_error"),
    "overloaded": WireError(status=529, type="overloaded_error", message="Overloaded"),
    "auth": WireError(status=401, type="authentication_error", code="invalid_api_key"),
    "overflow": WireError(
        status=400, type="invalid_request_error", message="prompt is too long: 9 tokens > 8 maximum"
    ),
    "invalid_request": WireError(
        status=400, type="invalid_request_error", message="a field is wrong"
    ),
}


def wire_part(part: object) -> WirePart:
    match part:
        case TextPart(text=text):
            return WireText(pieces=(text[:3], text[3:]) if len(text) > 3 else (text,))
        case ThinkingPart(text=text):
            return WireThinking(pieces=(text[:3], text[3:]))
        case ToolCallPart(call_id=call_id, name=name, args_text=raw):
            assert isinstance(raw, str)
            return WireCall(id=call_id, name=name, pieces=(raw[:4], raw[4:]))
        case _:
            raise AssertionError(part)


def wire_reply(play: Play) -> WireReply | WireError:
    if play.failure is not None:
        error = FAILURES[play.failure]
        if play.retry_after_ms is not None:
            seconds = str(play.retry_after_ms // 1000)
            return WireError(status=error.status, type=error.type, headers={"retry-after": seconds})
        if not play.parts:
            return error
    usage = play.usage
    return WireReply(
        parts=tuple(map(wire_part, play.parts)),
        usage=None
        if usage is None
        else WireUsage(
            input=usage.input or 0,
            output=usage.output or 0,
            cache_read=usage.cache_read or 0,
            reasoning=usage.reasoning or 0,
        ),
        end="whole" if play.failure is None else FAILURES[play.failure],
        hold=play.hold,
        pending=play.pending or 0,
    )


def maker(wire: WireName) -> MakeModels:
    @asynccontextmanager
    async def make(plays: Sequence[Play]) -> AsyncIterator[Offered]:
        async with WireServer(*map(wire_reply, plays)) as server:
            models, model = models_for(wire, server)
            abilities = Abilities(
                scripted=True,
                images=True,
                thinking=True,
                deferred=wire == "openai",
                usage=True,
                holds=True,
            )
            yield Offered(models=models, model=model, abilities=abilities)
            await models.close()
            assert server.faults == []

    return make


@pytest.mark.spec("PV-01")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_wire_keeps_the_port(wire: WireName, check: Check) -> None:
    await check(maker(wire))
