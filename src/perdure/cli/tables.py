"""Rows of words, lined up; equal on a terminal and in a file (CM-06)."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from unicodedata import combining, east_asian_width

from perdure.cli.visible import one_line

GAP: Final = "  "
ABSENT: Final = "-"
"""Stands for what is not known, or is not there."""


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Line up rows under their headers; an empty table is its headers."""
    shown = [list(headers), *([_cell(value) for value in row] for row in rows)]
    widths = [max(width(row[column]) for row in shown) for column in range(len(headers))]
    return "".join(_line(row, widths) for row in shown)


def facts(rows: Sequence[tuple[str, object]]) -> str:
    """Line up names and values, one a line."""
    size = max((width(name) for name, _ in rows), default=0)
    return "".join(
        f"{_padded(name, size)}{GAP}{_cell(value)}".rstrip() + "\n" for name, value in rows
    )


def when(ms: int | None) -> str | None:
    """Write wall milliseconds as local time; None and 0 are no time.

    A number that is no time stays a number: a lock file can hold any.
    """
    if not ms:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def width(text: str) -> int:
    """Count the columns a text takes on a terminal."""
    return sum(
        0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text
    )


def _cell(value: object) -> str:
    if value is None:
        return ABSENT
    return f"{value:,}" if type(value) is int else one_line(str(value))


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (_padded(text, size) for text, size in zip(row, widths, strict=True))
    return GAP.join(cells).rstrip() + "\n"


def _padded(text: str, size: int) -> str:
    return text + " " * (size - width(text))
