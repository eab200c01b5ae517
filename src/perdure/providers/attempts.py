"""One model request from its plan to its outcome, or to what explains that there is none."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol, cast

from msgspec import UNSET, Struct
from pydantic_ai import messages as vendor
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings

from perdure.errors import ProviderError
from perdure.ports import Clock
from perdure.providers.config import Provider
from perdure.providers.failures import failure, refused_block
from perdure.providers.mapping import Home, Mapped, plain, refused_part, usage_of
from perdure.providers.streams import FrameMaker, Running
from perdure.records.codec import decode_json, to_raw
from perdure.records.entries import ModelId
from perdure.records.messages import (
    AssistantMessage,
    MessageError,
    Part,
    StopReason,
    TextPart,
    Usage,
)
from perdure.records.models import HANDLE_BYTES_MAX, DeferredHandle, ModelOutcome, ModelRequest
from perdure.records.strict_json import repair

EMPTY_OUTPUT_TOKENS_MAX: Final = 1
"""An empty reply that stopped at the limit after this much output had no room (PV-17)."""

BACKGROUND: Final[Mapping[str, bool]] = MappingProxyType(
    {"openai_background": True, "openai_store": True}
)
"""Deferred work has to be kept by the server; other requests are not (PV-26)."""


class Plan(Struct, frozen=True, kw_only=True):
    """One request in the vendor's words."""

    model: Model[Any]
    home: Home
    mapped: Mapped
    settings: ModelSettings
    parameters: ModelRequestParameters
    background: bool
    hide: Callable[[str], str]
    ended: Callable[[], bool]


class Maker(Protocol):
    """What an attempt asks of the models it belongs to."""

    @property
    def clock(self) -> Clock:
        """Answer the clock."""
        ...

    @property
    def provider(self) -> Provider:
        """Answer the provider."""
        ...

    @property
    def system_messages(self) -> int:
        """Count the messages that a system prompt puts before the first one."""
        ...

    async def plan(self, request: ModelRequest) -> Plan:
        """Put a request into the vendor's words."""
        ...

    async def priced(self, model: ModelId, usage: Usage | None) -> Usage | None:
        """Add what a request cost, where that is known."""
        ...


class Attempt:
    """One request from its plan to its outcome."""

    def __init__(self, models: Maker, request: ModelRequest) -> None:
        self._models = models
        self._request = request
        self._plan: Plan | None = None
        self._maker: FrameMaker | None = None

    async def play(self, running: Running) -> ModelOutcome:
        """Make the request, hand out its frames, and answer the reply."""
        plan = self._plan = await self._models.plan(self._request)
        if plan.background:
            return await self._start_deferred(running, plan)
        maker = self._maker = FrameMaker(plan.home)
        opened = model_request_stream(
            plan.model,
            plan.mapped.messages,
            model_settings=plan.settings,
            model_request_parameters=plan.parameters,
            instrument=False,
        )
        async with opened as stream:
            running.vendor = stream
            async for event in stream:
                for frame in maker.frames(event):
                    await running.put(frame)
            response = stream.get()
            self._check_end(plan, response)
            for frame in maker.finish(response):
                await running.put(frame)
        return await self._answer(maker, response)

    async def _start_deferred(self, running: Running, plan: Plan) -> ModelOutcome:
        response = await self._ask(plan, plan.mapped.messages)
        if response.state == "suspended":
            return ModelOutcome(result=_handle(self._request.model, plan.home, response))
        maker = self._maker = FrameMaker(plan.home)
        for frame in maker.whole(response):
            await running.put(frame)
        return await self._answer(maker, response)

    async def poll(self, handle: DeferredHandle) -> ModelOutcome:
        """Ask for deferred work once."""
        plan = self._plan = await self._models.plan(self._request)
        response = await self._ask(plan, [suspended(handle)])
        if response.state == "suspended":
            return ModelOutcome(result=_handle(self._request.model, plan.home, response))
        maker = self._maker = FrameMaker(plan.home)
        for _ in maker.whole(response):
            pass  # nobody watches a poll; the maker gathers the parts
        return await self._answer(maker, response)

    async def _ask(self, plan: Plan, messages: list[vendor.ModelMessage]) -> vendor.ModelResponse:
        return await model_request(
            plan.model,
            messages,
            model_settings=cast("ModelSettings", {**plan.settings, **BACKGROUND}),
            model_request_parameters=plan.parameters,
            instrument=False,
        )

    def _check_end(self, plan: Plan, response: vendor.ModelResponse) -> None:
        """Refuse a stream that came to an end without its final event (PV-15)."""
        said = (response.provider_details or {}).get("finish_reason")
        refused = response.finish_reason == "content_filter"
        if response.state == "complete" and (said or refused or plan.ended()):
            return
        raise ProviderError("stream_ended", "the stream ended without its final event")

    async def _answer(self, maker: FrameMaker, response: vendor.ModelResponse) -> ModelOutcome:
        usage = usage_of(response.usage, finished=True)
        self._check_finish(maker, response, usage)
        message = self._message(maker, _stop(response), response)
        return ModelOutcome(
            result=message,
            usage=await self._models.priced(self._request.model, usage),
            repaired=maker.repairs,
        )

    def _check_finish(
        self, maker: FrameMaker, response: vendor.ModelResponse, usage: Usage | None
    ) -> None:
        """Turn a finish that is a refusal, an error or an overflow into a failure."""
        details = response.provider_details or {}
        empty = not maker.reducer.finished_parts()
        if response.finish_reason == "content_filter":
            refusal = details.get("refusal") or "the provider's filter stopped the reply"
            raise ProviderError("content_filter", repair_words(refusal))
        if response.finish_reason == "error":
            raise ProviderError("server", f"the reply ended with {_word(response)!r}")
        if response.finish_reason == "length" and empty and _had_no_room(usage):
            raise ProviderError("overflow", "an empty reply stopped at the length limit")

    def _message(
        self,
        maker: FrameMaker,
        stop: StopReason,
        response: vendor.ModelResponse | None,
        error: MessageError | None = None,
    ) -> AssistantMessage:
        parts = maker.reducer.parts() if error is None else maker.reducer.finished_parts()
        word = None if response is None else _word(response)
        response_id = None if response is None else response.provider_response_id
        return AssistantMessage(
            content=tuple(part for part in parts if not _is_empty(part)),
            api=self._models.provider.api,
            model=self._request.model,
            response_id=UNSET if not response_id else repair_words(response_id),
            stop=stop,
            stop_detail=UNSET if word is None else word,
            error=UNSET if error is None else error,
            timestamp=self._models.clock.now_ms(),
        )

    def explain(
        self, stream: StreamedResponse | None, error: BaseException | None
    ) -> ProviderError:
        """Say why there is no reply, with what had arrived and what had been reported."""
        if error is None:
            failed = ProviderError("interrupted", "the stream was closed before its end")
        else:
            failed = failure(error, now_ms=self._models.clock.now_ms())
        said = failed.message if self._plan is None else self._plan.hide(failed.message)
        maker = self._maker
        partial = None
        if maker is not None and maker.reducer.finished_parts():
            why = MessageError(code=failed.code, message=said)
            response = None if stream is None else stream.get()
            stop: StopReason = "aborted" if error is None else "error"
            partial = self._message(maker, stop, response, why)
        usage = None if stream is None else usage_of(stream.usage, finished=_finished(stream))
        return ProviderError(
            failed.code,
            said,
            status=failed.status,
            retry_after_ms=failed.retry_after_ms,
            partial=partial,
            usage=failed.usage if usage is None else usage,
            window=failed.window,
            refused=failed.refused if error is None else self._refused(error),
        )

    def _refused(self, error: BaseException) -> tuple[int, int] | None:
        block, plan = refused_block(error), self._plan
        if block is None or plan is None:
            return None
        offset = self._models.system_messages if self._request.system else 0
        return refused_part(block, plan.mapped, self._request.messages, offset=offset)


def _is_empty(part: Part) -> bool:
    return isinstance(part, TextPart) and not part.text


def _finished(stream: StreamedResponse) -> bool:
    return stream.get().state == "complete"


def _word(response: vendor.ModelResponse) -> str | None:
    word = (response.provider_details or {}).get("finish_reason")
    return None if word is None else repair_words(word)


def repair_words(value: object) -> str:
    """Make stored text of a vendor's word."""
    fixed = repair(value)[0]
    return fixed if isinstance(fixed, str) else str(fixed)


def _stop(response: vendor.ModelResponse) -> StopReason:
    """Derive the stop reason from the parts; only the output limit outranks them (PV-07)."""
    if response.finish_reason == "length":
        return "length"
    calls = any(isinstance(part, vendor.ToolCallPart) for part in response.parts)
    return "toolUse" if calls else "stop"


def _had_no_room(usage: Usage | None) -> bool:
    if usage is None:
        return True
    return not usage.reasoning and (usage.output or 0) <= EMPTY_OUTPUT_TOKENS_MAX


def _handle(model: ModelId, home: Home, response: vendor.ModelResponse) -> DeferredHandle:
    """Write what is needed to ask again, in any process."""
    details = repair(plain(response.provider_details or {}))[0]
    handle = DeferredHandle(
        provider=model.provider,
        model_id=model.model_id,
        api=home.api,
        id=response.provider_response_id or "",
        data=to_raw({"details": details, "name": response.provider_name, "url": home.url}),
    )
    if not handle.id or len(to_raw(handle)) > HANDLE_BYTES_MAX:
        raise ProviderError(
            "invalid_request", "the provider deferred its answer under an unusable handle"
        )
    return handle


def poll_request(handle: DeferredHandle) -> ModelRequest:
    """Make the request that stands for a handle: its model, and nothing to say."""
    model = ModelId(provider=handle.provider, model_id=handle.model_id)
    return ModelRequest(model=model, messages=())


def suspended(handle: DeferredHandle) -> vendor.ModelResponse:
    """Make the vendor's form of a handle."""
    kept = cast("dict[str, Any]", decode_json(handle.data))
    return vendor.ModelResponse(
        parts=[],
        model_name=handle.model_id,
        provider_name=kept.get("name"),
        provider_url=kept.get("url"),
        provider_response_id=handle.id,
        provider_details=kept.get("details"),
        state="suspended",
    )
