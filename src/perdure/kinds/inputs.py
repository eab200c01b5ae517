"""Input records: every move of an input's state, in the commit that causes it (D01).

Invariant: the ids with state `open` are exactly the union of `inputs` over live generations and
joins; each `queued` id stands in exactly one inbox.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from perdure.errors import FailureCode, Rejected
from perdure.kinds.requests import content_digest, earlier_request
from perdure.line.command import Command
from perdure.records.addresses import input_record, request_input
from perdure.records.budgets import Budget
from perdure.records.codec import decode, decode_json, encode
from perdure.records.entries import EntryMeta
from perdure.records.inputs import Accepted, InputMode, InputRecord, InputState
from perdure.records.messages import MessageError, TextPart, UserMessage, estimated_tokens
from perdure.records.seqs import Seq


def request_digest(conv_id: Seq, verb: str, messages: Iterable[UserMessage]) -> str:
    """Digest a request: conversation, verb, and content without timestamps (D02)."""
    content: list[Any] = []
    for message in messages:
        fields = decode_json(encode(message))
        fields.pop("timestamp", None)
        content.append(fields)
    return content_digest(conv_id, verb, content)


async def read_record(tx: Command, input_id: Seq) -> InputRecord:
    """Read an input's record; raises Rejected `not_found`."""
    raw = await tx.get_raw(input_record(input_id))
    if raw is None:
        raise Rejected("not_found", f"there is no input {input_id}")
    return decode(raw, InputRecord)


async def earlier_acceptance(
    tx: Command, *, request_id: str, conv_id: Seq, verb: str, digest_now: str
) -> Accepted | None:
    """Answer the acceptance a request key already has, None when it is new (ID-03).

    Raises:
        Rejected: `request_conflict`, when conversation, verb or content differ (ID-06).
    """
    input_id = await earlier_request(
        tx.get_raw, request_id=request_id, conv_id=conv_id, verb=verb, digest_now=digest_now
    )
    return None if input_id is None else Accepted(input_id=input_id, duplicate=True)


def new_record(
    tx: Command,
    input_id: Seq,
    *,
    conv_id: Seq,
    mode: InputMode,
    state: InputState,
    digest_now: str,
    request_id: str | None,
    budget: Budget | None = None,
) -> None:
    """Write an input's first record, and its request key."""
    tx.set_value(
        input_record(input_id),
        InputRecord(
            conv_id=conv_id,
            mode=mode,
            state=state,
            digest=digest_now,
            request_id=UNSET if request_id is None else request_id,
            entry=UNSET if state == "queued" else input_id,
            budget=UNSET if budget is None else budget,
        ),
    )
    if request_id is not None:
        tx.set_value(request_input(request_id), int(input_id))


async def move_inputs(tx: Command, ids: Iterable[Seq], state: InputState, **facts: Any) -> None:
    """Write the records of `ids` with a new state and the facts that go with it."""
    for input_id in ids:
        record = await read_record(tx, input_id)
        tx.set_value(input_record(input_id), msgspec.structs.replace(record, state=state, **facts))


async def fail_inputs(
    tx: Command,
    ids: Iterable[Seq],
    *,
    task_id: Seq,
    code: FailureCode,
    message: str,
    partial: Seq | None,
) -> None:
    """Write the records of `ids` as failed."""
    await move_inputs(
        tx,
        ids,
        "failed",
        task=task_id,
        error=MessageError(code=code, message=message[:2_000]),
        partial=UNSET if partial is None else partial,
    )


def user_meta(messages: Iterable[UserMessage], now_ms: int, **facts: Any) -> EntryMeta:
    """Describe an input's entry: time, size and tokens, and what the caller adds."""
    held = tuple(messages)
    return EntryMeta(
        timestamp=now_ms,
        bytes=sum(len(encode(message)) for message in held),
        tokens=sum(estimated_tokens(message.content) for message in held),
        **facts,
    )


def said_by(messages: Iterable[UserMessage]) -> str:
    """Answer the text of an input; what is no text is named by its sort."""
    return " ".join(
        part.text if isinstance(part, TextPart) else f"[{type(part).__name__.removesuffix('Part')}]"
        for message in messages
        for part in message.content
    )


def stamped(messages: Iterable[UserMessage], now_ms: int) -> tuple[UserMessage, ...]:
    """Fill timestamps from the clock where absent (D19)."""
    return tuple(
        message if message.timestamp else msgspec.structs.replace(message, timestamp=now_ms)
        for message in messages
    )
