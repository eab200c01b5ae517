"""A clock that only a test moves."""

import asyncio
import itertools
from typing import Final

from msgspec import Struct

START_MS: Final = 1_764_400_000_000
"""Where the wall clock of a test starts, in milliseconds."""


class _Sleeper(Struct, frozen=True):
    due_ms: int
    order: int
    woken: "asyncio.Future[None]"


class ManualClock:
    """Stand still until `advance`; the wall can be set forward and back, deadlines cannot (D40)."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0
        self._order = itertools.count()
        self._sleepers: list[_Sleeper] = []
        self._changed = asyncio.Event()

    def now_ms(self) -> int:
        """Answer the wall time last set, plus what was advanced since."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Answer how many milliseconds were advanced since the clock was made."""
        return self._monotonic_ms

    def set_now_ms(self, now_ms: int) -> None:
        """Set the wall clock, forward or back; nobody wakes up from it."""
        self._now_ms = now_ms

    async def sleep(self, ms: int) -> None:
        """Wait until `ms` milliseconds were advanced; zero or less gives the loop one turn."""
        if ms <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeper = _Sleeper(self._monotonic_ms + ms, next(self._order), woken)
        self._sleepers.append(sleeper)
        self._changed.set()
        try:
            await woken
        finally:
            self._sleepers.remove(sleeper)

    def advance(self, ms: int) -> None:
        """Move wall and monotonic time on, waking who is due, earliest first."""
        if ms < 0:
            raise ValueError(f"a clock advances by 0 ms or more, not {ms!r}; see set_now_ms")
        self._now_ms += ms
        self._monotonic_ms += ms
        due = [one for one in self._sleepers if one.due_ms <= self._monotonic_ms]
        for sleeper in sorted(due, key=lambda one: (one.due_ms, one.order)):
            if not sleeper.woken.done():
                sleeper.woken.set_result(None)

    @property
    def sleepers(self) -> int:
        """Say how many are asleep and not yet due."""
        return sum(not sleeper.woken.done() for sleeper in self._sleepers)

    def next_due_ms(self) -> int | None:
        """Answer how far to advance to wake the next sleeper; None when nobody sleeps."""
        due = [one.due_ms - self._monotonic_ms for one in self._sleepers if not one.woken.done()]
        return min(due, default=None)

    async def until_asleep(self, count: int = 1) -> None:
        """Wait until at least `count` are asleep, so that a test never advances too early."""
        while self.sleepers < count:
            self._changed.clear()
            await self._changed.wait()
