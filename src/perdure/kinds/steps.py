"""How long a tool holds the event loop: each step of its coroutine is measured (SC-28, BB-51).

A coroutine that computes for a second between two awaits stops every conversation of the process.
Nothing can interrupt it, so it is named: a function that blocks belongs on a thread, where a tool
that is not async runs already. What would end the process, or the call without a result, is an
error of the tool like any other (TL-09).
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from perdure.errors import text_of
from perdure.ports import Clock

T = TypeVar("T")

HELD_MS_MAX: Final = 1_000
"""Longest step that goes without a warning (SC-28)."""


def held_loop(what: str, held_ms: int) -> RuntimeWarning:
    """Say what held the loop, and for how long."""
    return RuntimeWarning(
        f"{what} held the event loop for {held_ms} ms; a function that blocks is "
        f"written without async, and runs on a thread of its own"
    )


async def stepped(
    work: Callable[[], Coroutine[Any, Any, T]], clock: Clock, warn: Callable[[int], None]
) -> T:
    """Run what `work` makes; `warn` hears once of a step over `HELD_MS_MAX`, in milliseconds.

    It is made here, so a call that is cancelled before its first step leaves nothing unawaited.
    """
    return await _Steps(work(), clock, warn)


class _Steps(Generator[Any, Any, T]):
    """Hand a coroutine what it is sent, and time how long each step takes."""

    def __init__(
        self, work: Coroutine[Any, Any, T], clock: Clock, warn: Callable[[int], None]
    ) -> None:
        self._work = work
        self._clock = clock
        self._warn = warn
        self._told = False

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any, /) -> Any:
        began_ms = self._clock.monotonic_ms()
        try:
            return self._work.send(value)
        except (SystemExit, GeneratorExit) as end:
            raise _not_its_own(end) from end
        finally:
            self._measure(began_ms)

    def throw(self, *error: Any) -> Any:
        began_ms = self._clock.monotonic_ms()
        try:
            return self._work.throw(*error)
        except (SystemExit, GeneratorExit) as end:
            raise _not_its_own(end) from end
        finally:
            self._measure(began_ms)

    def close(self) -> None:
        self._work.close()

    def _measure(self, began_ms: int) -> None:
        held_ms = self._clock.monotonic_ms() - began_ms
        if held_ms > HELD_MS_MAX and not self._told:
            self._told = True
            self._warn(held_ms)


def _not_its_own(end: BaseException) -> RuntimeError:
    """Answer an error in place of an exit: one that left a task would stop the whole loop."""
    return RuntimeError(f"it raised {type(end).__name__}: {text_of(end)}")
