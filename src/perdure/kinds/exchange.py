"""Exchange policy: how a chain goes on and how it ends, as plain functions over a command.

A generation's settlement creates tools and one join; the join's settlement creates the next
generation or ends the run. Whatever follows from an outcome is written in the commit of that
outcome (TK-10); no later pass adds it.
"""

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from perdure.kinds.queues import place, select
from perdure.kinds.services import Services, capture_settings
from perdure.kinds.states import GenerationState
from perdure.line.command import Command
from perdure.records.addresses import USAGE
from perdure.records.codec import to_raw
from perdure.records.conversations import InboxItem
from perdure.records.entries import EntryMeta, ModelId, Outcome, repaired_meta
from perdure.records.messages import (
    Part,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    ToolResultPayload,
    Usage,
    UsageElement,
    estimated_tokens,
)
from perdure.records.seqs import Seq
from perdure.records.strict_json import NO_REPAIRS, Repairs
from perdure.records.tasks import Task
from perdure.records.usage import known_usage


async def start_generation(
    tx: Command,
    conv_id: Seq,
    services: Services,
    *,
    inputs: Sequence[Seq],
    yields: int = 0,
    model: ModelId | None = None,
) -> Seq:
    """Create a generation with settings captured now, owing an answer to `inputs` (GN-05).

    `model` is the one this same command writes, which its reads cannot see yet.
    """
    key = await capture_settings(tx, conv_id, services, model=model)
    return tx.insert_task(
        conv_id,
        "generation",
        GenerationState(v=1, settings=key, inputs=tuple(inputs), yields=yields),
        status="pending",
    )


def record_usage(
    tx: Command, task: Task, *, attempt: int, usage: Usage | None, model: ModelId | None
) -> None:
    """Append what an attempt reported, in the commit of its outcome (US-01, US-04).

    What cannot be so is not known: a bad figure neither fails the outcome nor counts as zero.
    """
    known = known_usage(usage)
    if known is None:
        return
    tx.append_list(
        USAGE.address(),
        UsageElement(
            v=1,
            task=task.id,
            conv_id=task.conv_id,
            attempt=attempt,
            kind="report",
            model=UNSET if model is None else model,
            input=known.input,
            output=known.output,
            cache_read=known.cache_read,
            cache_write=known.cache_write,
            reasoning=known.reasoning,
            cost=known.cost,
        ),
    )


def result_entry(
    tx: Command,
    *,
    task: Task,
    answers: Seq,
    call_index: int,
    message: ToolResultMessage,
    outcome: Outcome,
    now_ms: int,
    repaired: Repairs = NO_REPAIRS,
) -> Seq:
    """Append the one result of a call (VD-15, FM-07)."""
    payload = to_raw(ToolResultPayload(message=message))
    return tx.insert_entry(
        task.conv_id,
        "tool_result",
        EntryMeta(
            timestamp=now_ms,
            bytes=len(payload),
            tokens=estimated_tokens(message.content),
            answers=answers,
            is_error=message.is_error,
            outcome=outcome,
            repaired=repaired_meta(repaired),
        ),
        ToolResultPayload(message=message),
        written_by=task.id,
        call_index=call_index,
    )


def error_results(
    tx: Command, task: Task, answers: Seq, parts: Iterable[Part], *, text: str, now_ms: int
) -> None:
    """Answer every call of an assistant entry whose calls never became tools (GN-45)."""
    for index, call in enumerate(part for part in parts if isinstance(part, ToolCallPart)):
        result_entry(
            tx,
            task=task,
            answers=answers,
            call_index=index,
            outcome="notStarted",
            now_ms=now_ms,
            message=ToolResultMessage(
                call_id=call.call_id,
                tool_name=call.name,
                content=(TextPart(text=text),),
                is_error=True,
            ),
        )


async def place_writes(tx: Command, task: Task) -> None:
    """Place queued writes only: the run ends here and nothing else may be consumed (QU-12)."""
    state = await tx.conversation(task.conv_id)
    await place(tx, state, select(state, "write_only"), written_by=task.id)


async def after_cancellation(tx: Command, task: Task, services: Services) -> None:
    """Go on with what was accepted after an abort, when this settlement ends the cancellation.

    The settlement of the conversation's last marked target places writes and mode-selected steer
    and follow-ups and creates one generation, if a follow-up waits; else it creates nothing (D38).
    """
    others = [
        other
        for other in tx.live_tasks(task.conv_id)
        if other.id != task.id and other.abort_requested is not UNSET
    ]
    if others:
        return
    state = await tx.conversation(task.conv_id)
    items: tuple[InboxItem, ...] = select(state, "answer")
    if not any(item.kind == "followUp" for item in items):
        return
    opened = await place(tx, state, items, written_by=None)
    await start_generation(tx, task.conv_id, services, inputs=opened)
