"""Read the examples of the documents, and run a page of them as one program.

The `python` blocks of a page are one program: they run in order and share their names. Each line
keeps its number of the page, so a traceback names the place in the document. A page may await at
the top level; without that it runs with no loop, so that it may call `perdure.run`. A line of
the form `#> text` says what is printed at this place.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import re
from collections.abc import Coroutine
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, cast

from tests.house.source import ROOT

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = "#> "


def documents() -> list[Path]:
    """List the README and every page below docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """Name a page from the root of the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Answer the blocks of one language: the number of the first line, and the text."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start(2)) + 1, found[2])
        for found in FENCE.finditer(text)
        if found[1] == language
    ]


def program(page: Path) -> str:
    """Join a page's python blocks, each line at its own number."""
    lines: list[str] = []
    for first, text in blocks(page, "python"):
        lines += [""] * (first - 1 - len(lines)) + text.splitlines()
    return "\n".join(lines) + "\n"


def printed(page: Path) -> list[str]:
    """Answer what a page says that it prints."""
    lines = (line.strip() for line in program(page).splitlines())
    return [line.removeprefix(PRINTED) for line in lines if line.startswith(PRINTED)]


def play(source: str, name: str) -> list[str]:
    """Run a program in the current folder; answers the lines it printed."""
    code = compile(source, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    main = FunctionType(cast("CodeType", code), {"__name__": "__main__"})
    with contextlib.redirect_stdout(io.StringIO()) as out:
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(cast("Coroutine[Any, Any, None]", main()))
        else:
            main()
    return out.getvalue().splitlines()
