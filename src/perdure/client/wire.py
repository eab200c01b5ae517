"""What goes over the wire, read back into the records it was made of."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast, get_args

import msgspec
from msgspec import Raw, Struct

from perdure.client.texts import without_texts
from perdure.errors import (
    Closed,
    FaultCode,
    Faulted,
    Fenced,
    FormatUnsupported,
    PerdureError,
    Refused,
    Rejected,
    RejectionCode,
    StorageBusy,
    StorageDamaged,
)
from perdure.harness.cancellation import AbortReport, Drained
from perdure.records.codec import decode, decode_json, encode
from perdure.records.messages import UserMessage
from perdure.records.seqs import Seq
from perdure.records.usage import UsageTotals
from perdure.records.watch import from_json

T = TypeVar("T")

FAULTS: Final[frozenset[str]] = frozenset(get_args(FaultCode))
REJECTIONS: Final[frozenset[str]] = frozenset(get_args(RejectionCode))

OTHERS: Final[Mapping[str, Callable[[str, Mapping[str, Any]], PerdureError]]] = MappingProxyType(
    {
        "closed": lambda message, _: Closed(message),
        "storage_busy": StorageBusy,
        "damaged": lambda message, _: StorageDamaged(message),
        "unsupported_format": lambda message, _: FormatUnsupported(message),
        "defect": lambda message, _: Faulted(message, code="defect"),
        "faulted": lambda message, details: _fault(message, details.get("fault")),
    }
)
"""What the codes stand for that are no rule's."""


# Requests.


def body_of(body: object) -> bytes:
    """Encode the body of a request, nothing for None.

    Raises:
        Rejected: `invariant`, for what is no JSON.
    """
    if body is None:
        return b""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError) as error:
        raise Rejected("invariant", f"this cannot be sent: {error}") from None


# Answers.


def fields_of(data: bytes) -> dict[str, Raw]:
    """Answer the fields of an answer, as they were before texts were put beside them."""
    return decode(without_texts(data), dict[str, Raw])


def read(data: bytes | Raw, kind: type[T]) -> T:
    """Read a record; one that an older or newer server words otherwise is a defect of either.

    Raises:
        msgspec.ValidationError: it does not fit.
    """
    found: T = _decoder(kind).decode(data)
    return found


def read_renamed(data: bytes | Raw, kind: type[T]) -> T:
    """Read a record whose own field names were put into the wire's spelling."""
    return read(encode(_renamed(decode_json(data))), kind)


def usage_of(data: Raw) -> UsageTotals:
    """Read totals; the sums in them are spelled the wire's way too."""
    return read(encode(_usage(decode_json(data))), UsageTotals)


def _usage(fields: dict[str, Any]) -> dict[str, Any]:
    totals = _renamed(fields)
    children = totals.pop("children", None)
    sums = {
        name: _renamed(cast("dict[str, Any]", item))
        for name, item in totals.items()
        if isinstance(item, dict) and name != "costs"  # whose keys are currencies
    }
    return {**totals, **sums, "children": None if children is None else _usage(children)}


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    """Spell the names of fields as Python does."""
    return {
        re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): item
        for name, item in fields.items()
    }


@lru_cache(maxsize=64)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=from_json)


def abort_report_of(fields: Mapping[str, Raw]) -> AbortReport:
    """Read what an abort did."""
    drained: list[dict[str, Raw]] = read(fields["drained"], list[dict[str, Raw]])
    return AbortReport(
        marked=read(fields["marked"], tuple[Seq, ...]),
        drained=tuple(
            Drained(
                input_id=decode_json(one["inputId"]),
                conv_id=decode_json(one["conv"]),
                mode=read(one["mode"], str),
                messages=read(one["messages"], tuple[UserMessage, ...]),
            )
            for one in drained
        ),
        joined=read(fields["joined"], bool),
    )


# Errors.


class _Error(Struct, frozen=True, kw_only=True):
    """One refusal, as far as it becomes an error here."""

    code: str
    message: str
    details: Mapping[str, Any]


class _ErrorBody(Struct, frozen=True, kw_only=True):
    """The body of an answer that is an error."""

    error: _Error


def error_of(status: int, data: bytes) -> PerdureError:
    """Answer what a server refused with, as the error that it was there."""
    try:
        error = read(data, _ErrorBody).error
    except msgspec.MsgspecError:
        said = data[:200].decode(errors="replace")
        return Refused("unknown", f"the answer {status} is none of perdure's: {said!r}")
    if error.code in REJECTIONS:
        return Rejected(cast("RejectionCode", error.code), error.message, error.details)
    if error.code in OTHERS:
        return OTHERS[error.code](error.message, error.details)
    return Refused(error.code, error.message, error.details)


def _fault(message: str, code: object) -> Faulted:
    if code == "fenced":
        return Fenced(message)
    return Faulted(message, code=cast("FaultCode", code) if code in FAULTS else "storage")
