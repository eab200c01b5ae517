"""A seeded event loop with virtual time: one seed is one run, to be had again at will.

Two ideas. *Time is ours*: when nothing is ready, the clock jumps to the next timer, so a day of
waiting costs nothing. *Order is ours*: asyncio runs what is ready together in the order it became
ready, the same one each time, and nothing of ours may lean on that; so the loop shuffles it with a
seeded generator before each turn. What breaks in some order breaks under some seed, and under that
seed every time.

    with asyncio.Runner(loop_factory=partial(SimLoop, seed)) as runner:
        runner.run(main())

Invariants: the same seed and the same program give the same trace; no real time passes; nothing
ready and no timer raises `Deadlock` at once instead of waiting for ever. A simulation therefore has
no threads, sockets or child processes. It leans on two private names of asyncio, `_ready` and
`_run_once`; `missing_names` tells whether the running Python still has them.
"""

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Mapping
from typing import Final, cast

_READY: Final = "_ready"
_RUN_ONCE: Final = "_run_once"
PRIVATE_NAMES: Final = (_READY, _RUN_ONCE)
"""What the loop needs of asyncio beyond its documented interface."""


class Deadlock(RuntimeError):
    """Nothing is ready, and no timer will ever make it so."""


class _NoWaiting(selectors.SelectSelector):
    """Look at descriptors without waiting, and let time jump instead."""

    def __init__(self, loop: "SimLoop") -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock(
                f"at {self._loop.time():.3f} s of virtual time (seed {self._loop.seed}) nothing "
                f"is ready and no timer is set; waiting: {self._loop.waiting()}"
            )
        if timeout > 0:
            self._loop.advance(timeout)
        return super().select(0)


class ShuffledLoop(asyncio.SelectorEventLoop):
    """An event loop whose order is drawn from a seed, on real time and with real threads."""

    def __init__(self, seed: int, selector: selectors.BaseSelector | None = None) -> None:
        """Take the seed; a selector of one's own decides what waiting is."""
        self._seed = seed
        self._random = random.Random(seed)
        super().__init__(selector)

    @property
    def seed(self) -> int:
        """Answer the seed."""
        return self._seed

    def _run_once(self) -> None:
        # Only what was ready before this turn is shuffled; what it makes ready comes in the next.
        ready = cast("deque[object]", getattr(self, _READY))
        order = list(ready)
        self._random.shuffle(order)
        ready.clear()
        ready.extend(order)
        getattr(super(), _RUN_ONCE)()


class SimLoop(ShuffledLoop):
    """An event loop whose time is virtual and whose order is drawn from a seed."""

    def __init__(self, seed: int) -> None:
        """Start at second 0."""
        self._seconds = 0.0
        super().__init__(seed, _NoWaiting(self))

    def time(self) -> float:
        """Answer virtual seconds since the start."""
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Let virtual time jump, as it does when everybody waits."""
        self._seconds += seconds

    def waiting(self) -> str:
        """Name the tasks that are not done, for a person who looks for the missing wake-up."""
        names = sorted(task.get_name() for task in asyncio.all_tasks(self))
        return ", ".join(names) or "no task"


class SimClock:
    """The `Clock` port on a simulated loop: wall time is a start plus virtual time."""

    def __init__(self, start_ms: int = 1_764_400_000_000) -> None:
        """Take the wall milliseconds at second 0."""
        self._start_ms = start_ms

    def now_ms(self) -> int:
        """Answer wall milliseconds."""
        return self._start_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        """Answer virtual milliseconds since the start."""
        return round(asyncio.get_running_loop().time() * 1000)

    async def sleep(self, ms: int) -> None:
        """Wait in virtual time."""
        await asyncio.sleep(ms / 1000)


def missing_names() -> Mapping[str, str]:
    """Answer the private names this Python's asyncio lacks, with what it was looked for in."""
    probe = asyncio.SelectorEventLoop()
    try:
        return {name: type(probe).__name__ for name in PRIVATE_NAMES if not hasattr(probe, name)}
    finally:
        probe.close()
