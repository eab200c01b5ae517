"""Every way perdure says no.

PerdureError
├── Rejected            a rule said no; nothing was written; the next call works
├── Faulted             the session stopped at a storage fault or a defect; reopen it
│   └── Fenced          another writer took the session over
├── Closed              you closed it
├── StorageBusy         another live process owns the session
├── StorageDamaged      stored bytes are not what was written
├── FormatUnsupported   the container was written by a newer release
├── Refused             a server did not let the request in
├── Unreachable         no server answered, or the answer was lost
├── ProviderError       a model request failed, classified
├── InvalidArguments    a tool's arguments do not fit its schema
├── ToolFailed          a tool says its call failed, in words for the model
├── Interrupted         an invocation's signal fired; its kind decides what that means
└── StrayCancellation   an outside call was cancelled by itself

A `Rejected` is not a fault (FT-02). A `Faulted` handle writes nothing more (FT-03).
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

RejectionCode: TypeAlias = Literal[
    "invariant",
    "busy",
    "unknown_target",
    "version_mismatch",
    "not_found",
    "request_conflict",
    "nothing_to_do",
    "deleted",
    "nested_command",
]
"""The codes of D37; a rejection carries exactly one of them."""

FaultCode: TypeAlias = Literal["storage", "fenced", "forked", "defect"]
"""Why a session stopped: storage failed, fenced (D18), used in a forked child, or a defect."""

FailureCode: TypeAlias = Literal[
    "overflow",
    "auth",
    "quota",
    "billing",
    "invalid_request",
    "content_filter",
    "model_not_found",
    "rate_limited",
    "overloaded",
    "server",
    "network",
    "timeout",
    "stream_ended",
    "interrupted",
    "retry_after_too_long",
    "deferred_expired",
    "overflow_uncollapsible",
    "hook",
    "no_model",
    "budget",
    "program",
]
"""The closed list of FM-10: why an input failed."""

RETRYABLE: Final[frozenset[FailureCode]] = frozenset(
    {"rate_limited", "overloaded", "server", "network", "timeout", "stream_ended", "interrupted"}
)
"""Failures that another attempt may cure (D13)."""


class PerdureError(Exception):
    """Be the root of every exception perdure raises on purpose."""


class Rejected(PerdureError):
    """Say that a rule refused the call; nothing was written and no seq was used (ER-01, D37).

    Attributes:
        code: one of `RejectionCode`.
        details: plain JSON facts a program can act on.
    """

    def __init__(
        self, code: RejectionCode, message: str, details: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.code: RejectionCode = code
        self.message = message
        self.details: Mapping[str, object] = dict(details or {})


class Faulted(PerdureError):
    """Say that the session stopped; reopen it and it continues from the last commit (FT-01)."""

    def __init__(self, message: str, *, code: FaultCode = "storage") -> None:
        super().__init__(message)
        self.code: FaultCode = code
        self.message = message


class Fenced(Faulted):
    """Say that another writer took the session over; this handle writes nothing more (D18)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="fenced")


class Closed(PerdureError):
    """Say that the harness, or the store below it, was closed by its user (ER-01)."""

    def __init__(self, message: str = "the harness is closed") -> None:
        super().__init__(message)


class StorageBusy(PerdureError):
    """Say that another live process owns the session, and name it (SN-11, CM-17).

    Attributes:
        holder: `pid`, `host`, `since` (milliseconds), `epoch`, and `control` when there is one.
    """

    def __init__(self, message: str, holder: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.holder: Mapping[str, object] = dict(holder or {})


class StorageDamaged(PerdureError):
    """Say which stored bytes are not what was written: file, offset or row, and rule (FM-01)."""


class FormatUnsupported(PerdureError):
    """Say that a container was written by a newer release; its bytes are untouched (FM-11)."""


class Refused(PerdureError):
    """Say that a server did not let a request in; nothing was done (WB-06).

    Attributes:
        code: the server's word: `unauthorized` for a wrong token, `overloaded`, `too_large` and
            the like; `unknown` for an answer that is none of perdure's.
        details: plain JSON facts a program can act on.
    """

    def __init__(
        self, code: str, message: str, details: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details: Mapping[str, object] = dict(details or {})


class Unreachable(PerdureError):
    """Say that no server answered, or that the connection ended before the answer did.

    Attributes:
        was_sent: whether the request may have arrived, and had its effect.
    """

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class ProviderError(PerdureError):
    """Say how one model request failed (D13, PV-15).

    Attributes:
        code: one of `FailureCode`.
        status: HTTP status when there was one.
        retry_after_ms: what the provider asked for, or None.
        partial: assistant message of what had arrived, or None (`records.messages`).
        usage: reported usage, or None for unknown (`records.messages`).
        window: context window in tokens that the error names, or None (GN-48).
        refused: `(message index, part index)` in the request that the provider refused (PV-21).
    """

    def __init__(
        self,
        code: FailureCode,
        message: str,
        *,
        status: int | None = None,
        retry_after_ms: int | None = None,
        partial: object = None,
        usage: object = None,
        window: int | None = None,
        refused: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.code: FailureCode = code
        self.message = message
        self.status = status
        self.retry_after_ms = retry_after_ms
        self.partial = partial
        self.usage = usage
        self.window = window
        self.refused = refused


class InvalidArguments(PerdureError):
    """Say where a tool's arguments do not fit its schema, in words for the model (TL-04)."""


class ToolFailed(PerdureError):
    """Say in words for the model that a call failed; any other exception reads the same."""


class Interrupted(PerdureError):
    """Say that this invocation's signal fired; a kind classifies it, nothing else catches it.

    Attributes:
        reason: `abort` or `close`.
    """

    def __init__(self, reason: Literal["abort", "close"]) -> None:
        super().__init__(f"the invocation was interrupted: {reason}")
        self.reason: Literal["abort", "close"] = reason


class StrayCancellation(PerdureError):
    """Say that an outside call was cancelled by itself; classified like any exception (SC-27)."""


def text_of(error: BaseException) -> str:
    """Answer an exception's own text; a `__str__` that raises costs that text and nothing else."""
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001 - foreign words: an error that cannot be said is still an error
        return f"(its text raised {type(fault).__name__})"
