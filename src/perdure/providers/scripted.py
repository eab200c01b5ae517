"""The scripted model: replies written beforehand, played through the `Models` port (PV-25, K57).

It is part of the product: it needs no key, no network and nothing beyond the standard library and
msgspec, so first runs, examples, benchmarks and tests all use it. A script is one of

- a list of replies, taken in order; a reply with `when` waits for a request whose newest text holds
  it, and `uses` says how often a reply may be taken;
- a function of the request, for scripts of any length: a request costs the same at turn 10,000;
- a file, or a recorded session (`providers.script_files`).

Invariants: every request is recorded before its reply is chosen; nothing is awaited, and so
nothing can be cancelled, but at a delay, a gate, and between the pieces of a chunked part.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Final, Literal, Self

import msgspec
from msgspec import UNSET, Raw, Struct

from perdure.errors import ProviderError, Rejected
from perdure.ports import Clock
from perdure.providers.script import (
    END,
    UNLIMITED,
    Deferred,
    Failure,
    Reply,
    Script,
    fail,
    frames_of,
    newest_text,
    say,
)
from perdure.records.codec import decode, encode, to_raw
from perdure.records.entries import ModelId
from perdure.records.frames import DeltaFrame, Frame, FrameReducer, parsed_call
from perdure.records.messages import (
    AssistantMessage,
    MessageError,
    Part,
    StopReason,
    ToolCallPart,
    Usage,
)
from perdure.records.models import (
    HANDLE_BYTES_MAX,
    DeferredHandle,
    ModelInfo,
    ModelOutcome,
    ModelRequest,
)

API: Final = "scripted"
"""The wire's name in messages and handles."""


def _settled(parts: Sequence[Part], request: ModelRequest) -> tuple[Part, ...]:
    """Give calls their ids, and let the strict parser judge raw argument text."""
    settled: list[Part] = []
    for index, part in enumerate(parts):
        if isinstance(part, ToolCallPart):
            if not part.call_id:
                name = f"call-{request.task_id}-{request.attempt}-{index}"
                part = msgspec.structs.replace(part, call_id=name)  # noqa: PLW2901
            if part.args is UNSET:
                part = parsed_call(part, part.args_text or "")  # noqa: PLW2901
        settled.append(part)
    return tuple(settled)


def _message(
    parts: tuple[Part, ...], model: ModelId, reply: Reply, error: MessageError | None = None
) -> AssistantMessage:
    has_calls = any(isinstance(part, ToolCallPart) for part in parts)
    stop: StopReason = reply.stop or ("toolUse" if has_calls else "stop")
    if error is not None:
        stop = "aborted" if error.code == "interrupted" else "error"
    return AssistantMessage(
        content=parts,
        api=API,
        model=model,
        stop=stop,
        stop_detail=UNSET if reply.stop_detail is None else reply.stop_detail,
        error=UNSET if error is None else error,
    )


class _Stream:
    """Play one reply: context manager, stream and iterator in one."""

    __slots__ = (
        "_at", "_ended", "_frames", "_last", "_left", "_models", "_parts", "_quick", "_reply",
        "_request",
    )  # fmt: skip

    def __init__(self, models: "ScriptedModels", request: ModelRequest) -> None:
        self._models = models
        self._request = request
        self._reply = _EMPTY
        self._parts: tuple[Part, ...] = ()
        self._frames: tuple[Frame, ...] = ()
        self._at = 0
        self._last = 0
        self._left = False
        self._ended = False
        self._quick = True

    async def __aenter__(self) -> Self:
        self._reply = reply = self._models.take(self._request)
        chunk = self._models.chunk if reply.chunk is None else reply.chunk
        if reply.deferred is None and reply.frames is None:
            self._parts = _settled(reply.parts, self._request)
            self._frames = frames_of(self._parts, chunk)
        elif reply.frames is not None:
            self._frames = reply.frames
            self._parts = reply.parts or _reduced(reply.frames).parts()
        self._last = len(self._frames)
        if reply.failure is not None and reply.failure.at >= 0:
            self._last = min(self._last, reply.failure.at)
        self._quick = reply.plays_straight and chunk == 0 and reply.frames is None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left = True

    def __aiter__(self) -> AsyncIterator[Frame]:
        return self

    async def __anext__(self) -> Frame:
        at = self._at
        if at >= self._last or self._left:
            raise StopAsyncIteration
        frame = self._frames[at]
        if not self._quick:
            await self._before(at, is_delta=isinstance(frame, DeltaFrame))
        self._at = at + 1
        return frame

    async def _before(self, at: int, *, is_delta: bool) -> None:
        reply = self._reply
        if is_delta and at and isinstance(self._frames[at - 1], DeltaFrame):
            await asyncio.sleep(0)  # so that an abort is honoured between the pieces of a part
        keys = (at, END) if at == len(self._frames) else (at,)
        delay = reply.delay_ms if is_delta else 0
        delay += sum(reply.delays_ms.get(key, 0) for key in keys)
        if delay:
            await self._models.sleep(delay)
        for key in keys:
            if key in reply.gates:
                await reply.gates[key]()
            if key in reply.raises:
                raise reply.raises[key]

    async def outcome(self) -> ModelOutcome:
        """Play what is left, then answer the reply, or raise what the script says."""
        reply = self._reply
        if self._left and (self._at < self._last or not (self._quick or self._ended)):
            closed = Failure(code="interrupted", message="the stream was closed before its end")
            raise self._error(closed, usage=reply.usage_early)
        async for _ in self:
            pass
        if not self._quick:
            await self._before(self._last, is_delta=False)
        self._ended = True
        if reply.failure is not None:
            raise self._error(reply.failure, usage=reply.usage or reply.usage_early)
        if reply.deferred is not None:
            return self._models.defer(reply, reply.deferred, self._request)
        message = _message(self._parts, self._request.model, reply)
        return ModelOutcome(result=message, usage=reply.usage)

    def _error(self, failure: Failure, *, usage: Usage | None) -> ProviderError:
        sent = self._frames[: self._at]
        if not sent:
            return failure.error(usage=usage)
        why = MessageError(code=failure.code, message=failure.message)
        parts = _reduced(sent).finished_parts()
        partial = _message(parts, self._request.model, self._reply, why)
        return failure.error(partial=partial, usage=usage)


def _reduced(frames: Sequence[Frame]) -> FrameReducer:
    reducer = FrameReducer()
    for frame in frames:
        reducer.add(frame)
    return reducer


class _Later(Struct, frozen=True, kw_only=True):
    """What a handle carries, so that another process can answer it."""

    polls: int
    polled: int = 0
    parts: tuple[Part, ...] | None = None
    usage: Usage | None = None
    stop: StopReason | None = None


_EMPTY: Final = Reply()


class ScriptedModels:
    """Models that answer from a script; see the module.

    Attributes:
        requests: every request, in order of arrival (empty with `record=False`).
        replies_used: how many replies were taken.
        polls: every handle that was polled.
        cancelled: every handle that was cancelled.
        chunk: characters a delta for replies that say nothing of it; 0 sends each part in one.
    """

    def __init__(
        self,
        script: Script,
        *,
        clock: Clock | None = None,
        provider: str = API,
        can: ModelInfo | None = None,
        chunk: int = 0,
        by: Literal["request", "transcript"] = "request",
        record: bool = True,
    ) -> None:
        """Take a script.

        Args:
            script: replies in order, or a function of the request.
            clock: what delays wait on; without one they wait on the event loop's time.
            provider: the one provider whose models this answers for.
            can: what `describe` says; the model's name in it is replaced.
            chunk: characters a delta, unless a reply says otherwise.
            by: how the next reply of a list is found: after the last one taken, or (`transcript`)
                at the number of assistant messages the request holds, which goes on in the right
                place in a new process.
            record: keep every request; long benchmarks turn it off.
        """
        self.requests: list[ModelRequest] = []
        self.replies_used = 0
        self.polls: list[DeferredHandle] = []
        self.cancelled: list[DeferredHandle] = []
        self.chunk = chunk
        self._answer = script if callable(script) else None
        self._replies: tuple[Reply, ...] = () if callable(script) else tuple(script)
        self._taken = [0] * len(self._replies)
        self._first = 0
        self._clock = clock
        self._provider = provider
        self._can = can
        self._by = by
        self._record = record
        self._waiting: dict[str, tuple[Reply, ModelRequest]] = {}
        self._polled: dict[str, int] = {}

    @property
    def replies(self) -> tuple[Reply, ...]:
        """Answer the replies of a list; a function has none."""
        return self._replies

    async def describe(self, model: ModelId) -> ModelInfo:
        """Say what the script's model can do; raises Rejected `invariant` for another provider."""
        if model.provider != self._provider:
            raise Rejected(
                "invariant",
                f"the provider {model.provider!r} of {str(model)!r} is unknown; "
                f"this script answers for {self._provider!r}",
                {"model": str(model), "known": [self._provider]},
            )
        if self._can is None:
            return ModelInfo(model=model, deferred=True)
        return msgspec.structs.replace(self._can, model=model)

    def stream(self, request: ModelRequest) -> _Stream:
        """Start one request."""
        return _Stream(self, request)

    async def poll(self, handle: DeferredHandle) -> ModelOutcome:
        """Answer a deferred reply once its pending polls are used up."""
        later = decode(handle.data, _Later)
        number = max(self._polled.get(handle.id, 0), later.polled) + 1
        self._polled[handle.id] = number
        self.polls.append(handle)
        reply, model = self._deferred_reply(handle, later)
        deferred = reply.deferred or Deferred()
        if number in deferred.gates:
            await deferred.gates[number]()
        if any(gone.id == handle.id for gone in self.cancelled):
            raise ProviderError("invalid_request", f"the request {handle.id!r} was cancelled")
        if number in deferred.failures:
            raise deferred.failures[number].error()
        if number <= later.polls:
            counted = to_raw(msgspec.structs.replace(later, polled=number))
            return ModelOutcome(result=msgspec.structs.replace(handle, data=counted))
        if reply.failure is not None:
            raise reply.failure.error(usage=reply.usage)
        return ModelOutcome(result=_message(reply.parts, model, reply), usage=reply.usage)

    async def cancel(self, handle: DeferredHandle) -> None:
        """Record the cancellation; a later poll of the handle fails."""
        self.cancelled.append(handle)

    async def close(self) -> None:
        """Hold nothing."""

    async def sleep(self, ms: int) -> None:
        """Wait on the injected clock, else on the event loop's time."""
        if self._clock is None:
            await asyncio.sleep(ms / 1000)
        else:
            await self._clock.sleep(ms)

    def take(self, request: ModelRequest) -> Reply:
        """Record a request and choose its reply; an exhausted script's reply is a failure."""
        if self._record:
            self.requests.append(request)
        if self._answer is not None:
            made = self._answer(request)
            reply = say(made) if isinstance(made, str) else made
        else:
            found = self._position(request)
            if found is None:
                return fail("invalid_request", message=self._exhausted(request))
            self._taken[found] += 1
            reply = self._replies[found]
        self.replies_used += 1
        return reply

    def _position(self, request: ModelRequest) -> int | None:
        if self._by == "transcript":
            at = sum(1 for message in request.messages if isinstance(message, AssistantMessage))
            return at if at < len(self._replies) else None
        while self._first < len(self._replies) and not self._usable(self._first):
            self._first += 1
        text: str | None = None
        for at in range(self._first, len(self._replies)):
            if self._usable(at):
                words = self._replies[at].when
                if words is None:
                    return at
                text = newest_text(request) if text is None else text
                if words in text:
                    return at
        return None

    def _usable(self, at: int) -> bool:
        uses = self._replies[at].uses
        return uses == UNLIMITED or self._taken[at] < uses

    def _exhausted(self, request: ModelRequest) -> str:
        left = sum(1 for at in range(len(self._replies)) if self._usable(at))
        why = f"; none of the {left} left matches {newest_text(request)[:200]!r}" if left else ""
        return f"the script is exhausted: {self.replies_used} replies used{why}"

    def defer(self, reply: Reply, deferred: Deferred, request: ModelRequest) -> ModelOutcome:
        """Make the handle of a deferred reply."""
        name = deferred.handle_id or f"deferred-{request.task_id}.{request.attempt}"
        settled = msgspec.structs.replace(reply, parts=_settled(reply.parts, request))
        self._waiting[name] = settled, request
        later = _Later(
            polls=deferred.polls, parts=settled.parts, usage=reply.usage, stop=reply.stop
        )
        if len(encode(later)) > HANDLE_BYTES_MAX // 2:  # too long: the reply is not carried along
            later = _Later(polls=deferred.polls)
        handle = DeferredHandle(
            provider=request.model.provider,
            model_id=request.model.model_id,
            api=API,
            id=name,
            expires_at_ms=UNSET if deferred.expires_at_ms is None else deferred.expires_at_ms,
            poll_after_ms=UNSET if deferred.poll_after_ms is None else deferred.poll_after_ms,
            data=Raw(encode(later)),
        )
        return ModelOutcome(result=handle, usage=reply.usage_early)

    def _deferred_reply(self, handle: DeferredHandle, later: _Later) -> tuple[Reply, ModelId]:
        model = ModelId(provider=handle.provider, model_id=handle.model_id)
        if handle.id in self._waiting:
            return self._waiting[handle.id][0], model
        if later.parts is None:
            raise ProviderError(
                "invalid_request",
                f"the request {handle.id!r} is not known here: its reply was too long for a handle",
            )
        return Reply(parts=later.parts, usage=later.usage, stop=later.stop), model
