"""Paths below a root, opened component by component without following a link (KT-03, KT-04).

Each folder on the way is held open, and the next name is looked up in it. A link is read and its
target walked the same way, so that a link, a `..` or a swap by another process ends inside the
root or is refused; nothing is ever opened by a whole path.
"""

import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from msgspec import Struct

from perdure.errors import Rejected

T = TypeVar("T")

PATH_BYTES_MAX: Final = 4_096
"""Longest path of a request (SX-13)."""

LINKS_MAX: Final = 40
SWAPS_MAX: Final = 20
"""How often a name may change kind between two looks before its path is refused."""

_FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FOLDER_MODE: Final = 0o777
_SWAPPED: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})


class Swapped(OSError):
    """A name changed its kind between two looks; the walk is tried again."""


class Root(Struct, frozen=True, kw_only=True):
    """One folder that may be reached: `path` without links, `is_main` for the one shown as `.`."""

    path: str
    is_writable: bool
    is_main: bool


class Place(Struct, frozen=True, kw_only=True):
    """A path inside a root, as text parts; links are not looked at yet."""

    root: Root
    parts: tuple[str, ...]

    @property
    def shown(self) -> str:
        """Answer the path as results show it: relative to the main root, with `/`."""
        inner = "/".join(self.parts)
        return (inner or ".") if self.root.is_main else f"{self.root.path}/{inner}".rstrip("/")


def refuse(path: str, root: str, why: str) -> NoReturn:
    """Refuse a path in one sentence that names it and the root."""
    raise Rejected("invariant", f"path {path!r} {why}; accepted: a path inside {root!r}")


def locate(path: str, roots: tuple[Root, ...]) -> Place:
    """Find the root a path lies in, by its text alone, before anything is opened (KT-03).

    Raises:
        Rejected: `invariant` for `~`, a NUL, `..` above the root, an outside or overlong path.
    """
    main = roots[0]
    if "\0" in path or path.startswith("~") or not path:
        refuse(path, main.path, "is empty, starts with `~` or holds a NUL")
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        refuse(path, main.path, "holds half a character")
    if size > PATH_BYTES_MAX:
        refuse(path[:80] + "…", main.path, f"has {size} bytes, more than {PATH_BYTES_MAX}")
    if not path.startswith("/"):
        return Place(root=main, parts=_inner(path, path, main))
    for root in roots:
        if path == root.path or path.startswith(root.path.rstrip("/") + "/"):
            return Place(root=root, parts=_inner(path[len(root.path) :], path, root))
    refuse(path, main.path, "lies outside")


def _inner(inside: str, path: str, root: Root) -> tuple[str, ...]:
    parts: list[str] = []
    for part in inside.split("/"):
        if part == "..":
            if not parts:
                refuse(path, root.path, "goes above the root")
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    return tuple(parts)


class Walk:
    """The folders on the way from a root to a name, each held open."""

    def __init__(self, place: Place, *, makes: bool = False) -> None:
        self._place = place
        self._makes = makes
        self._open = [os.open(place.root.path, _FOLDER & ~os.O_NOFOLLOW)]
        self.names: list[str] = []

    @property
    def folder(self) -> int:
        """Answer the innermost open folder."""
        return self._open[-1]

    def close(self) -> None:
        """Let go of every folder."""
        while self._open:
            os.close(self._open.pop())

    def reach(self) -> str:
        """Walk to the last name, following links inside the root; answers it, `.` for a root.

        Raises:
            Rejected: `invariant` when a link leads outside or links go in a circle.
            Swapped: when another process changed the way meanwhile.
            OSError: as the operating system says.
        """
        pending = list(reversed(self._place.parts))
        links = 0
        while pending:
            part = pending.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                self._up()
                continue
            target = self._link(part)
            if target is not None:
                links += 1
                if links > LINKS_MAX:
                    self._refuse("goes through too many links")
                pending.extend(reversed(self._followed(target)))
            elif any(rest not in {"", "."} for rest in pending):
                self._enter(part)
            else:
                return part
        return "."

    def _refuse(self, why: str) -> NoReturn:
        refuse(self._place.shown, self._place.root.path, why)

    def _up(self) -> None:
        if len(self._open) == 1:
            self._refuse("leads outside through a link")
        os.close(self._open.pop())
        self.names.pop()

    def _link(self, part: str) -> str | None:
        try:
            return os.readlink(part, dir_fd=self.folder)
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.ENOENT}:
                return None
            raise

    def _followed(self, target: str) -> list[str]:
        root = self._place.root.path
        if not target.startswith("/"):
            return target.split("/")
        if target != root and not target.startswith(root.rstrip("/") + "/"):
            self._refuse("leads outside through a link")
        while len(self._open) > 1:
            self._up()
        return target[len(root) :].split("/")

    def _enter(self, part: str) -> None:
        try:
            opened = os.open(part, _FOLDER, dir_fd=self.folder)
        except FileNotFoundError:
            if not self._makes:
                raise
            os.mkdir(part, _NEW_FOLDER_MODE, dir_fd=self.folder)
            opened = os.open(part, _FOLDER, dir_fd=self.folder)
        except OSError as error:
            if error.errno in _SWAPPED and self._link(part) is not None:
                raise Swapped(error.errno, "changed while it was opened") from error
            raise
        self._open.append(opened)
        self.names.append(part)


@contextmanager
def walked(place: Place, *, makes: bool = False) -> Generator[Walk]:
    """Hold a walk open; it is closed at the end."""
    walk = Walk(place, makes=makes)
    try:
        yield walk
    finally:
        walk.close()


def steadily(attempt: Callable[[], T], place: Place) -> T:
    """Try again while another process swaps names; refuse when it does not stop."""
    for _ in range(SWAPS_MAX):
        try:
            return attempt()
        except Swapped:
            continue
    refuse(place.shown, place.root.path, "does not stand still")


def kind_of(mode: int) -> str:
    """Say in one word what a file mode is."""
    kinds = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "folder",
        stat.S_IFLNK: "symlink",
        stat.S_IFIFO: "named pipe",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "device",
        stat.S_IFBLK: "device",
    }
    return kinds.get(stat.S_IFMT(mode), "unknown thing")


def open_regular(walk: Walk, name: str, shown: str) -> int:
    """Open a regular file for reading without ever blocking or touching a device (KT-05).

    Raises:
        Rejected: `invariant`, naming the kind, for anything but a regular file.
        Swapped: when it became a link meanwhile.
    """
    mode = os.stat(name, dir_fd=walk.folder, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        raise Swapped(errno.ELOOP, "became a link")
    if not stat.S_ISREG(mode):
        refuse_kind(shown, mode)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        file = os.open(name, flags, dir_fd=walk.folder)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EMLINK, errno.ENXIO}:
            raise Swapped(error.errno, "changed while it was opened") from error
        raise
    opened = os.fstat(file).st_mode
    if not stat.S_ISREG(opened):
        os.close(file)
        refuse_kind(shown, opened)
    return file


def refuse_kind(shown: str, mode: int) -> NoReturn:
    """Refuse what is no regular file, by its kind."""
    raise Rejected("invariant", f"{shown!r} is a {kind_of(mode)}; accepted: a regular file")


def real_roots(root: str, extra: tuple[tuple[str, bool], ...]) -> tuple[Root, ...]:
    """Resolve the folders themselves, once: a root given through a link is that folder."""
    main = Root(path=str(Path(root).resolve()), is_writable=True, is_main=True)
    others = [
        Root(path=str(Path(path).resolve()), is_writable=is_writable, is_main=False)
        for path, is_writable in extra
    ]
    return (main, *others)
