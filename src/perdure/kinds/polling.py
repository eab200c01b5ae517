"""How long deferred work waits between polls (D14)."""

from typing import Final

from msgspec import UNSET

from perdure.errors import ProviderError
from perdure.records.models import DeferredHandle

POLL_MIN_MS: Final = 1_000
"""Shortest first wait a handle may ask for."""

POLL_FIRST_MS: Final = 5_000
"""First wait when a handle asks for none."""

POLL_MAX_MS: Final = 300_000
"""Longest wait between polls."""

FETCH_FAILURES: Final = frozenset({"network", "timeout", "stream_ended", "interrupted"})
"""How a poll fails that never reached the provider."""

_DOUBLINGS_MAX: Final = 20
"""More doublings than this pass the longest wait; the number stays small."""


def poll_delay_ms(handle: DeferredHandle, polls: int) -> int:
    """Answer the wait before the next poll: first as the handle says, then doubled."""
    first = (
        POLL_FIRST_MS
        if handle.poll_after_ms is UNSET
        else min(max(handle.poll_after_ms, POLL_MIN_MS), POLL_MAX_MS)
    )
    return min(first << min(polls, _DOUBLINGS_MAX), POLL_MAX_MS)


def fetch_failed(error: ProviderError) -> bool:
    """Say that a poll did not reach the remote work, rather than bring its end."""
    return error.code in FETCH_FAILURES or (
        error.status is not None and error.code != "deferred_expired"
    )
