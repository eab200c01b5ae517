"""Acceptance: input becomes a durable obligation in one commit, or waits in the inbox (seed 8.2).

Idle, an accept places what the queue holds, then the input, and creates the generation that owes
the answer. Busy or cancelling, it stores the content and queues it (QU-01). With a request key the
mapping is in the same commit, and a repeat answers the first acceptance (D02).
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from perdure.drive.foreground import is_busy
from perdure.errors import Rejected
from perdure.harness.core import Core
from perdure.kinds.exchange import start_generation
from perdure.kinds.inputs import (
    earlier_acceptance,
    move_inputs,
    new_record,
    request_digest,
    said_by,
    stamped,
    user_meta,
)
from perdure.kinds.queues import place, select, triggers
from perdure.kinds.requests import check_request_id
from perdure.line.command import Command
from perdure.line.spans import NO_SPAN
from perdure.ports import Span
from perdure.records.addresses import MODEL, input_record
from perdure.records.budgets import Budget
from perdure.records.codec import decode
from perdure.records.conversations import ConversationState, InboxItem, InboxTag
from perdure.records.entries import ModelId, preview_of, repaired_meta
from perdure.records.inputs import Accepted, InputMode, InputRecord
from perdure.records.messages import UserMessage, UserPayload
from perdure.records.seqs import Seq
from perdure.records.strict_json import Repairs

Cancelled: TypeAlias = Literal["cancelled", "already_consumed", "not_found"]

TAGS: Final[Mapping[InputMode, InboxTag]] = MappingProxyType(
    {
        "prompt": "followUp",
        "followUp": "followUp",
        "steer": "steer",
        "nextRun": "nextRun",
        "write": "write",
    }
)


class Request(Struct, frozen=True, kw_only=True):
    """One call of accept or of a queue verb, normalized (D19)."""

    conv_id: Seq
    mode: InputMode
    messages: tuple[UserMessage, ...]
    repairs: Repairs = Repairs()
    request_id: str | None = None
    budget: Budget | None = None


class Acceptance:
    """Turn requests into commands."""

    def __init__(self, core: Core) -> None:
        """Take what the session's handles share."""
        self._core = core
        self._line = core.line
        self._services = core.services

    async def accept(self, request: Request) -> Accepted:
        """Accept one request, durably: a barrier commit.

        Raises:
            Rejected: `request_conflict`, `deleted`, `unknown_target`, `invariant`.
        """
        answers: list[Accepted] = []

        async def build(tx: Command) -> None:
            answers.append(await self._build(tx, request))

        if request.request_id is not None:
            check_request_id(request.request_id)
        with self._span(request) as span:
            await self._core.submit(build, barrier=True)
            accepted = answers[0]
            span.set(input=accepted.input_id, duplicate=accepted.duplicate)
            return accepted

    def _span(self, request: Request) -> AbstractContextManager[Span]:
        """Observe one acceptance for its caller, whose cancellation ends only that (TM-04)."""
        telemetry = self._services.telemetry
        if not telemetry.is_on:
            return NO_SPAN
        return telemetry.span(
            "harness.accept",
            conv=request.conv_id,
            mode=request.mode,
            messages=len(request.messages),
            keyed=request.request_id is not None,
        )

    async def _build(self, tx: Command, request: Request) -> Accepted:
        key = request_digest(request.conv_id, request.mode, request.messages)
        if request.request_id is not None:
            earlier = await earlier_acceptance(
                tx,
                request_id=request.request_id,
                conv_id=request.conv_id,
                verb=request.mode,
                digest_now=key,
            )
            if earlier is not None:
                return earlier
        state = await tx.conversation(request.conv_id)
        model = self._core.new_model
        if model is not None:
            tx.set_value(MODEL.bind(state.id), model)
        if not self._busy(state.id):
            if request.mode == "prompt":
                return await self._place(tx, state, request, key, model)
            if request.mode == "write":
                return await self._append(tx, state, request, key)
        return self._queue(tx, state, request, key)

    def _busy(self, conv_id: Seq) -> bool:
        return is_busy(conv_id, self._line.kinds, self._line.residency)

    async def _place(
        self,
        tx: Command,
        state: ConversationState,
        request: Request,
        key: str,
        model: ModelId | None,
    ) -> Accepted:
        """Place the due queue, then this input, and create its generation (QU-04)."""
        opened = await place(tx, state, select(state, "accept"), written_by=None)
        input_id = self._store(tx, state, request, key, "open")
        await start_generation(
            tx, state.id, self._services, inputs=(*opened, input_id), model=model
        )
        return Accepted(input_id=input_id)

    async def _append(
        self, tx: Command, state: ConversationState, request: Request, key: str
    ) -> Accepted:
        """Place earlier writes, then this message; asks for no generation (QU-02, QU-10)."""
        await place(tx, state, select(state, "write_only"), written_by=None)
        return Accepted(input_id=self._store(tx, state, request, key, "placed"))

    def _queue(self, tx: Command, state: ConversationState, request: Request, key: str) -> Accepted:
        """Store the content unselected and queue it (D03)."""
        input_id = self._store(tx, state, request, key, "queued")
        item = InboxItem(id=input_id, kind=TAGS[request.mode], entry=input_id)
        tx.patch_conversation(state.id, inbox=(*state.inbox, item))
        return Accepted(input_id=input_id)

    def _store(
        self,
        tx: Command,
        state: ConversationState,
        request: Request,
        key: str,
        how: Literal["open", "placed", "queued"],
    ) -> Seq:
        """Write the content, its record, and its request key; answers the input's id."""
        now_ms = self._services.clock.now_ms()
        queued = how == "queued"
        facts = self._waiting_facts(request) if queued else {}
        input_id = tx.insert_entry(
            state.id,
            "input" if queued else "user",
            user_meta(request.messages, now_ms, repaired=repaired_meta(request.repairs), **facts),
            UserPayload(messages=stamped(request.messages, now_ms)),
        )
        new_record(
            tx,
            input_id,
            conv_id=state.id,
            mode=request.mode,
            state=how,
            digest_now=key,
            request_id=request.request_id,
            budget=request.budget,
        )
        return input_id

    def _waiting_facts(self, request: Request) -> dict[str, str]:
        """Say of an input that waits what it will become, and how it begins (D03, SX-05)."""
        facts: dict[str, str] = {"mode": request.mode, "as_kind": "user"}
        text, _ = self._services.secrets.text(said_by(request.messages))
        preview = preview_of(text)
        if preview:
            facts["preview"] = preview
        return facts

    async def flush(self, conv_id: Seq, *, budget: Budget | None = None) -> tuple[Seq, ...]:
        """Place what an accept would, without new input, and create its generation (D38).

        A `budget` replaces those that the placed inputs came with (BG-12).

        Raises:
            Rejected: `busy`; `nothing_to_do`, when nothing queued asks for a generation.
        """
        placed: list[Seq] = []

        async def build(tx: Command) -> None:
            state = await tx.conversation(conv_id)
            if self._busy(conv_id):
                raise Rejected("busy", f"conversation {conv_id} is busy; its queue moves by itself")
            items = select(state, "accept")
            if not triggers(items):
                raise Rejected("nothing_to_do", f"conversation {conv_id} has no queued input")
            placed.extend(await place(tx, state, items, written_by=None, budget=budget))
            await start_generation(tx, conv_id, self._services, inputs=placed)

        await self._core.submit(build, barrier=True)
        return tuple(placed)

    async def cancel_queued(self, conv_id: Seq, input_id: Seq) -> Cancelled:
        """Withdraw one queued input, once; a repeat answers the same (QU-14)."""
        answers: list[Cancelled] = []

        async def build(tx: Command) -> None:
            raw = await tx.get_raw(input_record(input_id))
            record = None if raw is None else decode(raw, InputRecord)
            if record is None or record.conv_id != conv_id:
                answers.append("not_found")
            elif record.state == "queued":
                state = await tx.conversation(conv_id)
                tx.patch_conversation(
                    conv_id, inbox=[item for item in state.inbox if item.id != input_id]
                )
                await move_inputs(tx, [input_id], "withdrawn", withdrawn_by="cancel")
                answers.append("cancelled")
            else:
                withdrawn = record.state == "withdrawn"
                answers.append("cancelled" if withdrawn else "already_consumed")

        await self._core.submit(build, barrier=True)
        return answers[0]
