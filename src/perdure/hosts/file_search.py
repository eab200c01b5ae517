"""Glob and search over a tree, in a process that can be killed (KT-13, SX-14).

Started as `python -I -S file_search.py`: one JSON question on standard input, one JSON answer on
standard output. A regular expression on a hostile line may never end and holds the interpreter
while it runs, so it runs where a kill stops nothing else. Standard library only.

Folders are opened one by one without following links, so nothing outside the root is listed or
read, whatever is swapped meanwhile (KT-04). Globs match without backtracking over more than the
last star: time is at most pattern times name.
"""

import json
import os
import re
import signal
import stat
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

LIFE_S_MAX: Final = 25
"""An orphan ends itself: longer than any limit of who asks."""

BINARY_PROBE_BYTES: Final = 8 * 1024
LINE_BYTES_MAX: Final = 64 * 1024
"""A longer line is searched in pieces of this size."""

SHOWN_CHARACTERS_MAX: Final = 2_000
ANSWER_CHARACTERS_MAX: Final = 256 * 1024
DEPTH_MAX: Final = 200
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def match_name(pattern: str, name: str) -> bool:
    """Match one path component against `*`, `?` and `[…]`; a backslash takes the next literally."""
    at, here, star, resume = 0, 0, -1, 0
    tokens = _tokens(pattern)
    while here < len(name):
        if at < len(tokens) and tokens[at] == "*":
            star, resume = at, here
            at += 1
        elif at < len(tokens) and _fits(tokens[at], name[here]):
            at, here = at + 1, here + 1
        elif star >= 0:
            resume += 1
            at, here = star + 1, resume
        else:
            return False
    return set(tokens[at:]) <= {"*"}


def _tokens(pattern: str) -> list[str]:
    """Split into `*`, `?`, `[…]` and escaped literals (two characters, a backslash first)."""
    tokens: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            tokens.append(pattern[at : at + 2])
            at += 2
        elif char == "[" and (end := _class_end(pattern, at)) > 0:
            tokens.append(pattern[at:end])
            at = end
        else:
            tokens.append(char if char in "*?" else f"\\{char}")
            at += 1
    return tokens


def _class_end(pattern: str, start: int) -> int:
    """Find where a class ends; a `]` that stands first is a member. 0 when it has no end."""
    at = start + 1
    if pattern[at : at + 1] in {"!", "^"}:
        at += 1
    return pattern.find("]", at + 1) + 1


def _fits(wanted: str, char: str) -> bool:
    if wanted == "?":
        return True
    if wanted[0] != "[":
        return wanted[1] == char
    members = wanted[1:-1]
    is_negated = members[0] in "!^"
    members = members[1:] if is_negated else members
    at, found = 0, False
    while at < len(members):
        if members[at + 1 : at + 2] == "-" and at + 2 < len(members):
            found = found or members[at] <= char <= members[at + 2]
            at += 3
        else:
            found = found or members[at] == char
            at += 1
    return found != is_negated


def match_path(pattern: list[str], path: list[str]) -> bool:
    """Match path components; a component `**` stands for any number of them, also none."""
    reachable = {0}
    for part in [*path, None]:
        spread = {step for at in reachable for step in _steps(pattern, at)}
        if part is None:
            return len(pattern) in spread
        reachable = {
            at if pattern[at] == "**" else at + 1
            for at in spread
            if at < len(pattern) and (pattern[at] == "**" or match_name(pattern[at], part))
        }
    return False


def _steps(pattern: list[str], at: int) -> range:
    """Answer the places that `**` components let a match stand at without taking a name."""
    end = at
    while end < len(pattern) and pattern[end] == "**":
        end += 1
    return range(at, end + 1)


class Rule(NamedTuple):
    """One line of an ignore file, anchored in the folder of that file."""

    anchor: tuple[str, ...]
    pattern: tuple[str, ...]
    is_exception: bool
    only_folders: bool


def read_rules(text: str, anchor: tuple[str, ...]) -> list[Rule]:
    """Read an ignore file by git's rules; what names nothing is left out."""
    rules: list[Rule] = []
    for raw in text.splitlines():
        line = raw.rstrip(" ") if not raw.endswith("\\ ") else raw
        if not line or line.startswith("#"):
            continue
        is_exception = line.startswith("!")
        line = line[1:] if is_exception else line
        only_folders = line.endswith("/")
        body = line.rstrip("/")
        # A slash before the end anchors the pattern; without one it matches at any depth.
        parts = body.lstrip("/").split("/") if "/" in body else ["**", body]
        if body:
            rules.append(Rule(anchor, tuple(parts), is_exception, only_folders))
    return rules


def is_ignored(rules: list[Rule], path: tuple[str, ...], *, is_folder: bool) -> bool:
    """Decide by the last rule that matches; `.git` is always left out (KT-14)."""
    if path[-1] == ".git":
        return True
    for rule in reversed(rules):
        depth = len(rule.anchor)
        if rule.only_folders and not is_folder:
            continue
        if path[:depth] == rule.anchor and match_path(list(rule.pattern), list(path[depth:])):
            return not rule.is_exception
    return False


class Found(NamedTuple):
    """One file of the tree, with the folder it can be opened from."""

    folder: int
    parts: tuple[str, ...]
    is_link: bool


class Tree:
    """Walk a tree in path order, without entering links, counting what ignore rules leave out."""

    def __init__(self, *, shows_ignored: bool) -> None:
        self.ignored = 0
        self._shows_ignored = shows_ignored

    def files_under(
        self,
        folder: int,
        under: list[str],
        parts: tuple[str, ...] = (),
        rules: tuple[Rule, ...] = (),
    ) -> Iterator[Found]:
        """Yield the files below one folder of the tree; ignore files above it count too."""
        if not under:
            yield from self.files(folder, parts, rules)
            return
        own = (*rules, *self._own_rules(folder, parts))
        inner = os.open(under[0], _FOLDER, dir_fd=folder)
        try:
            yield from self.files_under(inner, under[1:], (*parts, under[0]), own)
        finally:
            os.close(inner)

    def files(
        self, folder: int, parts: tuple[str, ...] = (), rules: tuple[Rule, ...] = ()
    ) -> Iterator[Found]:
        """Yield the files below an open folder, sorted by name bytes."""
        own = [*rules, *self._own_rules(folder, parts)]
        for name, is_folder, is_link in _rows(folder):
            path = (*parts, name)
            hides = not self._shows_ignored and is_ignored(own, path, is_folder=is_folder)
            if not is_folder:
                self.ignored += hides
                if not hides:
                    yield Found(folder, path, is_link)
            elif len(path) < DEPTH_MAX:
                yield from self._below(folder, path, tuple(own), hides=hides)

    def _below(
        self, folder: int, path: tuple[str, ...], rules: tuple[Rule, ...], *, hides: bool
    ) -> Iterator[Found]:
        try:
            inner = os.open(path[-1], _FOLDER, dir_fd=folder)
        except OSError:
            return
        try:
            if hides:
                self.ignored += _count(inner)
            else:
                yield from self.files(inner, path, rules)
        finally:
            os.close(inner)

    def _own_rules(self, folder: int, parts: tuple[str, ...]) -> list[Rule]:
        if self._shows_ignored:
            return []
        try:
            file = os.open(".gitignore", _FILE, dir_fd=folder)
        except OSError:
            return []
        with os.fdopen(file, "rb") as opened:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return []
            return read_rules(os.fsdecode(opened.read(1024 * 1024)), parts)


def _rows(folder: int) -> list[tuple[str, bool, bool]]:
    """List name, is folder, is link; folders sort as their name and a slash: path order."""
    try:
        with os.scandir(folder) as rows:
            found = [
                (row.name, row.is_dir(follow_symlinks=False), row.is_symlink()) for row in rows
            ]
    except OSError:
        return []
    return sorted(found, key=lambda row: os.fsencode(row[0]) + (b"/" if row[1] else b""))


def _count(folder: int) -> int:
    total = 0
    for name, is_folder, _ in _rows(folder):
        if not is_folder:
            total += 1
            continue
        try:
            inner = os.open(name, _FOLDER, dir_fd=folder)
        except OSError:
            continue
        try:
            total += _count(inner)
        finally:
            os.close(inner)
    return total


def shown(name: str) -> tuple[str, bool]:
    """Answer a name as a row shows it, and whether it can be said in a path (KT-15).

    Bytes that are no UTF-8, control characters and what turns the direction of text are escaped.
    """
    text = "".join(char if _is_plain(char) else _escaped(char) for char in name)
    return text, text == name


def _is_plain(char: str) -> bool:
    code = ord(char)
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000:
        return False
    return code not in {0x200E, 0x200F, 0x061C, 0x2028, 0x2029} and not (
        0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
    )


def _escaped(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def glob(folder: int, question: dict[str, Any]) -> dict[str, Any]:
    """Answer the files whose path matches a pattern."""
    tree = Tree(shows_ignored=question["ignored"])
    pattern = [part for part in question["pattern"].split("/") if part not in {"", "."}]
    paths: list[str] = []
    more, unsayable = False, 0
    for found in tree.files(folder):
        if not match_path(pattern, list(found.parts)):
            continue
        text, can_be_said = shown("/".join(found.parts))
        unsayable += not can_be_said
        if len(paths) == question["limit"]:
            more = True
        else:
            paths.append(text)
    return {
        "paths": paths,
        "more": more,
        "ignored_skipped": tree.ignored,
        "not_addressable": unsayable,
    }


class Search:
    """Search lines; stops collecting at a number of matches or characters, says that more exist."""

    def __init__(self, question: dict[str, Any]) -> None:
        self._expression = re.compile(question["pattern"])
        self._glob = question["glob"]
        self._context: int = question["context"]
        self._limit: int = question["limit"]
        self._room = ANSWER_CHARACTERS_MAX
        self.matches: list[dict[str, Any]] = []
        self.more = False
        self.binary = 0

    def wants(self, parts: tuple[str, ...]) -> bool:
        """Say whether a file is among those asked for; a glob without `/` means any folder."""
        if self._glob is None:
            return True
        pattern = self._glob.split("/") if "/" in self._glob else ["**", self._glob]
        return match_path(pattern, list(parts))

    def file(self, found: Found) -> None:
        """Search one regular file; anything else is passed by."""
        try:
            file = os.open(found.parts[-1], _FILE, dir_fd=found.folder)
        except OSError:
            return
        with os.fdopen(file, "rb") as opened:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return
            if b"\0" in opened.read(BINARY_PROBE_BYTES):
                self.binary += 1
                return
            opened.seek(0)
            self._lines(opened, shown("/".join(found.parts))[0])

    def _lines(self, opened: Any, path: str) -> None:
        before: list[str] = []
        waiting: list[dict[str, Any]] = []
        number = 1
        while not self.more and (raw := opened.readline(LINE_BYTES_MAX)):
            line = raw.decode("utf-8", "replace").rstrip("\r\n")
            text = line[:SHOWN_CHARACTERS_MAX]
            for match in waiting:
                match["after"].append(text)
            waiting = [match for match in waiting if len(match["after"]) < self._context]
            if self._expression.search(line) and self._take(path, number, text, before):
                waiting = [*waiting, self.matches[-1]] if self._context else []
            before = [*before, text][-self._context :] if self._context else []
            number += raw.endswith(b"\n")

    def _take(self, path: str, number: int, text: str, before: list[str]) -> bool:
        if len(self.matches) >= self._limit or self._room < 0:
            self.more = True
            return False
        self._room -= (len(text) + 100) * (1 + 2 * self._context)
        self.matches.append(
            {"path": path, "line": number, "text": text, "before": before, "after": []}
        )
        return True


def search(folder: int, question: dict[str, Any]) -> dict[str, Any]:
    """Answer the lines that match, in path and line order."""
    tree, asked = Tree(shows_ignored=question["ignored"]), Search(question)
    for found in tree.files_under(folder, question["under"]):
        if question["only"] not in {None, found.parts[-1]} or found.is_link:
            continue
        if asked.wants(found.parts):
            asked.file(found)
        if asked.more:
            break
    return {
        "matches": asked.matches,
        "more": asked.more,
        "binary_skipped": asked.binary,
        "ignored_skipped": tree.ignored,
    }


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Answer one question about the folder that is open as descriptor `folder`."""
    ask = {"glob": glob, "search": search}[question["ask"]]
    return ask(question["folder"], question)


if __name__ == "__main__":
    signal.alarm(LIFE_S_MAX)
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
