"""Settling a generation: each outcome with everything that follows from it, in one commit (TK-10).

Every function here is one command. Each re-reads the task on the line first: a mark that landed
meanwhile wins, and then nothing but the aborted outcome is written (GN-09).
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from perdure.drive.context import TaskContext
from perdure.errors import ProviderError
from perdure.kinds.exchange import (
    after_cancellation,
    error_results,
    place_writes,
    record_usage,
    start_generation,
)
from perdure.kinds.inputs import fail_inputs, move_inputs, user_meta
from perdure.kinds.model_text import clean_error, clean_message
from perdure.kinds.queues import place, select, triggers
from perdure.kinds.refusals import RefusedPart, mark_refused
from perdure.kinds.request import Asked
from perdure.kinds.services import Services
from perdure.kinds.states import GenerationState, PostToolsState, ToolState
from perdure.line.command import Command
from perdure.records.addresses import Address, observed_window, settings_record, task_scope
from perdure.records.codec import decode, to_raw
from perdure.records.entries import EntryMeta, ModelId, repaired_meta
from perdure.records.messages import (
    AssistantMessage,
    AssistantPayload,
    MessageError,
    Part,
    Usage,
    UserMessage,
    UserPayload,
    estimated_tokens,
)
from perdure.records.seqs import Seq
from perdure.records.settings import GenerationSettings
from perdure.records.strict_json import NO_REPAIRS, Repairs
from perdure.records.tasks import Task
from perdure.records.usage import known_usage


class Answered(Struct, frozen=True, gc=False, kw_only=True):
    """A model's answer to one attempt; `goes_on` is what a hook wants to continue with."""

    asked: Asked
    settings: GenerationSettings
    message: AssistantMessage
    usage: Usage | None
    repaired: Repairs = NO_REPAIRS
    goes_on: tuple[UserMessage, ...] = ()


def generation_state(task: Task) -> GenerationState:
    """Decode a generation's state."""
    return decode(task.state_json, GenerationState)


def assistant_entry(
    tx: Command,
    task: Task,
    message: AssistantMessage,
    *,
    now_ms: int,
    asked: Asked | None = None,
    usage: Usage | None = None,
    repaired: Repairs = NO_REPAIRS,
) -> Seq:
    """Append an assistant entry with the facts of its request."""
    stamped = message if message.timestamp else msgspec.structs.replace(message, timestamp=now_ms)
    payload = AssistantPayload(message=stamped)
    facts: dict[str, Any] = {}
    if asked is not None:
        facts = {
            "request_as_of": asked.as_of,
            "prefix_version": asked.prefix_version,
            "fixed_tokens": asked.fixed_tokens,
        }
    size = context_tokens(usage)
    if size is not None:
        facts["context_tokens"] = size
    if repaired != NO_REPAIRS:
        facts["repaired"] = repaired_meta(repaired)
    return tx.insert_entry(
        task.conv_id,
        "assistant",
        EntryMeta(
            timestamp=now_ms,
            bytes=len(to_raw(payload)),
            tokens=estimated_tokens(message.content),
            stop=message.stop,
            model=message.model,
            **facts,
        ),
        payload,
        written_by=task.id,
    )


def context_tokens(usage: Usage | None) -> int | None:
    """Answer the size a provider reported: everything read and written once (D15, K25)."""
    known = known_usage(usage)
    if known is None or known.input is None or known.output is None:
        return None
    return known.input + known.output + (known.cache_read or 0) + (known.cache_write or 0)


async def settle_answer(ctx: TaskContext, services: Services, answered: Answered) -> None:
    """Settle a generation whose model answered, with or without calls."""

    async def build(tx: Command) -> None:
        task = await tx.task(ctx.task_id)
        if task.abort_requested is not UNSET:
            await _aborted(
                tx,
                task,
                services,
                partial=answered.message,
                asked=answered.asked,
                usage=answered.usage,
            )
        elif answered.message.calls:
            await _with_calls(tx, task, services, answered)
        else:
            await _final(tx, task, services, answered)

    await ctx.commit(build)


async def _with_calls(tx: Command, task: Task, services: Services, answered: Answered) -> None:
    """Write the entry, one tool a call in source order, one join, usage, done (GN-11)."""
    state = generation_state(task)
    message = answered.message
    entry = assistant_entry(
        tx,
        task,
        message,
        now_ms=services.clock.now_ms(),
        asked=answered.asked,
        usage=answered.usage,
        repaired=answered.repaired,
    )
    truncated = message.stop != "toolUse"
    offered = _offered(answered)
    sequential = answered.settings.tool_order == "sequential"
    tools: list[Seq] = []
    for index, call in enumerate(message.calls):
        tools.append(
            tx.insert_task(
                task.conv_id,
                "tool",
                ToolState(
                    v=1,
                    call_index=index,
                    call_id=call.call_id,
                    name=call.name,
                    offered=call.name in offered,
                ),
                status="truncated" if truncated else "planned",
                spawned_by=task.id,
                at_entry=entry,
                after=tools[-1:] if sequential else (),
            )
        )
    join = tx.insert_task(
        task.conv_id,
        "post_tools",
        PostToolsState(v=1, generation=task.id, inputs=state.inputs),
        status="pending",
        spawned_by=task.id,
        at_entry=entry,
        after=tools,
    )
    record_usage(
        tx, task, attempt=state.attempt, usage=answered.usage, model=answered.settings.model
    )
    tx.settle(
        task,
        "done",
        produced=entry,
        calls=tuple(tools),
        post_tools=join,
        **services.ledger.worked(task.id, state.worked_ms),
    )
    _retire(tx, task)


def _offered(answered: Answered) -> frozenset[str]:
    """Answer the offered tools: the captured ones, unless a hook edited them (TL-03)."""
    sent = answered.asked.tools_edited
    return frozenset(answered.settings.active_tools) if sent is None else sent


async def _final(tx: Command, task: Task, services: Services, answered: Answered) -> None:
    """Assistant entry, usage, generation done, and the queue's due items with their generation."""
    state = generation_state(task)
    now_ms = services.clock.now_ms()
    entry = assistant_entry(
        tx,
        task,
        answered.message,
        now_ms=now_ms,
        asked=answered.asked,
        usage=answered.usage,
        repaired=answered.repaired,
    )
    record_usage(
        tx, task, attempt=state.attempt, usage=answered.usage, model=answered.settings.model
    )
    tx.settle(task, "done", produced=entry, **services.ledger.worked(task.id, state.worked_ms))
    conversation = await tx.conversation(task.conv_id)
    items = select(conversation, "answer")
    if answered.goes_on and not triggers(items):
        await place(tx, conversation, select(conversation, "write_only"), written_by=None)
        await _continue(tx, task, services, answered.goes_on)
        _retire(tx, task)
        return
    await move_inputs(tx, state.inputs, "answered", task=task.id, answer=entry)
    if triggers(items):
        opened = await place(tx, conversation, items, written_by=None)
        await start_generation(tx, task.conv_id, services, inputs=opened)
    else:
        await place(tx, conversation, select(conversation, "write_only"), written_by=None)
    _retire(tx, task)


async def _continue(
    tx: Command, task: Task, services: Services, messages: tuple[UserMessage, ...]
) -> None:
    """Append a hook's message and go on with the same inputs, counted (D01, GN-14)."""
    state = generation_state(task)
    tx.insert_entry(
        task.conv_id,
        "user",
        user_meta(messages, services.clock.now_ms()),
        UserPayload(messages=messages),
        written_by=task.id,
    )
    await start_generation(tx, task.conv_id, services, inputs=state.inputs, yields=state.yields + 1)


async def settle_failure(
    ctx: TaskContext,
    services: Services,
    error: ProviderError,
    *,
    settings: GenerationSettings,
    asked: Asked | None = None,
    verdict: MessageError | None = None,
) -> None:
    """Fail a generation: usage, the partial kept for display, its inputs failed (GN-25, GN-42)."""

    async def build(tx: Command) -> None:
        task = await tx.task(ctx.task_id)
        partial = error.partial if isinstance(error.partial, AssistantMessage) else None
        repaired = NO_REPAIRS
        if partial is not None:
            partial, repaired = clean_message(partial)
            partial, hidden = services.secrets.message(partial)
            repaired += Repairs(secrets=hidden)
        usage = error.usage if isinstance(error.usage, Usage) else None
        if task.abort_requested is not UNSET:
            await _aborted(tx, task, services, partial=partial, asked=asked, usage=usage)
            return
        state = generation_state(task)
        why = clean_error(verdict or MessageError(code=error.code, message=error.message))
        why, _ = services.secrets.error(why)
        entry = _partial_entry(
            tx,
            task,
            services,
            partial,
            stop="aborted" if why.code == "interrupted" else "error",
            error=why,
            asked=asked,
            usage=usage,
            repaired=repaired,
        )
        record_usage(tx, task, attempt=state.attempt, usage=usage, model=settings.model)
        if error.window is not None:
            await _remember_window(tx, error.window, observed_window(settings.model).address())
        tx.settle(
            task,
            "failed",
            error=why.code,
            unset=("not_before",),
            **({"produced": entry} if entry is not None else {}),
            **services.ledger.worked(task.id, state.worked_ms),
        )
        await fail_inputs(
            tx, state.inputs, task_id=task.id, code=why.code, message=why.message, partial=entry
        )
        await place_writes(tx, task)
        _retire(tx, task)

    await ctx.commit(build)


async def _remember_window(tx: Command, window: int, address: Address) -> None:
    """Keep the smaller of an observed window and what was observed before (GN-48)."""
    known = await tx.get_value(address, None)
    if known is None or window < known:
        tx.set_value(address, window)


async def settle_retry(
    ctx: TaskContext,
    services: Services,
    error: ProviderError,
    *,
    settings: GenerationSettings,
    not_before: int,
    refused: RefusedPart | None = None,
) -> None:
    """Put a generation in retry_wait: usage and the stored wait, on the same task (GN-29).

    `refused` is a part the provider will not take; the mark is in this commit, and from the next
    attempt on the projection goes without it (PV-21, K15).
    """
    marks: list[tuple[RefusedPart, dict[str, str]]] = []

    async def build(tx: Command) -> None:
        task = await tx.task(ctx.task_id)
        state = generation_state(task)
        usage = error.usage if isinstance(error.usage, Usage) else None
        if task.abort_requested is not UNSET:
            await _aborted(tx, task, services, partial=None, usage=usage)
            return
        if refused is not None:
            marks.append((refused, await mark_refused(tx, refused)))
        record_usage(tx, task, attempt=state.attempt, usage=usage, model=settings.model)
        tx.patch(
            task,
            status="retry_wait",
            attempt=state.attempt + 1,
            not_before=not_before,
            error=error.code,
            poll=0,
            unset=("deferred", "request_as_of"),
            **services.ledger.worked(task.id, state.worked_ms),
        )

    await ctx.commit(build, shows=ctx.shown("reset", None))
    for part, reasons in marks:
        services.projections.refuse(part.entry, part.part, reasons)


async def settle_aborted(
    ctx: TaskContext,
    services: Services,
    *,
    partial: AssistantMessage | None,
    asked: Asked | None = None,
    usage: Usage | None = None,
) -> None:
    """Settle a marked generation with what had arrived; nothing follows (GN-34)."""

    async def build(tx: Command) -> None:
        task = await tx.task(ctx.task_id)
        await _aborted(tx, task, services, partial=partial, asked=asked, usage=usage)

    await ctx.commit(build)


def interrupted_message(parts: Sequence[Part], settings: GenerationSettings) -> AssistantMessage:
    """Make the message of a stream that was cut off, from the parts its frames brought."""
    return AssistantMessage(content=tuple(parts), api="", model=settings.model, stop="aborted")


async def settle_interrupted(
    ctx: TaskContext, services: Services, *, parts: Sequence[Part], settings: GenerationSettings
) -> None:
    """Publish the partial of an interrupted stream and fail, without another request (D12)."""
    await settle_failure(
        ctx,
        services,
        ProviderError(
            "interrupted",
            "the request was interrupted and is not tried again",
            partial=interrupted_message(parts, settings),
        ),
        settings=settings,
    )


async def _aborted(
    tx: Command,
    task: Task,
    services: Services,
    *,
    partial: AssistantMessage | None,
    asked: Asked | None = None,
    usage: Usage | None = None,
) -> None:
    state = generation_state(task)
    entry = _partial_entry(
        tx, task, services, partial, stop="aborted", error=None, asked=asked, usage=usage
    )
    record_usage(
        tx,
        task,
        attempt=state.attempt,
        usage=usage,
        model=await _model_of(tx, state) if usage is not None else None,
    )
    produced: dict[str, Any] = {"produced": entry} if entry is not None else {}
    tx.settle(task, "aborted", **produced, **services.ledger.worked(task.id, state.worked_ms))
    await move_inputs(
        tx, state.inputs, "aborted", task=task.id, partial=UNSET if entry is None else entry
    )
    _retire(tx, task)
    await after_cancellation(tx, task, services)


async def _model_of(tx: Command, state: GenerationState) -> ModelId:
    raw = await tx.get_raw(settings_record(state.settings))
    assert raw is not None
    return decode(raw, GenerationSettings).model


def _partial_entry(
    tx: Command,
    task: Task,
    services: Services,
    partial: AssistantMessage | None,
    *,
    stop: str,
    error: MessageError | None,
    asked: Asked | None,
    usage: Usage | None,
    repaired: Repairs = NO_REPAIRS,
) -> Seq | None:
    """Keep what arrived: one entry with stop error or aborted, one error result a call (GN-45)."""
    if partial is None or not partial.content:
        return None
    kept = msgspec.structs.replace(partial, stop=stop, error=UNSET if error is None else error)
    now_ms = services.clock.now_ms()
    entry = assistant_entry(
        tx, task, kept, now_ms=now_ms, asked=asked, usage=usage, repaired=repaired
    )
    error_results(
        tx,
        task,
        entry,
        kept.content,
        text="not executed: the reply that asked for this call was not finished",
        now_ms=now_ms,
    )
    return entry


def _retire(tx: Command, task: Task) -> None:
    tx.retire_scope(task_scope(task.id))
