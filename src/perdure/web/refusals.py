"""Every way the server says no: one shape, one table of codes (WB-06)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from perdure.errors import (
    Closed,
    Faulted,
    FormatUnsupported,
    PerdureError,
    Rejected,
    StorageBusy,
    StorageDamaged,
)

Retry: TypeAlias = Literal["never", "same_id", "reread", "later"]
"""What a caller may do: nothing, the same bytes again, look first, or wait."""

RETRY_AFTER_S: Final = 2
"""What `Retry-After` says."""

REJECTIONS: Final[Mapping[str, tuple[int, Retry]]] = MappingProxyType(
    {
        "invariant": (400, "never"),
        "not_found": (404, "never"),
        "unknown_target": (404, "never"),
        "busy": (409, "later"),
        "version_mismatch": (409, "reread"),
        "request_conflict": (409, "never"),
        "nothing_to_do": (409, "reread"),
        "nested_command": (409, "later"),
        "deleted": (410, "never"),
    }
)
"""Status and retry of each code of `Rejected` (D37)."""

REFUSALS: Final[Mapping[str, tuple[int, Retry]]] = MappingProxyType(
    {
        "unauthorized": (401, "never"),
        "forbidden": (403, "never"),
        "method_not_allowed": (405, "never"),
        "request_timeout": (408, "same_id"),
        "too_large": (413, "never"),
        "unsupported_media_type": (415, "never"),
        "misdirected": (421, "never"),
        "defect": (500, "same_id"),
        "storage_busy": (503, "later"),
        "faulted": (503, "same_id"),
        "closed": (503, "same_id"),
        "damaged": (503, "never"),
        "unsupported_format": (503, "never"),
        "overloaded": (503, "later"),
    }
)
"""The same for what only a server says."""


class Problem(Struct, frozen=True, kw_only=True):
    """One refusal in words and facts."""

    code: str
    message: str
    details: Mapping[str, Any]
    retry: Retry = "never"


class ErrorBody(Struct, frozen=True, kw_only=True):
    """The body of every answer that is an error."""

    error: Problem


class Refusal(Exception):
    """Say no to a request before perdure itself is asked."""

    def __init__(
        self,
        code: str,
        message: str,
        details: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, retry = REFUSALS.get(code) or REJECTIONS[code]
        self.problem = Problem(code=code, message=message, details=details or {}, retry=retry)
        self.headers: Mapping[str, str] = headers or {}


def refusal_of(error: PerdureError) -> Refusal:
    """Word what perdure raised as an answer; raises what is no refusal."""
    match error:
        case Rejected(code=code, message=message, details=details):
            return Refusal(code, message, details)
        case StorageBusy(holder=holder):
            return _unavailable("storage_busy", str(error), holder)
        case Faulted(code=code, message=message):
            return _unavailable("faulted", message, {"fault": code})
        case Closed():
            return _unavailable("closed", str(error), {})
        case StorageDamaged():
            return Refusal("damaged", str(error))
        case FormatUnsupported():
            return Refusal("unsupported_format", str(error))
        case _:
            raise error


def _unavailable(code: str, message: str, details: Mapping[str, object]) -> Refusal:
    return Refusal(code, message, details, {"Retry-After": str(RETRY_AFTER_S)})
