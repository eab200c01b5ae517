"""Backoff: pure arithmetic over the captured policy (D13, D14, GN-47)."""

import hashlib
from typing import Final

from msgspec import UNSET

from perdure.errors import RETRYABLE, FailureCode, ProviderError
from perdure.records.models import DeferredHandle
from perdure.records.seqs import Seq
from perdure.records.settings import RetryPolicy

JITTER: Final = 0.2
"""Largest share added to a delay."""

POLL_MIN_MS: Final = 1_000
POLL_FIRST_MS: Final = 5_000
POLL_MAX_MS: Final = 300_000


class Backoff:
    """Answer whether and when to try again; equal on every run of one session."""

    def __init__(self, session_id: str) -> None:
        """Take the session's id: it spreads sessions that fail at the same moment (K45)."""
        self._session_id = session_id

    def may_retry(self, error: ProviderError, attempt: int, policy: RetryPolicy) -> bool:
        """Say whether another attempt is due."""
        too_long = (error.retry_after_ms or 0) > policy.max_delay_ms
        return error.code in RETRYABLE and attempt < policy.max_attempts and not too_long

    def final_code(self, error: ProviderError, policy: RetryPolicy) -> FailureCode:
        """Answer the code a failed generation carries."""
        if error.code in RETRYABLE and (error.retry_after_ms or 0) > policy.max_delay_ms:
            return "retry_after_too_long"
        return error.code

    def delay_ms(
        self, error: ProviderError, task_id: Seq, attempt: int, policy: RetryPolicy
    ) -> int:
        """Answer the wait after attempt `attempt`, in milliseconds."""
        plain = min(policy.max_delay_ms, policy.base_delay_ms * 2 ** (attempt - 1))
        seed = hashlib.sha256(f"{self._session_id}:{task_id}:{attempt}".encode()).digest()
        spread = int.from_bytes(seed[:8]) / 2**64
        return max(int(plain * (1 + JITTER * spread)), error.retry_after_ms or 0)

    def poll_ms(self, handle: DeferredHandle, polls: int) -> int:
        """Answer the wait before the next poll: first as the handle says, then doubled (D14)."""
        first = (
            POLL_FIRST_MS
            if handle.poll_after_ms is UNSET
            else min(max(handle.poll_after_ms, POLL_MIN_MS), POLL_MAX_MS)
        )
        return min(first * 2 ** min(polls, 20), POLL_MAX_MS)
