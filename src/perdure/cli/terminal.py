"""Standard output and standard error of one command (CM-02, CM-06, CM-09).

Everything is written by one daemon thread in the order it was said: a reader that does not read
delays the words, never the event loop, and so never a signal or a commit.
"""

import os
import queue
import select
import sys
import threading
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

from perdure.cli.visible import visible

When: TypeAlias = Literal["auto", "always", "never"]

STDOUT: Final = 1
STDERR: Final = 2

_STYLES: Final = MappingProxyType({"dim": "2", "good": "32", "bad": "31", "warn": "33"})


class Terminal:
    """Where a command's words go."""

    def __init__(self, *, color: When = "auto", quiet: bool = False, plain: bool = False) -> None:
        """Decide about colour once; `plain` says that standard output is for a program."""
        self.quiet = quiet
        self.out_is_terminal = _is_terminal(STDOUT)
        self.err_is_terminal = _is_terminal(STDERR)
        self._has_color = not plain and _wants_color(color, is_terminal=self.err_is_terminal)
        self._plain = plain
        self._words: queue.SimpleQueue[tuple[int, bytes] | threading.Event | None] = (
            queue.SimpleQueue()
        )
        self._done = threading.Event()
        self._on_broken: Callable[[], None] | None = None
        self.broken: OSError | None = None
        """Why standard output takes no more words, None while it does."""
        threading.Thread(target=self._write, name="perdure-words", daemon=True).start()

    def when_broken(self, tell: Callable[[], None] | None) -> None:
        """Call `tell`, on the writing thread, when standard output breaks."""
        self._on_broken = tell

    def answer(self, text: str) -> None:
        """Write text to standard output; on a terminal without acting characters (SX-03)."""
        shown = visible(text) if self.out_is_terminal and not self._plain else text
        self._words.put((STDOUT, shown.encode(errors="replace")))

    def document(self, record: object) -> None:
        """Write one JSON document and a newline to standard output."""
        self._words.put((STDOUT, msgspec.json.encode(record) + b"\n"))

    def say(self, text: str, style: str = "") -> None:
        """Write one line to standard error, unless only errors are wanted."""
        if not self.quiet:
            self.complain(text, style)

    def complain(self, text: str, style: str = "") -> None:
        """Write one line to standard error, also when quiet."""
        line = visible(text)
        if style and self._has_color:
            line = f"\x1b[{_STYLES[style]}m{line}\x1b[0m"
        self._words.put((STDERR, f"{line}\n".encode(errors="replace")))

    def flush(self) -> None:
        """Wait until what was said so far is written, before a question is asked."""
        written = threading.Event()
        self._words.put(written)
        written.wait()

    def finish(self) -> None:
        """Wait until everything said is written, however slow its reader; Ctrl-C ends the wait."""
        self._words.put(None)
        self._done.wait()

    def _write(self) -> None:
        while (word := self._words.get()) is not None:
            if isinstance(word, threading.Event):
                word.set()
                continue
            stream, data = word
            if stream == STDOUT and self.broken is not None:
                continue
            try:
                _write_all(stream, data)
            except OSError as error:
                if stream == STDOUT:
                    self.broken = error
                    if self._on_broken is not None:
                        self._on_broken()
        self._done.set()


def say_now(text: str) -> None:
    """Write one line to standard error at once, or not at all when that would wait."""
    try:
        if select.select([], [STDERR], [], 0)[1]:
            os.write(STDERR, (visible(text) + "\n").encode(errors="replace"))
    except (OSError, ValueError):
        return


def _write_all(stream: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(stream, data) :]
        except BlockingIOError:  # another process has made the shared stream non-blocking
            select.select([], [stream], [])


def _is_terminal(stream: int) -> bool:
    try:
        return os.isatty(stream)
    except OSError:
        return False


def _wants_color(when: When, *, is_terminal: bool) -> bool:
    """Decide about colour: the flag, then NO_COLOR, TERM and what the stream is (CM-06)."""
    if when != "auto":
        return when == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return is_terminal


def stdin_is_terminal() -> bool:
    """Say whether a person types standard input."""
    try:
        return sys.stdin is not None and os.isatty(0)
    except OSError:
        return False
