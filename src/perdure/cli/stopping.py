"""What ends a driven command early: Ctrl-C, TERM, hang-up, a closed pipe, its own time limit.

The first of them asks for a clean close. A second Ctrl-C leaves at once: the store is a journal of
whole commits, so leaving is as safe as being killed (CM-08).
"""

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from perdure.cli.endings import CODES, Outcome
from perdure.cli.terminal import Terminal, say_now

GRACE_S: Final = 30.0
"""How long a clean close waits for what is running (CM-08)."""

SIGNALS: Final[tuple[tuple[str, Outcome], ...]] = (
    ("SIGINT", "interrupt"),
    ("SIGTERM", "terminate"),
    ("SIGHUP", "hangup"),
)


class Stop:
    """Whether the command was told to end, and how it will end then."""

    def __init__(self, terminal: Terminal) -> None:
        """Take the terminal, whose broken pipe ends the command too."""
        self.outcome: Outcome | None = None
        self.told = asyncio.Event()
        self.last_words = ""
        """What is said before leaving at once: the line that continues."""
        self._terminal = terminal
        self._loop = asyncio.get_running_loop()
        self._interrupts = 0

    @contextmanager
    def listening(self, timeout_s: float | None) -> Generator[None]:
        """Hear signals, the pipe and the clock while the body runs."""
        before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        for name, outcome in SIGNALS:
            number = getattr(signal, name, None)
            # A signal that the caller has set to be ignored stays ignored: nohup, background jobs.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, self._hearing(outcome))
        self._terminal.when_broken(lambda: self._from_outside("pipe"))
        timer = None
        if timeout_s is not None:
            timer = self._loop.call_later(timeout_s, self.tell, "suspended")
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self._terminal.when_broken(None)
            for number, heard_by in before.items():
                signal.signal(number, heard_by)

    def tell(self, outcome: Outcome) -> None:
        """Ask for the end; the first reason stays."""
        if self.outcome is None:
            self.outcome = outcome
            self.told.set()

    def _from_outside(self, outcome: Outcome) -> None:
        try:
            self._loop.call_soon_threadsafe(self.tell, outcome)
        except RuntimeError:
            return  # the loop is closed: the command has ended already

    def _hearing(self, outcome: Outcome) -> Callable[[int, FrameType | None], None]:
        def hear(_number: int, _frame: FrameType | None) -> None:
            if outcome == "interrupt":
                self._interrupts += 1
                if self._interrupts > 1:
                    say_now(self.last_words)
                    os._exit(CODES["interrupt"])
            self._from_outside(outcome)

        return hear
