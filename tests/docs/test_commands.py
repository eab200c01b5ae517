"""Every command and flag that the documents name exists."""

import re
import shlex
from pathlib import Path

import click
import pytest

from perdure.cli.main import cli
from tests.docs.pages import blocks, documents, name_of

SPAN = re.compile(r"`(perdure [^`…]+)`")
GENERATED = "docs/reference/cli.md"


def named(page: Path) -> list[str]:
    """Answer the command lines of a page: in the text, in console blocks, in shell blocks."""
    text = page.read_text(encoding="utf-8")
    lines = [
        line
        for kind in ("sh", "console")
        for _, text in blocks(page, kind)
        for line in text.splitlines()
    ]
    typed = [line.removeprefix("$ ").strip() for line in lines]
    return [*SPAN.findall(text), *(line for line in typed if line.startswith("perdure "))]


def unknown(line: str) -> list[str]:
    """Answer the words of a command line that perdure does not know."""
    words = [word for word in shlex.split(line.rstrip("&"), comments=True)[1:] if word != ">"]
    found: click.Command = cli
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        if words[0].isupper():  # a placeholder
            return []
        inner = found.get_command(click.Context(found), words[0])
        if inner is None:
            return [] if found is not cli and "[" in (found.help or "") else [words[0]]
        found, words = inner, words[1:]
    flags = {flag for one in found.get_params(click.Context(found)) for flag in one.opts}
    return [word for word in words if re.match(r"--?[a-z]", word) and word not in flags]


@pytest.mark.parametrize(
    "page", [page for page in documents() if name_of(page) != GENERATED], ids=name_of
)
def test_each_command_of_a_page_exists(page: Path) -> None:
    wrong = {line: unknown(line) for line in named(page)}
    assert {line: words for line, words in wrong.items() if words} == {}


def test_a_wrong_command_and_a_wrong_flag_are_found() -> None:
    assert unknown("perdure rum --session trip") == ["rum"]
    assert unknown("perdure run --sesion trip") == ["--sesion"]
    assert unknown("perdure sessions lost") == ["lost"]
