"""The prompt of `run`: arguments, standard input, or both (CM-07)."""

import os
import stat
from collections.abc import Sequence
from typing import Final

from perdure.cli.endings import UsageProblem

STDIN: Final = 0

PROMPT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Most bytes of standard input that are a prompt."""

COUNTED_BYTES_MAX: Final = 64 * 1024 * 1024
"""How far a too long input is read, to say how long it is."""

_BLOCK_BYTES: Final = 1 << 16


def read_prompt(words: Sequence[str]) -> str:
    """Answer the prompt; standard input is read to its end before anything is accepted.

    Raises:
        UsageProblem: there is nothing to say, or too much.
    """
    given = " ".join(words)
    if given == "-":
        prompt = _read_stdin()
    elif not given:
        if _kind_of_stdin() != "piped":
            raise UsageProblem(
                "there is no prompt", 'give one: perdure run "…", or pipe one into it'
            )
        prompt = _read_stdin()
    else:
        piped = _read_stdin() if _kind_of_stdin() == "piped" else ""
        prompt = f"{given}\n\n<stdin>\n{piped}\n</stdin>" if piped else given
    if not prompt.strip():
        raise UsageProblem("the prompt is empty", 'say something: perdure run "…"')
    return prompt


def _kind_of_stdin() -> str:
    """Tell input that somebody piped in from a terminal and from nothing at all."""
    try:
        mode = os.fstat(STDIN).st_mode
    except OSError:
        return "none"
    if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode):
        return "piped"
    return "terminal" if os.isatty(STDIN) else "none"


def _read_stdin() -> str:
    """Read standard input to its end; bytes that are no UTF-8 become U+FFFD (VD-16)."""
    blocks: list[bytes] = []
    size = 0
    try:
        while block := os.read(STDIN, _BLOCK_BYTES):
            size += len(block)
            if size <= PROMPT_BYTES_MAX:
                blocks.append(block)
            if size > COUNTED_BYTES_MAX:
                break
    except OSError as error:
        raise UsageProblem(f"standard input cannot be read: {error}") from None
    if size > PROMPT_BYTES_MAX:
        more = "more than " if size > COUNTED_BYTES_MAX else ""
        raise UsageProblem(
            f"standard input has {more}{size:,} bytes; a prompt has at most {PROMPT_BYTES_MAX:,}",
            "put the text into a file below the root and name the file in the prompt",
        )
    return b"".join(blocks).decode(errors="replace")
