"""A generation: one answer of a model, its retries and deferred polls included (seed 3.9).

It publishes a response together with tool work and a join, or the normal end of a turn; it never
waits for tools. Statuses: pending, retry_wait and deferred start; streaming and polling are in
flight; done, failed and aborted are terminal (GN-02).
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from msgspec import UNSET

from perdure.drive.context import TaskContext
from perdure.drive.kind import NO_HOLD, EndsBy, Hold, Slot
from perdure.errors import Interrupted, PerdureError, ProviderError
from perdure.kinds.exchange import record_usage
from perdure.kinds.polling import poll_delay_ms
from perdure.kinds.pump import Pump
from perdure.kinds.refusals import refused_part_of
from perdure.kinds.request import Asked, build_request
from perdure.kinds.services import Services, captured
from perdure.kinds.settlement import (
    Answered,
    generation_state,
    settle_aborted,
    settle_answer,
    settle_failure,
    settle_interrupted,
    settle_retry,
)
from perdure.kinds.states import GenerationState
from perdure.line.command import Command, WorkingCommand
from perdure.line.facts import TaskFacts
from perdure.records.addresses import FRAMES
from perdure.records.codec import decode
from perdure.records.conversations import ConversationState
from perdure.records.frames import DeltaFrame, Frame, FrameBatch, FrameReducer
from perdure.records.messages import MessageError, Part, Usage
from perdure.records.models import DeferredHandle, ModelOutcome, ModelRequest
from perdure.records.retry import TryAgain, as_provider_error, decide_retry
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage
from perdure.records.settings import GenerationSettings
from perdure.records.tasks import Role, Task

FRAMES_PAGE = 1_000
"""Batches of frames read at a time (WS-12)."""

DEFERRED_LIFE_MS = 24 * 3_600_000
"""How long deferred work is polled when its handle names no end (D14)."""


class Generation:
    """The generation kind."""

    facts: TaskFacts = TaskFacts(
        name="generation",
        roles={
            "pending": Role.START,
            "retry_wait": Role.START,
            "deferred": Role.START,
            "streaming": Role.INFLIGHT,
            "polling": Role.INFLIGHT,
            "done": Role.TERMINAL,
            "failed": Role.TERMINAL,
            "aborted": Role.TERMINAL,
        },
        initials=frozenset({"pending"}),
        transitions={
            "pending": frozenset({"streaming", "failed", "aborted"}),
            "retry_wait": frozenset({"streaming", "failed", "aborted"}),
            "streaming": frozenset({"retry_wait", "deferred", "done", "failed", "aborted"}),
            "deferred": frozenset({"polling", "aborted"}),
            "polling": frozenset({"deferred", "retry_wait", "done", "failed", "aborted"}),
        },
        state=GenerationState,
        exchange_root=True,
        open_request=frozenset({"streaming", "polling"}),
    )
    slots: Mapping[str, Slot] = MappingProxyType(
        {
            "pending": "generations",
            "retry_wait": "generations",
            "deferred": "generations",
            "streaming": "generations",
            "polling": "generations",
        }
    )
    ends_by: Mapping[str, EndsBy] = MappingProxyType({})

    def __init__(self, services: Services) -> None:
        """Take the host's services."""
        self._services = services

    def hold(self, task: Task) -> Hold:
        """Answer the stored wait, and the poll permit deferred work needs (SC-08)."""
        if task.status == "pending":
            return NO_HOLD
        state = generation_state(task)
        return Hold(
            not_before_ms=None if state.not_before is UNSET else state.not_before,
            needs_poll=task.status == "deferred",
        )

    async def effect(self, task: Task, ctx: TaskContext) -> None:
        """Send one request, or poll once for a deferred answer."""
        state = generation_state(task)
        settings = await captured(ctx, self._services, state.settings)
        if task.status == "deferred":
            await self._poll(ctx, state, settings)
            return
        conversation = await self._commit_intent(ctx)
        if conversation is None:
            return
        await self._request(ctx, state, settings, conversation)

    async def recover(self, task: Task, ctx: TaskContext) -> None:
        """Take up a cut-off request: back to deferred, another attempt, or the partial (D12)."""
        state = generation_state(task)
        settings = await captured(ctx, self._services, state.settings)
        if task.status == "polling":
            assert state.deferred is not UNSET
            await self._still_deferred(ctx, state, state.deferred)
            return
        parts = await self._stored_parts(ctx, state)
        error = ProviderError("interrupted", "the process ended while the request was in flight")
        if settings.interrupted == "publish" and parts:
            await settle_interrupted(ctx, self._services, parts=parts, settings=settings)
            return
        decision = self._decide(ctx, state, settings, error)
        if isinstance(decision, TryAgain):
            await self._retry(ctx, settings, error, decision)
        else:
            await settle_interrupted(ctx, self._services, parts=parts, settings=settings)

    async def abort(self, task: Task, ctx: TaskContext) -> None:
        """Settle a marked generation with what its stream had brought (GN-34, GN-35)."""
        state = generation_state(task)
        parts: tuple[Part, ...] = ()
        if task.status == "streaming":
            parts = await self._stored_parts(ctx, state)
        if state.deferred is not UNSET:
            await self._cancel_deferred(ctx, state.deferred)
        await settle_aborted(ctx, self._services, parts=parts)

    # One request.

    async def _commit_intent(self, ctx: TaskContext) -> ConversationState | None:
        """Commit streaming with the boundary the request reads; None when it was marked (GN-06)."""
        found: list[ConversationState] = []

        async def build(tx: Command) -> None:
            task = await tx.task(ctx.task_id)
            if task.abort_requested is not UNSET:
                return
            conversation = await tx.conversation(ctx.conv_id)
            found.append(conversation)
            tx.patch(
                task,
                status="streaming",
                request_as_of=conversation.commit_end,
                unset=("not_before", "error"),
            )

        await ctx.commit(build)
        return found[0] if found else None

    async def _request(
        self,
        ctx: TaskContext,
        state: GenerationState,
        settings: GenerationSettings,
        conversation: ConversationState,
    ) -> None:
        asked: Asked | None = None
        try:
            asked = await build_request(
                ctx, self._services, settings, conversation, attempt=state.attempt
            )
            outcome = await self._stream(ctx, state, asked.request)
        except Interrupted:
            return
        except ProviderError as error:
            await self._failed(ctx, state, settings, error, asked=asked)
            return
        except PerdureError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a provider raises is a classified failure (K54, FT-07)
            failure = as_provider_error(error)
            await self._failed(ctx, state, settings, failure, asked=asked)
            return
        await self._settle(ctx, state, settings, asked, outcome)

    async def _stream(
        self, ctx: TaskContext, state: GenerationState, request: ModelRequest
    ) -> ModelOutcome:
        frames = _Frames(ctx, state)
        pump = Pump(frames.flush)
        models = self._services.models

        async def read() -> ModelOutcome:
            async with models.stream(request) as stream:
                async for frame in stream:
                    pump.arrived(frames.add(frame))
                return await stream.outcome()

        if ctx.signal.reason is not None:
            raise Interrupted(ctx.signal.reason)
        with self._services.telemetry.span("ai.request", model=str(request.model)):
            try:
                return await pump.join(ctx, ctx.start(read()))
            except Interrupted as interruption:
                if interruption.reason == "abort":
                    await frames.flush()
                raise

    async def _settle(
        self,
        ctx: TaskContext,
        state: GenerationState,
        settings: GenerationSettings,
        asked: Asked,
        outcome: ModelOutcome,
    ) -> None:
        if isinstance(outcome.result, DeferredHandle):
            await self._deferred(ctx, state, outcome.result, outcome.usage, settings)
            return
        await settle_answer(
            ctx,
            self._services,
            Answered(asked=asked, settings=settings, message=outcome.result, usage=outcome.usage),
        )

    async def _failed(
        self,
        ctx: TaskContext,
        state: GenerationState,
        settings: GenerationSettings,
        error: ProviderError,
        *,
        asked: Asked | None,
    ) -> None:
        """Go without a refused part, retry within the captured policy, or fail (GN-25, PV-21)."""
        refused = None if asked is None else refused_part_of(error, asked)
        if refused is not None and state.attempt < settings.retry.max_attempts:
            await settle_retry(
                ctx,
                self._services,
                error,
                settings=settings,
                not_before=self._services.clock.now_ms(),
                refused=refused,
            )
            return
        decision = self._decide(ctx, state, settings, error)
        if isinstance(decision, TryAgain):
            await self._retry(ctx, settings, error, decision)
            return
        await settle_failure(
            ctx, self._services, error, settings=settings, asked=asked, verdict=decision
        )

    def _decide(
        self,
        ctx: TaskContext,
        state: GenerationState,
        settings: GenerationSettings,
        error: ProviderError,
    ) -> TryAgain | MessageError:
        return decide_retry(
            error,
            settings.retry,
            session_id=self._services.session_id,
            task_id=ctx.task_id,
            attempt=state.attempt,
        )

    async def _retry(
        self,
        ctx: TaskContext,
        settings: GenerationSettings,
        error: ProviderError,
        decision: TryAgain,
    ) -> None:
        await settle_retry(
            ctx,
            self._services,
            error,
            settings=settings,
            not_before=self._services.clock.now_ms() + decision.delay_ms,
        )
        ctx.emit("reset", None)

    async def _stored_parts(self, ctx: TaskContext, state: GenerationState) -> tuple[Part, ...]:
        """Rebuild what the current attempt had brought, from bounded pages (WS-11, WS-12)."""
        reducer = FrameReducer()
        address = ctx.scope.list(FRAMES, frames_key(state))
        after: Seq | None = None
        while True:
            page = await ctx.elements(address, ListPage(after=after, limit=FRAMES_PAGE))
            for element in page:
                for frame in decode(element.value_json, FrameBatch).frames:
                    reducer.add(frame)
            if len(page) < FRAMES_PAGE:
                return reducer.finished_parts()
            after = page[-1].seq

    # Deferred work.

    async def _deferred(
        self,
        ctx: TaskContext,
        state: GenerationState,
        handle: DeferredHandle,
        usage: Usage | None,
        settings: GenerationSettings,
    ) -> None:
        """Store the handle before anybody polls it; a barrier (GN-27, BR-02)."""
        from_now = poll_delay_ms(handle, 0)

        async def build(tx: Command) -> None:
            task = await tx.task(ctx.task_id)
            record_usage(tx, task, attempt=state.attempt, usage=usage, model=settings.model)
            now_ms = self._services.clock.now_ms()
            kept = handle
            if kept.expires_at_ms is UNSET:
                kept = msgspec.structs.replace(kept, expires_at_ms=now_ms + DEFERRED_LIFE_MS)
            tx.patch(task, status="deferred", deferred=kept, poll=0, not_before=now_ms + from_now)

        await ctx.commit(build, barrier=True)

    async def _still_deferred(
        self, ctx: TaskContext, state: GenerationState, handle: DeferredHandle
    ) -> None:
        wait = poll_delay_ms(handle, state.poll)
        await ctx.patch(
            status="deferred", not_before=self._services.clock.now_ms() + wait, barrier=True
        )

    async def _poll(
        self, ctx: TaskContext, state: GenerationState, settings: GenerationSettings
    ) -> None:
        """Commit polling and the raised count, then fetch once (GN-28)."""
        assert state.deferred is not UNSET
        handle = state.deferred
        if not await ctx.patch(status="polling", poll=state.poll + 1, unset=("not_before",)):
            return
        state = generation_state(await ctx.task())
        now_ms = self._services.clock.now_ms()
        if handle.expires_at_ms is not UNSET and now_ms >= handle.expires_at_ms:
            expired = ProviderError("deferred_expired", "the deferred answer expired unfetched")
            await settle_failure(ctx, self._services, expired, settings=settings)
            return
        try:
            outcome = await ctx.outside(self._services.models.poll(handle))
        except Interrupted:
            return
        except ProviderError as error:
            if error.partial is None and error.status is None:
                await self._still_deferred(ctx, state, handle)
            else:
                await self._failed(ctx, state, settings, error, asked=None)
            return
        except PerdureError:
            raise
        except Exception as error:  # noqa: BLE001 - a failed fetch says nothing about the remote work (D14)
            self._services.report(error, ctx.task_id)
            await self._still_deferred(ctx, state, handle)
            return
        if isinstance(outcome.result, DeferredHandle):
            await self._still_deferred(ctx, state, outcome.result)
            return
        conversation = ctx.line.residency.conversation(ctx.conv_id)
        asked = Asked(
            request=ModelRequest(model=settings.model, messages=()),
            as_of=Seq(0) if state.request_as_of is UNSET else state.request_as_of,
            prefix_version=0 if conversation is None else conversation.prefix_version,
            fixed_tokens=0,
        )
        await self._settle(ctx, state, settings, asked, outcome)

    async def _cancel_deferred(self, ctx: TaskContext, handle: DeferredHandle) -> None:
        """Try once to cancel remote work, for 5 seconds; its error is reported only (D14)."""
        try:
            async with asyncio.timeout(5):
                await self._services.models.cancel(handle)
        except Exception as error:  # noqa: BLE001 - the abort completes whatever the provider says
            self._services.report(error, ctx.task_id)


def frames_key(state: GenerationState) -> str:
    """Answer the key of the current attempt's frames (GN-38)."""
    return f"{state.attempt}.{state.poll}"


class _Frames:
    """Gather a stream's frames and store them in batches."""

    def __init__(self, ctx: TaskContext, state: GenerationState) -> None:
        self._ctx = ctx
        self._address = ctx.scope.list(FRAMES, frames_key(state))
        self._gathered: list[Frame] = []

    def add(self, frame: Frame) -> int:
        """Gather a frame, merging text into the delta before it; answers its size in bytes."""
        if isinstance(frame, DeltaFrame):
            last = self._gathered[-1] if self._gathered else None
            if isinstance(last, DeltaFrame) and last.part_index == frame.part_index:
                frame = DeltaFrame(
                    part_index=frame.part_index, delta_text=last.delta_text + frame.delta_text
                )
                self._gathered[-1] = frame
            else:
                self._gathered.append(frame)
            return len(frame.delta_text)
        self._gathered.append(frame)
        return 64

    async def flush(self) -> None:
        """Store and then show what was gathered (WS-08)."""
        if not self._gathered:
            return
        batch = FrameBatch(frames=tuple(self._gathered))
        self._gathered.clear()

        def build(tx: WorkingCommand) -> None:
            tx.append_list(self._address, batch)

        await self._ctx.commit_working(build)
        self._ctx.emit("frame", batch)
