"""Files under one root, on this machine: the bundled `Files` (KT-03 to KT-15).

Every call runs on a daemon thread; glob and search run in a child process that a time limit kills.
"""

import hashlib
import json
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec

from perdure.errors import Rejected
from perdure.hosts import file_search
from perdure.hosts.beneath import (
    Place,
    Walk,
    locate,
    open_regular,
    real_roots,
    refuse_kind,
    steadily,
    walked,
)
from perdure.ports import Threads
from perdure.records.files import (
    FileInfo,
    FileKind,
    FileSlice,
    GlobResult,
    SearchQuery,
    SearchResult,
)

SEARCH_S_MAX: Final = 20.0
"""Seconds a glob or search may take before its process is killed (KT-13)."""

PATTERN_BYTES_MAX: Final = 1_024
"""Longest pattern or glob (SX-13)."""

DEPTH_MAX: Final = 5
"""Deepest listing (KT-12)."""

_NEW_FILE_MODE: Final = 0o666
_PRIVATE_MODE: Final = 0o600


class LocalFiles:
    """Read, write, list and search below `root`; nothing outside is touched, whatever links say.

    `extra_roots` are further folders, reached by absolute path: mode "r" or "rw" (KT-05).
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        threads: Threads,
        *,
        extra_roots: Mapping[str, Literal["r", "rw"]] | None = None,
        search_s_max: float = SEARCH_S_MAX,
    ) -> None:
        self._root = os.fspath(root)
        self._extra = tuple((path, mode == "rw") for path, mode in (extra_roots or {}).items())
        self._threads = threads
        self._search_s_max = search_s_max

    async def read(self, path: str, *, offset: int, limit: int) -> FileSlice:
        """Read at most `limit` bytes of a regular file from a byte offset.

        Raises:
            Rejected: `invariant` for a path outside or a thing that is no file, `not_found` for
                an absent one, with the path as shown in `details`.
            OSError: as the operating system says.
        """
        return await self._threads.run("read", partial(self._read, path, offset, limit))

    async def write(self, path: str, data: bytes, *, expect: str | None) -> str:
        """Replace a file in one step: temporary file, sync, rename; answers its new digest.

        Missing folders are made. An existing file keeps its mode, a new one gets 0666 less the
        umask. A link inside the root is followed to its target.

        Raises:
            Rejected: `version_mismatch` when the digest before is not `expect` (None: absent),
                with what was found in `details`; else as `read`.
            OSError: a full disk and the like; the old file is whole, no temporary file is left.
        """
        return await self._threads.run("write", partial(self._write, path, data, expect))

    async def list(self, path: str, *, depth: int, limit: int) -> Sequence[FileInfo]:
        """List a folder, `depth` levels (1 to 5), each sorted by name bytes; links not entered."""
        return await self._threads.run("list", partial(self._list, path, depth, limit))

    async def glob(self, pattern: str, *, limit: int, ignored: bool = False) -> GlobResult:
        """Match files below the root: `*`, `?`, `[…]`, `**`; never through a linked folder."""
        _bound("glob", pattern)
        question = {"ask": "glob", "pattern": pattern, "limit": limit, "ignored": ignored}
        ask = partial(self._ask, ".", question)
        answered = await self._threads.run("glob", ask)
        if answered is None:
            return GlobResult(paths=(), timed_out=True)
        return msgspec.convert(answered, GlobResult)

    async def search(self, query: SearchQuery) -> SearchResult:
        """Search lines by a regular expression; `timed_out` when the limit ended it.

        Raises:
            Rejected: `invariant` for a pattern that is no regular expression, or too long.
        """
        for what, text in (("pattern", query.pattern), ("glob", query.glob or "")):
            _bound(what, text)
        question = {"ask": "search", **msgspec.to_builtins(query)}
        answered = await self._threads.run("search", partial(self._ask, query.path, question))
        if answered is None:
            return SearchResult(matches=(), timed_out=True)
        return msgspec.convert(answered, SearchResult)

    def _place(self, path: str, *, writes: bool = False) -> Place:
        place = locate(path, real_roots(self._root, self._extra))
        if writes and not place.root.is_writable:
            raise Rejected("invariant", f"{place.shown!r} lies in a folder that is only readable")
        return place

    def _read(self, path: str, offset: int, limit: int) -> FileSlice:
        place = self._place(path)
        return steadily(partial(_read_at, place, offset, limit), place)

    def _write(self, path: str, data: bytes, expect: str | None) -> str:
        place = self._place(path, writes=True)
        return steadily(partial(_write_at, place, data, expect), place)

    def _list(self, path: str, depth: int, limit: int) -> Sequence[FileInfo]:
        if not 1 <= depth <= DEPTH_MAX:
            raise Rejected("invariant", f"depth {depth!r}; accepted: 1 to {DEPTH_MAX}")
        place = self._place(path)
        return steadily(partial(_list_at, place, depth, limit), place)

    def _ask(self, path: str, question: dict[str, Any]) -> Any:
        """Put a question to a child process; None when it took too long."""
        place = self._place(path)
        return steadily(partial(_asked_at, place, question, self._search_s_max), place)


def _bound(what: str, text: str) -> None:
    size = len(text.encode("utf-8", "replace"))
    if size > PATTERN_BYTES_MAX or "\0" in text:
        raise Rejected(
            "invariant",
            f"{what} of {size} bytes; accepted: at most {PATTERN_BYTES_MAX} bytes without a NUL",
        )


def _absent(place: Place) -> Rejected:
    return Rejected("not_found", f"{place.shown!r} is not there", {"path": place.shown})


def _read_at(place: Place, offset: int, limit: int) -> FileSlice:
    try:
        with walked(place) as walk:
            name = walk.reach()
            file = open_regular(walk, name, place.shown)
    except FileNotFoundError as error:
        raise _absent(place) from error
    with os.fdopen(file, "rb") as opened:
        size = os.fstat(file).st_size
        opened.seek(offset)
        data = opened.read(limit)
    is_whole = offset == 0 and len(data) == size
    digest = hashlib.sha256(data).hexdigest() if is_whole else None
    return FileSlice(data=data, offset=offset, size=size, digest=digest, path=place.shown)


def _write_at(place: Place, data: bytes, expect: str | None) -> str:
    with walked(place, makes=True) as walk:
        name = walk.reach()
        mode = _mode_before(walk, name, place)
        _demand(walk, name, place, expect)
        temporary = f".{secrets.token_hex(8)}.perdure"
        try:
            _write_temporary(walk.folder, temporary, data, mode)
            # Once more, at the last moment: somebody may have written while we did.
            _demand(walk, name, place, expect)
            os.rename(temporary, name, src_dir_fd=walk.folder, dst_dir_fd=walk.folder)
        except BaseException:
            _unlink(walk.folder, temporary)
            raise
        _sync_folder(walk)
    return hashlib.sha256(data).hexdigest()


def _mode_before(walk: Walk, name: str, place: Place) -> int | None:
    try:
        mode = os.stat(name, dir_fd=walk.folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        refuse_kind(place.shown, mode)
    return stat.S_IMODE(mode)


def _demand(walk: Walk, name: str, place: Place, expect: str | None) -> None:
    """Refuse unless the file's digest is the expected one."""
    found = _digest(walk, name, place)
    if found != expect:
        raise Rejected(
            "version_mismatch",
            f"{place.shown!r} is {_state(found)}; expected {_state(expect)}",
            {"path": place.shown, "digest": found},
        )


def _state(digest: str | None) -> str:
    return "absent" if digest is None else f"content {digest[:12]}"


def _digest(walk: Walk, name: str, place: Place) -> str | None:
    try:
        file = open_regular(walk, name, place.shown)
    except FileNotFoundError:
        return None
    with os.fdopen(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _write_temporary(folder: int, name: str, data: bytes, mode: int | None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    first_mode = _NEW_FILE_MODE if mode is None else _PRIVATE_MODE
    file = os.open(name, flags, first_mode, dir_fd=folder)
    with os.fdopen(file, "wb") as opened:
        opened.write(data)
        opened.flush()
        if mode is not None:
            os.fchmod(file, mode)
        os.fsync(file)


def _unlink(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


def _sync_folder(walk: Walk) -> None:
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=walk.folder)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _open_folder(walk: Walk, place: Place) -> int:
    try:
        name = walk.reach()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, dir_fd=walk.folder)
    except FileNotFoundError as error:
        raise _absent(place) from error
    except NotADirectoryError as error:
        raise Rejected("invariant", f"{place.shown!r} is no folder") from error


def _list_at(place: Place, depth: int, limit: int) -> list[FileInfo]:
    rows: list[FileInfo] = []
    with walked(place) as walk:
        folder = _open_folder(walk, place)
        try:
            prefix = "" if place.shown == "." else f"{file_search.shown(place.shown)[0]}/"
            for row in _rows(folder, prefix, depth):
                if len(rows) == limit:
                    break
                rows.append(row)
        finally:
            os.close(folder)
    return rows


def _rows(folder: int, prefix: str, depth: int) -> Iterator[FileInfo]:
    with os.scandir(folder) as scanned:
        found = sorted(scanned, key=lambda one: os.fsencode(one.name))
    for one in found:
        try:
            row = _row(folder, one, prefix)
        except FileNotFoundError:
            continue
        yield row
        if row.kind == "folder" and depth > 1:
            try:
                inner = os.open(
                    one.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder
                )
            except OSError:
                continue
            try:
                yield from _rows(inner, f"{row.path}/", depth - 1)
            finally:
                os.close(inner)


def _row(folder: int, one: os.DirEntry[str], prefix: str) -> FileInfo:
    name, can_be_said = file_search.shown(one.name)
    target = None
    kind: FileKind = "other"
    if one.is_symlink():
        kind, target = "symlink", file_search.shown(os.readlink(one.name, dir_fd=folder))[0]
    elif one.is_dir(follow_symlinks=False):
        kind = "folder"
    elif one.is_file(follow_symlinks=False):
        kind = "file"
    size = os.stat(one.name, dir_fd=folder, follow_symlinks=False).st_size if kind == "file" else 0
    return FileInfo(
        path=prefix + name, kind=kind, size=size, target=target, addressable=can_be_said
    )


def _asked_at(place: Place, question: dict[str, Any], time_s: float) -> Any:
    """Ask from the root, so that ignore files above the place count; a file is asked alone."""
    top = Place(root=place.root, parts=())
    with walked(place) as walk:
        only = _only_file(walk, place)
        under = list(walk.names)
    shows = question["ignored"] or only is not None
    with walked(top) as walk:
        folder = _open_folder(walk, top)
        try:
            asked = {**question, "folder": folder, "under": under, "only": only, "ignored": shows}
            return _asked(folder, asked, time_s)
        finally:
            os.close(folder)


def _only_file(walk: Walk, place: Place) -> str | None:
    """Walk into a folder and answer None, or to a file and answer its name."""
    try:
        name = walk.reach()
        mode = os.stat(name, dir_fd=walk.folder, follow_symlinks=False).st_mode
    except FileNotFoundError as error:
        raise _absent(place) from error
    if stat.S_ISREG(mode):
        return name
    if not stat.S_ISDIR(mode):
        refuse_kind(place.shown, mode)
    if name != ".":
        walk.names.append(name)
    return None


def _asked(folder: int, question: dict[str, Any], time_s: float) -> Any:
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", file_search.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(folder,),
        env={},
        start_new_session=True,
    )
    with child:
        try:
            answer, fault = child.communicate(json.dumps(question).encode(), time_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return None
    if child.returncode:
        last = fault.decode(errors="replace").strip().rpartition("\n")[2]
        raise Rejected("invariant", f"{question['ask']} {question['pattern']!r} failed: {last}")
    return json.loads(answer)
