"""Process-local slots: how many tasks of a sort run at once (K51, SC-23).

Nothing of this is stored. Harnesses given one `Limits` share its slots.
"""

from collections.abc import Callable

from perdure.errors import Rejected


class Limits:
    """Count slots in use; a waiter is called when one is free again."""

    def __init__(self, *, generations: int = 8, tools: int = 32, jobs: int = 16) -> None:
        """Set the limits; each is at least 1.

        Raises:
            Rejected: `invariant`, naming the limit.
        """
        self._limit = {"generations": generations, "tools": tools, "jobs": jobs}
        for name, number in self._limit.items():
            if number < 1:
                raise Rejected("invariant", f"the limit {name} is {number!r}; at least 1")
        self._used = dict.fromkeys(self._limit, 0)
        self._waiters: list[Callable[[], None]] = []

    def limit(self, slot: str) -> int:
        """Answer one limit."""
        return self._limit[slot]

    def take(self, slot: str) -> bool:
        """Take a slot if one is free."""
        if self._used[slot] >= self._limit[slot]:
            return False
        self._used[slot] += 1
        return True

    def release(self, slot: str) -> None:
        """Give a slot back and wake who waits."""
        self._used[slot] -= 1
        for wake in tuple(self._waiters):
            wake()

    def on_release(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after every release; answers the way out."""
        self._waiters.append(wake)

        def stop() -> None:
            if wake in self._waiters:
                self._waiters.remove(wake)

        return stop
