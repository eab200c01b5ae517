"""Lines that a person types while the event loop goes on."""

import asyncio
import os
import sys
from contextlib import suppress
from typing import Final

from perdure.cli.terminal import Terminal, stdin_is_terminal
from perdure.opening import HAS_LOCKS

if sys.platform != "win32":
    import termios

STDIN: Final = 0
LINE_BYTES_MAX: Final = 4_096
"""A terminal hands over no longer line."""


def can_ask(terminal: Terminal) -> bool:
    """Say whether a person sees a question here and can answer it.

    A command in the background does not ask: reading the terminal would stop it.
    """
    if not (HAS_LOCKS and stdin_is_terminal() and terminal.err_is_terminal):
        return False
    try:
        return os.tcgetpgrp(STDIN) == os.getpgrp()
    except OSError:
        return False


class TypedLines:
    """Answer typed lines, one at a time; the loop is told when there is one."""

    async def next(self) -> str | None:
        """Answer the next line without its end; None at the end of input or after a hang-up."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(STDIN, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(STDIN)
        try:
            line = os.read(STDIN, LINE_BYTES_MAX)
        except OSError:
            return None
        return line.decode(errors="replace").rstrip("\r\n") if line else None

    def forget(self) -> None:
        """Drop what was typed before a question was shown: it answers another one."""
        if sys.platform != "win32":
            with suppress(OSError, termios.error):
                termios.tcflush(STDIN, termios.TCIFLUSH)
