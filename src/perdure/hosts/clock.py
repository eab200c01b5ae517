"""The real clock."""

import asyncio
import time
from typing import Final

_NS_PER_MS: Final = 1_000_000
_MS_PER_S: Final = 1_000


class SystemClock:
    """Answer the machine's time; only `now_ms` is ever stored (D40)."""

    def now_ms(self) -> int:
        """Answer wall milliseconds since 1970; it steps when somebody sets the clock."""
        return time.time_ns() // _NS_PER_MS

    def monotonic_ms(self) -> int:
        """Answer milliseconds that never step back, for deadlines inside this process."""
        return time.monotonic_ns() // _NS_PER_MS

    async def sleep(self, ms: int) -> None:
        """Wait at least `ms` milliseconds; zero or less gives the loop one turn."""
        await asyncio.sleep(max(0, ms) / _MS_PER_S)
