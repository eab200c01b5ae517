"""A generation: one answer of a model, its retries and deferred polls included (seed 3.9).

It publishes a response together with tool work and a join, or the normal end of a turn; it never
waits for tools. Statuses: pending, retry_wait and deferred start; streaming and polling are in
flight; done, failed and aborted are terminal (GN-02).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from perdure.drive.context import TaskContext
from perdure.drive.kind import NO_HOLD, EndsBy, Hold, Slot
from perdure.errors import Interrupted, PerdureError, ProviderError, Rejected, StrayCancellation
from perdure.kinds.budgets import Allowance, Watch, afford, described, estimate_of
from perdure.kinds.exchange import record_usage
from perdure.kinds.hook_points import after_response, before_request, on_yield
from perdure.kinds.polling import cancel_deferred, fetch_failed, poll_delay_ms
from perdure.kinds.pump import Pump
from perdure.kinds.queues import select, triggers
from perdure.kinds.refusals import refused_part_of
from perdure.kinds.request import Asked, build_request, fetched
from perdure.kinds.services import Services, captured
from perdure.kinds.settlement import (
    Answered,
    generation_state,
    interrupted_message,
    settle_aborted,
    settle_answer,
    settle_failure,
    settle_interrupted,
    settle_retry,
)
from perdure.kinds.states import GenerationState
from perdure.kinds.streaming import Frames, Reply, RequestSpan, cleaned, reduced_reply, stored_parts
from perdure.line.buffer import CommittedReads
from perdure.line.command import Command
from perdure.line.facts import TaskFacts
from perdure.records.budgets import Reached
from perdure.records.conversations import ConversationState
from perdure.records.messages import AssistantMessage, MessageError, Usage, UserMessage
from perdure.records.models import DeferredHandle, ModelOutcome
from perdure.records.retry import TryAgain, as_provider_error, decide_retry
from perdure.records.scratch import GenerationScratch
from perdure.records.seqs import Seq
from perdure.records.settings import GenerationSettings
from perdure.records.tasks import Role, Task

DEFERRED_LIFE_MS: Final = 24 * 3_600_000
"""How long deferred work is polled when its handle names no end (D14)."""


class Intent(Struct, frozen=True, kw_only=True):
    """What a request reads, and what its budgets let it spend."""

    conversation: ConversationState
    allowance: Allowance


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
        intent = await self._commit_intent(ctx, settings)
        if isinstance(intent, Reached):
            error = ProviderError("budget", intent.sentence)
            await settle_failure(ctx, self._services, error, settings=settings)
        elif intent is not None:
            await self._request(ctx, state, settings, intent)

    async def recover(self, task: Task, ctx: TaskContext) -> None:
        """Take up a cut-off request: back to deferred, another attempt, or the partial (D12)."""
        state = generation_state(task)
        settings = await captured(ctx, self._services, state.settings)
        if task.status == "polling":
            assert state.deferred is not UNSET
            await self._still_deferred(ctx, state, state.deferred)
            return
        parts = await stored_parts(ctx, attempt=state.attempt, poll=state.poll)
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
        partial: AssistantMessage | None = None
        if task.status == "streaming":
            settings = await captured(ctx, self._services, state.settings)
            parts = await stored_parts(ctx, attempt=state.attempt, poll=state.poll)
            partial = interrupted_message(parts, settings)
        if state.deferred is not UNSET:
            await cancel_deferred(ctx, self._services, state.deferred)
        await settle_aborted(ctx, self._services, partial=partial)

    async def reduce(self, task: Task, reads: CommittedReads) -> GenerationScratch | None:
        """Answer the reply so far while it streams (D26)."""
        if task.status != "streaming":
            return None
        state = generation_state(task)
        return await reduced_reply(reads, task.id, attempt=state.attempt, poll=state.poll)

    # One request.

    async def _commit_intent(
        self, ctx: TaskContext, settings: GenerationSettings
    ) -> Intent | Reached | None:
        """Commit streaming, with the boundary to read and what may be spent (GN-06, BG-05).

        None when it was marked, or waits behind an approval; a limit when the input ends here.
        """
        services = self._services
        info = await described(ctx, services, settings)
        found: list[Intent | Reached] = []

        async def build(tx: Command) -> None:
            task = await tx.task(ctx.task_id)
            if task.abort_requested is not UNSET:
                return
            conversation = await tx.conversation(ctx.conv_id)
            held = ctx.line.residency
            estimate = (
                None if info is None else estimate_of(services, held, settings, conversation, info)
            )
            allowance = await afford(tx, services, task, estimate)
            if isinstance(allowance, Reached):
                found.append(allowance)
            elif allowance is not None:
                found.append(Intent(conversation=conversation, allowance=allowance))
                self._stream_from(tx, task, conversation, allowance)

        await ctx.commit(build)
        return found[0] if found else None

    def _stream_from(
        self, tx: Command, task: Task, conversation: ConversationState, allowance: Allowance
    ) -> None:
        unset = ["not_before", "error"]
        facts: dict[str, Any] = {"request_as_of": conversation.commit_end}
        if allowance.reservation is not None:
            facts["reserved"] = allowance.reservation
        elif generation_state(task).reserved is not UNSET:
            unset.append("reserved")
        tx.patch(task, status="streaming", unset=unset, **facts)

    async def _request(
        self,
        ctx: TaskContext,
        state: GenerationState,
        settings: GenerationSettings,
        intent: Intent,
    ) -> None:
        asked: Asked | None = None
        reply: Reply | None = None
        watch = Watch(intent.allowance.time_limit)
        try:
            asked = await build_request(
                ctx,
                self._services,
                settings,
                intent.conversation,
                attempt=state.attempt,
                output_limit=intent.allowance.output_limit,
            )
            asked = await before_request(ctx, self._services, await ctx.task(), asked)
            ctx.check_signal()
            reply = Reply(self._services.models, asked.request, self._services.secrets)
            outcome = await self._stream(ctx, state, reply, watch)
        except Interrupted as interruption:
            if interruption.reason == "abort" and reply is not None:
                await self._cut_off(ctx, asked, reply)
            return
        except ProviderError as error:
            await self._failed(ctx, state, settings, error, asked=asked)
            return
        except StrayCancellation as error:
            failure = await self._cancelled(error, watch, reply)
            await self._failed(ctx, state, settings, failure, asked=asked)
            return
        except PerdureError:
            raise
        except Exception as error:  # noqa: BLE001 - provider stream: whatever it raises is a classified failure (FT-07)
            failure = as_provider_error(error)
            await self._failed(ctx, state, settings, failure, asked=asked)
            return
        await self._settle(ctx, state, settings, asked, outcome)

    async def _stream(
        self, ctx: TaskContext, state: GenerationState, reply: "Reply", watch: Watch
    ) -> ModelOutcome:
        frames = Frames(ctx, attempt=state.attempt, poll=state.poll)
        pump = Pump(frames.flush)
        with RequestSpan(ctx, reply.request.model, attempt=state.attempt) as span:
            arrived = span.hears(lambda one: pump.arrived(frames.add(one)))
            call = ctx.start(reply.read(arrived))
            watch.over(ctx, call)
            outcome = await pump.join(ctx, call)
            span.ended(outcome)
            return outcome

    async def _cancelled(
        self, error: StrayCancellation, watch: Watch, reply: "Reply | None"
    ) -> ProviderError:
        """Say what a cancelled stream failed with; its budget's time keeps what came (BG-09)."""
        if watch.fired is None or reply is None:
            return ProviderError("interrupted", str(error))
        partial, usage = await reply.so_far()
        return ProviderError("budget", watch.fired.sentence, partial=partial, usage=usage)

    async def _cut_off(self, ctx: TaskContext, asked: Asked | None, reply: "Reply") -> None:
        """Settle a stream that an abort ended, with the usage its provider had reported (PV-12)."""
        partial, usage = await reply.so_far()
        await settle_aborted(ctx, self._services, partial=partial, asked=asked, usage=usage)

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
        message = outcome.result
        await settle_answer(
            ctx,
            self._services,
            Answered(
                asked=asked,
                settings=settings,
                message=message,
                usage=outcome.usage,
                repaired=outcome.repaired,
                goes_on=await self._yielded(ctx, state, message),
            ),
        )
        generation = await ctx.task()
        if generation.status == "done":
            await after_response(ctx, self._services, generation, message)

    async def _yielded(
        self, ctx: TaskContext, state: GenerationState, message: AssistantMessage
    ) -> tuple[UserMessage, ...]:
        """Ask on_yield whether a final answer ends the run, when nothing is queued (GN-14).

        A signal drops what was decided; the settlement sees what it means (HK-12).
        """
        if message.calls or state.yields >= self._services.yields_max:
            return ()
        conversation = ctx.line.residency.conversation(ctx.conv_id)
        if conversation is not None and triggers(select(conversation, "answer")):
            return ()
        try:
            return await on_yield(ctx, self._services, await ctx.task(), message)
        except Interrupted:
            return ()

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
            tx.patch(
                task,
                status="deferred",
                deferred=self._ending(handle),
                poll=0,
                not_before=self._services.clock.now_ms() + from_now,
                **self._services.ledger.worked(task.id, state.worked_ms),
            )

        await ctx.commit(build, barrier=True, shows=ctx.shown("reset", None))

    async def _still_deferred(
        self, ctx: TaskContext, state: GenerationState, handle: DeferredHandle
    ) -> None:
        """Wait for the next poll, longer each time; a handle with a new id starts over (D14)."""
        assert state.deferred is not UNSET
        facts: dict[str, Any] = {}
        polls = state.poll
        is_new = handle.id != state.deferred.id
        if is_new:
            polls = facts["poll"] = 0
        if handle != state.deferred:
            facts["deferred"] = self._ending(handle, state.deferred)
        wait = poll_delay_ms(handle, polls)
        await ctx.patch(
            status="deferred",
            not_before=self._services.clock.now_ms() + wait,
            barrier=is_new,
            **facts,
            **self._services.ledger.worked(ctx.task_id, state.worked_ms),
        )

    def _ending(
        self, handle: DeferredHandle, before: DeferredHandle | None = None
    ) -> DeferredHandle:
        """Answer the handle with the time it is given up, kept from the one before it (D14)."""
        if handle.expires_at_ms is not UNSET:
            return handle
        ends: int | UnsetType = UNSET if before is None else before.expires_at_ms
        if ends is UNSET:
            ends = self._services.clock.now_ms() + DEFERRED_LIFE_MS
        return msgspec.structs.replace(handle, expires_at_ms=ends)

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
            with RequestSpan(ctx, settings.model, attempt=state.attempt, poll=state.poll) as span:
                found = await ctx.outside(self._services.models.poll(handle))
                outcome = cleaned(found, self._services.secrets)
                span.ended(outcome)
        except Interrupted:
            return
        except Exception as error:  # noqa: BLE001 - provider poll: whatever it raises is a classified failure (FT-07)
            await self._unfetched(ctx, state, settings, error)
            return
        if isinstance(outcome.result, DeferredHandle):
            await self._still_deferred(ctx, state, outcome.result)
            return
        conversation = ctx.line.residency.conversation(ctx.conv_id)
        as_of = Seq(0) if state.request_as_of is UNSET else state.request_as_of
        asked = fetched(settings, conversation, as_of=as_of)
        await self._settle(ctx, state, settings, asked, outcome)

    async def _unfetched(
        self,
        ctx: TaskContext,
        state: GenerationState,
        settings: GenerationSettings,
        error: Exception,
    ) -> None:
        """Poll again when the fetch failed, for the remote work may still finish (D14).

        What the remote work itself ended with, or a handle nobody knows any more, is final for
        this request and goes the way of every failed one.
        """
        if isinstance(error, Rejected):
            error = ProviderError("no_model", error.message)
        if isinstance(error, ProviderError) and not fetch_failed(error):
            await self._failed(ctx, state, settings, error, asked=None)
            return
        self._services.report(error, ctx.task_id)
        assert state.deferred is not UNSET
        await self._still_deferred(ctx, state, state.deferred)
