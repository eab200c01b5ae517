"""The line that gives a prompt again is one line, and the shell reads the same prompt from it."""

import subprocess

import pytest

from perdure.cli.continuing import PROMPT_CHARACTERS_MAX, run_line

PROMPTS = ["hi", "it's", "--yes", "a\nb\tc", "\x1b[31m\u202e\\n'", "$HOME `x` !!", "é\U0001f600\n"]


def arguments(line: str) -> list[str]:
    """Answer what a shell makes of a line's words."""
    script = f"printf '%s\\0' {line}"
    read = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    return read.stdout.decode().split("\0")[:-1]


@pytest.mark.spec("CM-10")
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_shell_reads_the_same_prompt_from_one_line(prompt: str) -> None:
    line = run_line(["--yes"], "a b", prompt)
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    end = ["--"] if prompt.startswith("-") else []
    assert arguments(line) == ["perdure", "run", "--yes", "--session", "a b", *end, prompt]


@pytest.mark.spec("CM-10")
@pytest.mark.parametrize("prompt", ["", "a\0b", "x" * (PROMPT_CHARACTERS_MAX + 1)])
def test_a_prompt_that_fits_no_line_is_read_from_standard_input(prompt: str) -> None:
    assert run_line([], "a", prompt) == "perdure run --session a -"
