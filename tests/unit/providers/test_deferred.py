"""Deferred work: one handle, any process, cancelled without harm."""

import pytest

from perdure.errors import ProviderError
from perdure.records.codec import decode, encode
from perdure.records.messages import AssistantMessage
from perdure.records.models import DeferredHandle, ModelOutcome
from perdure.testing.wire_replies import WireCall, WireError, WireReply
from perdure.testing.wire_server import WireServer
from tests.unit.providers.wires import models_for, play, request


async def started(server: WireServer) -> DeferredHandle:
    models, model = models_for("openai", server)
    _, outcome = await play(models, request(model, options={"background": True}))
    await models.close()
    assert isinstance(outcome.result, DeferredHandle)
    return decode(encode(outcome.result), DeferredHandle)


async def polled(server: WireServer, handle: DeferredHandle) -> ModelOutcome:
    """Poll with a new adapter, as a new process would."""
    models, _ = models_for("openai", server)
    try:
        return await models.poll(handle)
    finally:
        await models.close()


@pytest.mark.spec("PV-26")
async def test_a_handle_works_in_another_process() -> None:
    call = WireCall(id="c1", name="weather", pieces=('{"city":"Paris"}',))
    async with WireServer(WireReply(parts=(call,), pending=2)) as server:
        handle = await started(server)
        assert len(encode(handle)) <= 4_096
        assert (handle.provider, handle.model_id, handle.api) == (
            "openai", "gpt-5", "openai-responses"
        )  # fmt: skip
        for _ in range(2):
            waiting = await polled(server, handle)
            assert isinstance(waiting.result, DeferredHandle)
            assert waiting.result.id == handle.id
        outcome = await polled(server, handle)
        assert len(server.posts) == 1, "a poll starts no work"
        assert server.posts[0].body["store"] is True
    message = outcome.result
    assert isinstance(message, AssistantMessage)
    assert message.calls[0].args == {"city": "Paris"}
    assert message.stop == "toolUse"
    assert outcome.usage is not None


@pytest.mark.spec("PV-26")
async def test_failed_deferred_work_is_classified() -> None:
    async with WireServer(WireError(code="rate_limit_exceeded", message="slow down")) as server:
        handle = await started(server)
        with pytest.raises(ProviderError) as caught:
            await polled(server, handle)
    assert caught.value.code == "rate_limited"


@pytest.mark.spec("PV-26")
async def test_a_handle_nobody_knows_any_more_has_expired() -> None:
    async with WireServer(WireReply()) as server:
        handle = await started(server)
    async with WireServer() as server:
        with pytest.raises(ProviderError) as caught:
            await polled(server, handle)
        assert caught.value.code == "deferred_expired"
        models, _ = models_for("openai", server)
        await models.cancel(handle)
        await models.close()


@pytest.mark.spec("PV-26")
async def test_cancel_stops_pending_work_and_spares_finished_work() -> None:
    async with WireServer(WireReply(pending=9), WireReply()) as server:
        pending = await started(server)
        finished = await started(server)
        models, _ = models_for("openai", server)
        await models.cancel(pending)
        await models.poll(finished)
        await models.cancel(finished)
        with pytest.raises(ProviderError):
            await models.poll(pending)
        await models.close()
        paths = [one.path for one in server.requests if one.path.endswith("/cancel")]
    assert len(paths) == 2


async def test_other_wires_say_that_they_cannot_defer() -> None:
    async with WireServer() as server:
        models, model = models_for("anthropic", server)
        with pytest.raises(ProviderError, match="background") as caught:
            await play(models, request(model, options={"background": True}))
        await models.close()
        assert server.requests == []
    assert caught.value.code == "invalid_request"
