"""Whether and when a failed model request is tried again: pure rules over errors (D13, GN-25).

The delay doubles from attempt to attempt up to a cap and gets up to a fifth on top, taken from a
hash of stored ids: the same on every run of one session, and different in sessions that share an
account (K45). The caller stores when the wait ends, so a restart neither shortens nor repeats it.
"""

import hashlib
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from perdure.errors import RETRYABLE, ProviderError, text_of
from perdure.records.codec import canonical
from perdure.records.messages import MessageError
from perdure.records.seqs import Seq
from perdure.records.settings import RetryPolicy

ErrorClass: TypeAlias = Literal["overflow", "retry", "fatal"]

JITTER_SHARE: Final = 5
"""The jitter is less than one fifth of the delay (GN-47)."""

_DOUBLINGS_MAX: Final = 62
"""More doublings than this pass every cap; the number stays small."""


class TryAgain(Struct, frozen=True, gc=False, kw_only=True):
    """Wait this many milliseconds from now, then make the next attempt."""

    delay_ms: int


def as_provider_error(error: Exception) -> ProviderError:
    """Answer a failure as a classified one; an adapter may let an exception of its own through."""
    if isinstance(error, ProviderError):
        return error
    message = f"{type(error).__name__}: {text_of(error)}"
    if isinstance(error, TimeoutError):
        return ProviderError("timeout", message)
    if isinstance(error, EOFError):
        return ProviderError("stream_ended", message)
    if isinstance(error, OSError):
        return ProviderError("network", message)
    return ProviderError("invalid_request", message)


def classify(error: Exception) -> ErrorClass:
    """Say what a failed request calls for: making room, another attempt, or nothing (D13)."""
    code = as_provider_error(error).code
    if code == "overflow":
        return "overflow"
    return "retry" if code in RETRYABLE else "fatal"


def retry_delay_ms(policy: RetryPolicy, *, session_id: str, task_id: Seq, attempt: int) -> int:
    """Answer how long to wait after attempt `attempt` (1 is the first), in milliseconds.

    That is min(maxDelayMs, baseDelayMs * 2^(attempt-1)) and 0 to 20 % more (D13, GN-47).
    """
    doublings = min(max(attempt - 1, 0), _DOUBLINGS_MAX)
    delay = min(policy.max_delay_ms, policy.base_delay_ms << doublings)
    form = {"v": 1, "session": session_id, "task": task_id, "attempt": attempt}
    share = int.from_bytes(hashlib.sha256(canonical(form)).digest()[:8], "big")
    return delay + (delay * share // JITTER_SHARE >> 64)


def decide_retry(
    error: Exception, policy: RetryPolicy, *, session_id: str, task_id: Seq, attempt: int
) -> TryAgain | MessageError:
    """Decide what follows attempt `attempt`, which failed with `error`: a wait, or the last word.

    An overflow is given up here: making room and trying once more does not use the budget, and is
    the caller's to decide first. What the provider asks for (`retry_after_ms`) is honoured up to
    the policy's longest delay; beyond it the failure is `retry_after_too_long`.
    """
    failure = as_provider_error(error)
    if classify(failure) != "retry":
        return MessageError(code=failure.code, message=failure.message)
    if attempt >= policy.max_attempts:
        return MessageError(
            code=failure.code,
            message=f"{failure.message} (attempt {attempt} of {policy.max_attempts})",
        )
    asked = failure.retry_after_ms or 0
    if asked > policy.max_delay_ms:
        return MessageError(
            code="retry_after_too_long",
            message=f"the provider asks for a wait of {asked} ms; at most {policy.max_delay_ms} ms "
            f"are waited: {failure.message}",
        )
    delay = retry_delay_ms(policy, session_id=session_id, task_id=task_id, attempt=attempt)
    return TryAgain(delay_ms=max(delay, asked))
