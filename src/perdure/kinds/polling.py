"""Deferred work: how long it waits between polls, and how it is given up (D14)."""

import asyncio
from typing import Final

from msgspec import UNSET

from perdure.drive.context import TaskContext
from perdure.errors import ProviderError
from perdure.kinds.services import Services
from perdure.records.models import DeferredHandle

POLL_MIN_MS: Final = 1_000
"""Shortest first wait a handle may ask for."""

POLL_FIRST_MS: Final = 5_000
"""First wait when a handle asks for none."""

POLL_MAX_MS: Final = 300_000
"""Longest wait between polls."""

CANCEL_WAIT_S: Final = 5
"""Seconds a provider has to cancel remote work."""

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


async def cancel_deferred(ctx: TaskContext, services: Services, handle: DeferredHandle) -> None:
    """Try once to cancel remote work; its error is reported only (D14)."""
    try:
        async with asyncio.timeout(CANCEL_WAIT_S):
            await services.models.cancel(handle)
    except Exception as error:  # noqa: BLE001 - provider cancel: the abort completes whatever it says
        services.report(error, ctx.task_id)
