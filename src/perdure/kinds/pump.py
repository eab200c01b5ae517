"""The pump: what an outside call produces, stored in bounded batches while it runs (PV-13, WS-12).

The producer runs in the call's own asyncio task and only touches memory; the handler's task sleeps
until something arrived, waits a moment for more, and stores it in one working commit. A call that
ends within that moment costs no working commit at all.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from perdure.drive.context import TaskContext

T = TypeVar("T")

BATCH_MS: Final = 100
"""Most milliseconds that something produced stays unstored (PV-13)."""

BATCH_BYTES: Final = 4_096
"""Bytes that are stored at once, without waiting (PV-13)."""


class Pump:
    """Store what arrives while a call runs."""

    def __init__(self, flush: Callable[[], Awaitable[None]]) -> None:
        """Take the function that stores everything gathered so far."""
        self._flush = flush
        self._bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self._wakes_at = 1

    def arrived(self, size: int) -> None:
        """Note that `size` bytes were gathered."""
        self._bytes += size
        if self._bytes >= self._wakes_at:
            self._nudge()

    async def join(self, ctx: TaskContext, call: "asyncio.Task[T]") -> T:
        """Wait for the call, storing what it produces; what is left at its end stays gathered."""
        loop = asyncio.get_running_loop()
        call.add_done_callback(self._nudge)
        while not call.done():
            await self._until(loop, 1)
            if call.done():
                break
            timer = loop.call_later(BATCH_MS / 1000, self._nudge)
            await self._until(loop, BATCH_BYTES)
            timer.cancel()
            if call.done():
                break
            self._bytes = 0
            await self._flush()
        return await ctx.join(call)

    async def _until(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        """Sleep until `size` bytes are gathered, the call ended, or the timer fired."""
        if self._bytes >= size:
            return
        self._wakes_at = size
        self._wake = loop.create_future()
        await self._wake

    def _nudge(self, _: object = None) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
