"""Request ids: one name space for all that a session makes when it is asked to (D02, ID-10).

A request id maps to the id of what it made: an input, or a conversation. The record of that says
where, by which verb and from what content; a repeat that differs in any of these is refused.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Raw

from perdure.errors import Rejected
from perdure.line.command import Command
from perdure.records.addresses import Address, creation_record, input_record, request_input
from perdure.records.codec import decode, digest
from perdure.records.inputs import CreatingVerb, CreationRecord, InputRecord
from perdure.records.seqs import Seq
from perdure.records.strict_json import JsonValue

REQUEST_ID_BYTES_MAX: Final = 512
"""Longest request key in UTF-8 bytes (D02)."""


def check_request_id(request_id: str) -> None:
    """Refuse a request key that could not be stored (D02)."""
    try:
        size = len(request_id.encode())
    except UnicodeEncodeError:
        size = -1
    if not 1 <= size <= REQUEST_ID_BYTES_MAX or "\x00" in request_id:
        raise Rejected(
            "invariant",
            f"the request id {request_id[:80]!r} is not 1 to {REQUEST_ID_BYTES_MAX} bytes of text "
            f"without NUL or lone surrogates",
        )


def content_digest(conv_id: Seq, verb: str, content: JsonValue) -> str:
    """Digest a request: conversation, verb and content (D02)."""
    return digest({"v": 1, "conv": conv_id, "verb": verb, "content": content})


async def earlier_request(
    read: Callable[[Address], Awaitable[Raw | None]],
    *,
    request_id: str,
    conv_id: Seq,
    verb: str,
    digest_now: str,
) -> Seq | None:
    """Answer what a request id made already, None when it is new (ID-03).

    Raises:
        Rejected: `request_conflict`, when conversation, verb or content differ (ID-06).
    """
    raw = await read(request_input(request_id).address())
    if raw is None:
        return None
    made = Seq(decode(raw, int))
    raw = await read(input_record(made).address())
    if raw is not None:
        record = decode(raw, InputRecord)
        what, home, before, known = "input", record.conv_id, record.mode, record.digest
    else:
        raw = await read(creation_record(made).address())
        if raw is None:
            raise Rejected(
                "not_found", f"the request id {request_id!r} names {made}, which is gone"
            )
        creation = decode(raw, CreationRecord)
        what, home, before, known = "conversation", creation.conv_id, creation.verb, creation.digest
    if known == digest_now:
        return made
    differs = "conversation" if home != conv_id else "verb" if before != verb else "content"
    raise Rejected(
        "request_conflict",
        f"the request id {request_id!r} was used for {what} {made} with another {differs}; "
        f"give a new {what} a request id of its own",
        {"input" if what == "input" else "made": made, "conv": home, "differs": differs},
    )


def name_creation(
    tx: Command, made: Seq, *, conv_id: Seq, verb: CreatingVerb, digest_now: str, request_id: str
) -> None:
    """Write what a request made, so that a repeat is answered with it."""
    tx.set_value(
        creation_record(made),
        CreationRecord(conv_id=conv_id, verb=verb, digest=digest_now, request_id=request_id),
    )
    tx.set_value(request_input(request_id), int(made))
