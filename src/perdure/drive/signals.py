"""The signal of one invocation: why it should end (SC-25, D39)."""

import asyncio
from typing import Literal, TypeAlias

SignalReason: TypeAlias = Literal["abort", "close"]


class InvocationSignal:
    """What a handler sees; a thread may read `is_set` and `reason`."""

    __slots__ = ("_owner",)

    def __init__(self, owner: "SignalOwner") -> None:
        """Belong to the side that fires."""
        self._owner = owner

    @property
    def is_set(self) -> bool:
        """Say whether it fired."""
        return self._owner.reason is not None

    @property
    def reason(self) -> SignalReason | None:
        """Say why it fired."""
        return self._owner.reason

    async def wait(self) -> None:
        """Wait until it fires."""
        await self._owner.wait()


class SignalOwner:
    """The side that fires, once; kept by the claim, never handed to a handler."""

    __slots__ = ("_waiters", "reason", "signal")

    def __init__(self) -> None:
        """Make a fresh signal."""
        self.reason: SignalReason | None = None
        self.signal = InvocationSignal(self)
        self._waiters: list[asyncio.Future[None]] = []

    def fire(self, reason: SignalReason) -> None:
        """Fire; a later reason changes nothing."""
        if self.reason is not None:
            return
        self.reason = reason
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until it fires."""
        if self.reason is not None:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
