"""The one line that continues a session, quoted for the shell (CM-10)."""

import re
import shlex
from collections.abc import Sequence
from typing import Final

from perdure.cli.visible import visible

PROMPT_CHARACTERS_MAX: Final = 2_000
"""Longest prompt that is repeated in a line; a longer one is piped in again."""

FROM_STDIN: Final = "-"

_ESCAPED: Final = re.compile(r"[\\'\n\t]")


def resume_line(words: Sequence[str], session: str) -> str:
    """Answer the line that goes on with what is live; `words` are its flags."""
    return shlex.join(["perdure", "resume", *words, "--session", session])


def run_line(words: Sequence[str], session: str, prompt: str) -> str:
    """Answer the line that gives a prompt, as one line whatever the prompt holds."""
    start = shlex.join(["perdure", "run", *words, "--session", session])
    if not 0 < len(prompt) <= PROMPT_CHARACTERS_MAX or "\0" in prompt:
        return f"{start} {FROM_STDIN}"
    end_of_flags = " --" if prompt.startswith("-") else ""
    return f"{start}{end_of_flags} {_quoted(prompt)}"


def _quoted(prompt: str) -> str:
    """Quote plainly, or as `$'…'` when a character would act on the terminal or break the line."""
    if "\n" not in prompt and "\t" not in prompt and visible(prompt) == prompt:
        return shlex.quote(prompt)
    return "$'" + "".join(_escaped(letter) for letter in prompt) + "'"


def _escaped(letter: str) -> str:
    if _ESCAPED.match(letter) is None and visible(letter) == letter:
        return letter
    return "".join(f"\\{byte:03o}" for byte in letter.encode(errors="surrogateescape"))
