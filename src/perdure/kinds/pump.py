"""The pump: what an outside call produces, stored in bounded batches while it runs (PV-13, WS-12).

The producer runs in the call's own asyncio task and only touches memory; the handler's task sleeps
until something arrived, waits a moment for more, and stores it in one working commit. A call that
ends within that moment costs no working commit at all.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

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
        self._arrived: asyncio.Future[None] | None = None
        self._full: asyncio.Future[None] | None = None
        self._bytes = 0

    def arrived(self, size: int) -> None:
        """Note that `size` bytes were gathered."""
        self._bytes += size
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        if self._bytes >= BATCH_BYTES and self._full is not None and not self._full.done():
            self._full.set_result(None)

    async def join(self, ctx: TaskContext, call: "asyncio.Task[T]") -> T:
        """Wait for the call, storing what it produces; what is left at its end stays gathered."""
        loop = asyncio.get_running_loop()
        while not call.done():
            self._arrived = loop.create_future()
            if self._bytes:
                self._arrived.set_result(None)
            await _first(call, self._arrived)
            if call.done():
                break
            self._full = loop.create_future()
            if self._bytes < BATCH_BYTES:
                await _first(call, self._full, timeout_s=BATCH_MS / 1000)
            if call.done():
                break
            self._bytes = 0
            await self._flush()
        return await ctx.join(call)


async def _first(
    call: "asyncio.Task[Any]", other: "asyncio.Future[None]", *, timeout_s: float | None = None
) -> None:
    await asyncio.wait({call, other}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
