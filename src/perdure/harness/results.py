"""Reading what became of an input (D01, ER-08)."""

from collections.abc import Callable

from msgspec import UNSET, Raw

from perdure.errors import Rejected
from perdure.line.line import Line
from perdure.records.addresses import input_record
from perdure.records.codec import decode
from perdure.records.inputs import FINAL_STATES, InputRecord, InputResult
from perdure.records.messages import AssistantMessage, AssistantPayload, read_payload
from perdure.records.seqs import Seq


async def read_result(line: Line, input_id: Seq, *, conv_id: Seq) -> InputResult:
    """Read one input's record and the entries it names.

    Raises:
        Rejected: `not_found` for an unknown input, `unknown_target` for another conversation's.
    """
    raw = await line.value(input_record(input_id).address())
    if raw is None:
        raise Rejected("not_found", f"there is no input {input_id}")
    record = decode(raw, InputRecord)
    if record.conv_id != conv_id:
        raise Rejected(
            "unknown_target", f"input {input_id} belongs to conversation {record.conv_id}"
        )
    return InputResult(
        input_id=input_id,
        conv_id=record.conv_id,
        mode=record.mode,
        state=record.state,
        entry=None if record.entry is UNSET else await line.entry(record.entry),
        answer=None if record.answer is UNSET else record.answer,
        message=None if record.answer is UNSET else await _message(line, record.answer),
        partial=None if record.partial is UNSET else await _message(line, record.partial),
        error=None if record.error is UNSET else record.error,
        withdrawn_by=None if record.withdrawn_by is UNSET else record.withdrawn_by,
    )


def finality(line: Line, input_id: Seq) -> Callable[[], bool]:
    """Answer a function that says from memory whether an input is known to be final.

    A record that is not in memory is not known to be; one is looked at only once.
    """
    address = input_record(input_id).address()
    seen: Raw | None = None

    def is_final() -> bool:
        nonlocal seen
        raw = line.residency.cached_value(address)
        if raw is seen or isinstance(raw, bool) or raw is None:
            return False
        seen = raw
        return decode(raw, InputRecord).state in FINAL_STATES

    return is_final


async def _message(line: Line, entry_id: Seq) -> AssistantMessage | None:
    entry = await line.entry(entry_id)
    if entry is None or entry.payload_json is UNSET:
        return None
    return read_payload(entry.payload_json, AssistantPayload).message
