"""How long a tool holds the event loop: each step of its coroutine is measured (SC-28, BB-51).

A coroutine that computes for a second between two awaits stops every conversation of the process.
Nothing can interrupt it, so it is named: a function that blocks belongs on a thread, where a tool
that is not async runs already.
"""

from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Final, TypeVar

from perdure.ports import Clock

T = TypeVar("T")

HELD_MS_MAX: Final = 1_000
"""Longest step that goes without a warning (SC-28)."""


def held_loop(name: str, held_ms: int) -> RuntimeWarning:
    """Say which tool held the loop, and for how long."""
    return RuntimeWarning(
        f"the tool {name!r} held the event loop for {held_ms} ms; a function that blocks is "
        f"written without async, and runs on a thread of its own"
    )


async def stepped(work: Coroutine[Any, Any, T], clock: Clock, warn: Callable[[int], None]) -> T:
    """Run a coroutine; `warn` hears once of a step over `HELD_MS_MAX`, in milliseconds."""
    return await _stepped(work, clock, warn)


@coroutine
def _stepped(
    work: Coroutine[Any, Any, T], clock: Clock, warn: Callable[[int], None]
) -> Generator[Any, Any, T]:
    told = False
    error: BaseException | None = None
    sent: Any = None
    try:
        while True:
            began_ms = clock.monotonic_ms()
            try:
                waited_for = work.send(sent) if error is None else work.throw(error)
            except StopIteration as stop:
                return stop.value
            finally:
                held_ms = clock.monotonic_ms() - began_ms
                if held_ms > HELD_MS_MAX and not told:
                    told = True
                    warn(held_ms)
            error = None
            try:
                sent = yield waited_for
            except GeneratorExit:
                raise
            except BaseException as thrown:  # noqa: BLE001 - tool execute: handed to the coroutine as it came
                error = thrown
    finally:
        work.close()
