"""Reading what became of an input (D01, ER-08)."""

from collections.abc import Callable
from typing import Protocol

from msgspec import UNSET, Raw

from perdure.drive.foreground import marked, tree_of
from perdure.errors import Rejected
from perdure.line.line import Line
from perdure.ports import Storage
from perdure.records.addresses import Address, input_record
from perdure.records.codec import decode
from perdure.records.entries import Entry
from perdure.records.inputs import FINAL_STATES, InputRecord, InputResult
from perdure.records.messages import AssistantMessage, AssistantPayload, read_payload
from perdure.records.seqs import Seq


class Source(Protocol):
    """Where a result is read: the line of an open session, or a storage."""

    async def value(self, address: Address) -> Raw | None:
        """Answer the value at an address."""
        ...

    async def entry(self, entry_id: Seq) -> Entry | None:
        """Answer an entry with its payload."""
        ...


class _Stored:
    """Read from a storage alone."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def value(self, address: Address) -> Raw | None:
        stored = await self._storage.value(address)
        return None if stored is None else stored.value_json

    async def entry(self, entry_id: Seq) -> Entry | None:
        return (await self._storage.entries([entry_id])).get(entry_id)


async def stored_result(storage: Storage, input_id: Seq) -> InputResult:
    """Read one input's result without an open session; raises Rejected `not_found`."""
    return await read_result(_Stored(storage), input_id)


async def read_result(source: Source, input_id: Seq, *, conv_id: Seq | None = None) -> InputResult:
    """Read one input's record and the entries it names.

    Raises:
        Rejected: `not_found` for an unknown input, `unknown_target` for another conversation's.
    """
    raw = await source.value(input_record(input_id).address())
    if raw is None:
        raise Rejected("not_found", f"there is no input {input_id}")
    record = decode(raw, InputRecord)
    if conv_id not in (None, record.conv_id):
        raise Rejected(
            "unknown_target", f"input {input_id} belongs to conversation {record.conv_id}"
        )
    return InputResult(
        input_id=input_id,
        conv_id=record.conv_id,
        mode=record.mode,
        state=record.state,
        entry=None if record.entry is UNSET else await source.entry(record.entry),
        answer=None if record.answer is UNSET else record.answer,
        message=None if record.answer is UNSET else await _message(source, record.answer),
        partial=None if record.partial is UNSET else await _message(source, record.partial),
        error=None if record.error is UNSET else record.error,
        withdrawn_by=None if record.withdrawn_by is UNSET else record.withdrawn_by,
    )


def finality(line: Line, input_id: Seq, conv_id: Seq) -> Callable[[], bool]:
    """Answer a function that says from memory whether an input is known to be over and done with.

    A record that is not in memory is not known to be; one is looked at only once. An abort settles
    the input's record before the last call has ended: nobody is told before that has too (BB-20).
    """
    address = input_record(input_id).address()
    held = line.residency
    seen: Raw | None = None
    final = False

    def is_over() -> bool:
        nonlocal seen, final
        raw = held.cached_value(address)
        if raw is not seen and raw is not None and not isinstance(raw, bool):
            seen = raw
            final = decode(raw, InputRecord).state in FINAL_STATES
        return final and not any(marked(held.live_tasks(one)) for one in tree_of(conv_id, held))

    return is_over


async def _message(source: Source, entry_id: Seq) -> AssistantMessage | None:
    entry = await source.entry(entry_id)
    if entry is None or entry.payload_json is UNSET:
        return None
    return read_payload(entry.payload_json, AssistantPayload).message
