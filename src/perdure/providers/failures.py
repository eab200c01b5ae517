"""Which of the closed list of failures a provider's answer is (PV-15 to PV-17, D13).

The tables are data: one wording a row, each with a real sample that a test feeds back. The first
rule that fits decides: overflow, then the account, then the vendor library's own classification
or the status, then transport exceptions, then transient wordings; anything else is
`invalid_request` with the class name of what was raised.
"""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Final, cast

from msgspec import Struct
from pydantic_ai import exceptions as vendor

from perdure.errors import FailureCode, ProviderError, Rejected
from perdure.records.strict_json import repair_text

MESSAGE_CHARACTERS_MAX: Final = 2_000
"""Longest message of a failure; providers may answer with a whole page."""


class Wording(Struct, frozen=True, kw_only=True):
    """A way of saying something: a pattern for the lower-case text, and a real sample of it."""

    pattern: str
    sample: str
    code: FailureCode = "overflow"


OVERFLOWS: Final[tuple[Wording, ...]] = (
    Wording(
        pattern=r"maximum context length (?:is|of) (?P<window>\d+)",
        sample="This model's maximum context length is 8192 tokens. However, you requested 9000.",
    ),
    Wording(
        pattern=r"prompt is too long(?:: \d+ tokens > (?P<window>\d+))?",
        sample="prompt is too long: 210000 tokens > 200000 maximum",
    ),
    Wording(
        pattern=r"context_length_exceeded|context length exceeded",
        sample="error code context_length_exceeded",
    ),
    Wording(
        pattern=r"exceeds? the (?:model's )?(?:maximum )?(?:available )?"
        r"context (?:size|window|length)(?: \((?P<window>\d+) tokens\))?",
        sample="the request (9001 tokens) exceeds the available context size (4096 tokens), try it",
    ),
    Wording(
        pattern=r"input length (?:and `?max_tokens`? )?exceeds? (?:the )?context",
        sample="input length and `max_tokens` exceed context limit: 199000 + 20000 > 200000",
    ),
    Wording(
        pattern=r"input token count.*exceeds the maximum number of tokens allowed"
        r"(?: \(?(?P<window>\d+))?",
        sample="The input token count (1200000) exceeds the maximum number of tokens allowed "
        "(1048576).",
    ),
    Wording(
        pattern=r"exceed_context_size_error",
        sample="exceed_context_size_error: n_prompt_tokens 9001",
    ),
    Wording(
        pattern=r"request_too_large|request exceeds the maximum size",
        sample="request_too_large: Request exceeds the maximum size",
    ),
    Wording(
        pattern=r"tokens? to keep .* (?:context|n_ctx)|context (?:the )?overflows?",
        sample="Trying to keep the first 9000 tokens when context the overflows. n_ctx = 4096",
    ),
    Wording(
        pattern=r"too many tokens|input is too long|reduce the length of the messages",
        sample="Input is too long for requested model.",
    ),
)
"""How servers say that a request does not fit; `window` is the limit where they name it."""

ACCOUNTS: Final[tuple[Wording, ...]] = (
    Wording(
        pattern=r"insufficient_quota|exceeded your current quota",
        sample="You exceeded your current quota, please check your plan.",
        code="quota",
    ),
    Wording(
        pattern=r"(?:usage|spend(?:ing)?) limit (?:has been )?(?:reached|exceeded)"
        r"|(?:spend|usage)_limit_exceeded",
        sample="organization_spend_limit_exceeded",
        code="quota",
    ),
    Wording(
        pattern=r"credit balance is too low|billing_error|billing hard limit|payment required",
        sample="Your credit balance is too low to access the API.",
        code="billing",
    ),
)
"""How servers say that the account is spent; another attempt does not help (D13)."""

FILTERS: Final[tuple[Wording, ...]] = (
    Wording(
        pattern=r"content[_ ](?:filter|policy)|content management policy|flagged (?:as|by)",
        sample="The response was filtered due to the content management policy.",
        code="content_filter",
    ),
)
"""How servers say that a filter refused the content."""

TRANSIENT: Final[tuple[Wording, ...]] = (
    Wording(pattern=r"overloaded", sample="Overloaded", code="overloaded"),
    Wording(
        pattern=r"temporarily unavailable|try again later|internal (?:server )?error|server_error",
        sample="The service is temporarily unavailable",
        code="server",
    ),
    Wording(
        pattern=r"connection (?:reset|closed|refused|error)|peer closed",
        sample="Connection reset by peer",
        code="network",
    ),
    Wording(pattern=r"timed? ?out", sample="The operation timed out", code="timeout"),
)
"""Wordings of failures that another attempt may cure, for errors that come without a status."""

CATEGORIES: Final[tuple[tuple[type[Exception], FailureCode], ...]] = (
    (vendor.ModelContextWindowExceededError, "overflow"),
    (vendor.ModelQuotaExceededError, "quota"),
    (vendor.ModelRateLimitError, "rate_limited"),
    (vendor.ModelOverloadedError, "overloaded"),
    (vendor.ModelAuthenticationError, "auth"),
    (vendor.ModelNotFoundError, "model_not_found"),
    (vendor.ContentFilterError, "content_filter"),
    (vendor.ModelUnavailableError, "server"),
    (vendor.ModelServerError, "server"),
    (vendor.ModelTimeoutError, "timeout"),
    (vendor.ModelRequestTimeout, "timeout"),
    (vendor.ModelConnectionError, "network"),
    (vendor.SuspendedResponseExpired, "deferred_expired"),
)
"""The vendor library's own classes, most telling first."""

STATUSES: Final[Mapping[int, FailureCode]] = MappingProxyType(
    {
        401: "auth",
        402: "billing",
        403: "auth",
        404: "model_not_found",
        408: "timeout",
        425: "server",
        429: "rate_limited",
        529: "overloaded",
    }
)
"""Statuses that mean something of their own; other 4xx are `invalid_request`, 5xx are `server`."""

OVERFLOW_STATUSES_NOT: Final = frozenset({401, 402, 403, 404, 408, 429, 529})
"""Statuses that keep their meaning whatever the words are."""

PART: Final = re.compile(
    r"(?:messages|input)[.\[]*(?P<message>\d+)\]?\.content[.\[]*(?P<block>\d+)"
    r"(?:\]?\.(?:tool_result\.)?content[.\[]*(?P<inner>\d+))?"
)
"""How servers name the block they refuse, in a message or in `param`."""


class RefusedBlock(Struct, frozen=True, kw_only=True):
    """Place of the block a server refused, in its own numbering of the request."""

    message: int
    block: int
    inner: int | None = None


def failure(error: BaseException, *, now_ms: int) -> ProviderError:
    """Classify whatever a request raised; a `ProviderError` passes through."""
    known = _known(error)
    if known is not None:
        return known
    status = error.status_code if isinstance(error, vendor.ModelHTTPError) else None
    text = _text(error)
    code = _code(error, status, text.lower())
    prefix = "" if isinstance(error, vendor.ModelAPIError) else f"{type(error).__name__}: "
    return ProviderError(
        code,
        (prefix + text)[:MESSAGE_CHARACTERS_MAX],
        status=status,
        retry_after_ms=_retry_after_ms(error, now_ms),
        window=overflow_window(text) if code == "overflow" else None,
    )


def _known(error: BaseException) -> ProviderError | None:
    """Find an error of ours in the chain: vendor libraries wrap what their transports raise."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ProviderError):
            return seen
        if isinstance(seen, Rejected):
            return ProviderError("invalid_request", seen.message)
        seen = seen.__cause__
    return None


def _text(error: BaseException) -> str:
    """Join what a server said: its message, its code and its type."""
    if not isinstance(error, vendor.ModelAPIError):
        return repair_text(str(error))[0]
    said = _message(error.body) or str(error)
    marks = (error.provider_error_code, error.provider_error_type)
    words = [said, *(f"({mark})" for mark in marks if mark and mark not in said)]
    return repair_text(" ".join(words))[0]


def _message(body: object) -> str | None:
    """Find the message in an error's body: at the top, or in its `error`."""
    if not isinstance(body, dict):
        return body if isinstance(body, str) else None
    fields = cast("dict[str, object]", body)
    inner = fields.get("error")
    if isinstance(inner, dict):
        fields, inner = cast("dict[str, object]", inner), None
    said = fields.get("message", inner)
    return said if isinstance(said, str) and said else None


def _code(error: BaseException, status: int | None, text: str) -> FailureCode:
    if isinstance(error, vendor.ModelContextWindowExceededError) or (
        status not in OVERFLOW_STATUSES_NOT and _find(OVERFLOWS, text)
    ):
        return "overflow"
    if isinstance(error, vendor.ModelAPIError | vendor.UnexpectedModelBehavior):
        account = _find(ACCOUNTS, text)
        if account and not (status is not None and status >= 500):
            return account
        if _find(FILTERS, text) and (status is None or status < 500):
            return "content_filter"
    if status in (402, 408, 425):
        return STATUSES[status]
    for category, code in CATEGORIES:
        if isinstance(error, category):
            return code
    if status is not None:
        return STATUSES.get(status, "server" if status >= 500 else "invalid_request")
    return _code_without_status(error, text)


def _code_without_status(error: BaseException, text: str) -> FailureCode:
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, OSError | EOFError):
        return "network"
    if isinstance(error, vendor.ModelRequestRejectedError):
        return "invalid_request"
    if isinstance(error, vendor.UnexpectedModelBehavior) and "ended without" in text:
        return "stream_ended"
    if isinstance(error, vendor.ModelAPIError):
        return _find(TRANSIENT, text) or "invalid_request"
    return "invalid_request"


def _find(table: tuple[Wording, ...], text: str) -> FailureCode | None:
    for row in table:
        if re.search(row.pattern, text):
            return row.code
    return None


def overflow_window(text: str) -> int | None:
    """Answer the window an overflow names, in tokens."""
    for row in OVERFLOWS:
        found = re.search(row.pattern, text.lower())
        if found and found.groupdict().get("window"):
            return int(found["window"])
    return None


def _retry_after_ms(error: BaseException, now_ms: int) -> int | None:
    headers = error.headers if isinstance(error, vendor.ModelHTTPError) else None
    return retry_after_ms(headers or {}, now_ms)


def retry_after_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """Read `retry-after-ms` or `Retry-After` (seconds or a date); nonsense is absent (PV-16)."""
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    wait = _number(lower.get("retry-after-ms"), 1)
    if wait is None:
        wait = _number(lower.get("retry-after"), 1_000)
    if wait is None and "retry-after" in lower:
        wait = _until(lower["retry-after"], now_ms)
    return wait if wait is not None and wait >= 0 else None


def _number(text: str | None, factor: int) -> int | None:
    if text is None or not re.fullmatch(r"-?\d{1,12}(?:\.\d{1,9})?", text):
        return None
    return int(float(text) * factor)


def _until(text: str, now_ms: int) -> int | None:
    try:
        return int(parsedate_to_datetime(text).timestamp() * 1_000) - now_ms
    except ValueError:
        return None


def refused_block(error: BaseException) -> RefusedBlock | None:
    """Answer the block that a refused request names, in the server's own numbering (PV-21)."""
    if not isinstance(error, vendor.ModelRequestRejectedError):
        return None
    found = PART.search(f"{error} {error.body}")
    if found is None:
        return None
    inner = found["inner"]
    return RefusedBlock(
        message=int(found["message"]),
        block=int(found["block"]),
        inner=None if inner is None else int(inner),
    )
