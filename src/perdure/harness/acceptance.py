"""Acceptance: input becomes a durable obligation in one commit, or waits in the inbox (seed 8.2).

Idle, an accept places what the queue holds, then the input, and creates the generation that owes
the answer. Busy or cancelling, it stores the content and queues it (QU-01). With a request key the
mapping is in the same commit, and a repeat answers the first acceptance (D02).
"""

from typing import Final

from msgspec import Struct

from perdure.drive.foreground import is_busy
from perdure.harness.core import Core
from perdure.kinds.exchange import start_generation
from perdure.kinds.inputs import (
    check_request_id,
    earlier_acceptance,
    new_record,
    request_digest,
    stamped,
    user_meta,
)
from perdure.kinds.queues import place, select
from perdure.line.command import Command
from perdure.records.addresses import MODEL
from perdure.records.conversations import ConversationState, InboxItem, InboxTag
from perdure.records.entries import EntryMeta, ModelId, Repaired
from perdure.records.inputs import Accepted, InputMode
from perdure.records.messages import UserMessage, UserPayload
from perdure.records.seqs import Seq
from perdure.records.strict_json import Repairs

TAGS: Final[dict[InputMode, InboxTag]] = {
    "prompt": "followUp",
    "followUp": "followUp",
    "steer": "steer",
    "nextRun": "nextRun",
    "write": "write",
}


class Request(Struct, frozen=True, kw_only=True):
    """One call of accept or of a queue verb, normalized (D19)."""

    conv_id: Seq
    mode: InputMode
    messages: tuple[UserMessage, ...]
    repairs: Repairs = Repairs()
    request_id: str | None = None


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
        await self._core.submit(build, barrier=True)
        return answers[0]

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
        busy = is_busy(request.conv_id, self._line.kinds, self._line.residency)
        if request.mode == "prompt" and not busy:
            return await self._place(tx, state, request, key)
        return self._queue(tx, state, request, key)

    def _meta(self, request: Request, now_ms: int, **facts: str) -> EntryMeta:
        repairs = request.repairs
        if repairs.surrogates or repairs.nul:
            repaired = Repaired(surrogates=repairs.surrogates, nul=repairs.nul)
            return user_meta(request.messages, now_ms, repaired=repaired, **facts)
        return user_meta(request.messages, now_ms, **facts)

    async def _place(
        self, tx: Command, state: ConversationState, request: Request, key: str
    ) -> Accepted:
        """Place the due queue, then this input, and create its generation (QU-04)."""
        model = self._core.take_model()
        if model is not None:
            await self._write_model(tx, state.id, model)
        opened = await place(tx, state, select(state, "accept"), written_by=None)
        now_ms = self._services.clock.now_ms()
        messages = stamped(request.messages, now_ms)
        input_id = tx.insert_entry(
            state.id, "user", self._meta(request, now_ms), UserPayload(messages=messages)
        )
        new_record(
            tx,
            input_id,
            conv_id=state.id,
            mode=request.mode,
            state="open",
            digest_now=key,
            request_id=request.request_id,
        )
        await start_generation(
            tx, state.id, self._services, inputs=(*opened, input_id), model=model
        )
        return Accepted(input_id=input_id)

    async def _write_model(self, tx: Command, conv_id: Seq, model: ModelId) -> None:
        tx.set_value(MODEL.bind(conv_id), model)

    def _queue(self, tx: Command, state: ConversationState, request: Request, key: str) -> Accepted:
        """Store the content unselected and queue it (D03)."""
        now_ms = self._services.clock.now_ms()
        messages = stamped(request.messages, now_ms)
        input_id = tx.insert_entry(
            state.id,
            "input",
            self._meta(request, now_ms, mode=request.mode, as_kind="user"),
            UserPayload(messages=messages),
        )
        item = InboxItem(id=input_id, kind=TAGS[request.mode], entry=input_id)
        tx.patch_conversation(state.id, inbox=(*state.inbox, item))
        new_record(
            tx,
            input_id,
            conv_id=state.id,
            mode=request.mode,
            state="queued",
            digest_now=key,
            request_id=request.request_id,
        )
        return Accepted(input_id=input_id)
