"""Where a key stands in a TOML text: tomllib reads values and forgets lines."""

import re
from collections.abc import Mapping
from typing import Final

_PART: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEYS: Final = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER: Final = re.compile(rf"\s*\[\[?\s*({_KEYS})\s*\]")
_ASSIGNMENT: Final = re.compile(rf"\s*({_KEYS})\s*=")
_ONE: Final = re.compile(_PART)
_QUOTES: Final = ('"""', "'''")


def lines_of(text: str) -> Mapping[tuple[str, ...], int]:
    """Answer the line of every table header and key, counted from 1.

    A key inside an inline table is not listed; its table is.
    """
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    open_quote = ""
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not open_quote and depth == 0:
            if header := _HEADER.match(line):
                table = _parts(header[1])
                found.setdefault(table, number)
                continue
            if assignment := _ASSIGNMENT.match(line):
                found.setdefault((*table, *_parts(assignment[1])), number)
        open_quote, depth = _after(line, open_quote, depth)
    return found


def line_at(lines: Mapping[tuple[str, ...], int], path: tuple[str, ...]) -> int | None:
    """Answer the line of a path, or of the nearest thing around it."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


def _parts(keys: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _ONE.findall(keys))


def _after(line: str, quote: str, depth: int) -> tuple[str, int]:
    """Follow multi-line texts and arrays over the end of a line."""
    at = 0
    while at < len(line):
        if quote:
            end = line.find(quote, at)
            if end < 0:
                return quote, depth
            at, quote = end + 3, ""
        elif line[at : at + 3] in _QUOTES:
            quote, at = line[at : at + 3], at + 3
        elif line[at] in "\"'":
            at = _text_end(line, at)
        elif line[at] == "#":
            break
        else:
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(line[at], 0)
            at += 1
    return quote, max(depth, 0)


def _text_end(line: str, at: int) -> int:
    mark = line[at]
    at += 1
    while at < len(line) and line[at] != mark:
        at += 2 if line[at] == "\\" and mark == '"' else 1
    return at + 1
