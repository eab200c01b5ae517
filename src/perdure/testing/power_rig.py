"""A disk that can lose power, for stores in SQLite files, inside the running process.

The rig puts itself between SQLite and the operating system, as a virtual file system that passes
everything on and remembers, for each file, what was synced and what was only written. `cut`
copies what a power loss leaves: every synced byte, and of the unsynced writes none, or a random
part of each. The pristine files are never touched, so one run can be cut at every moment.

It also counts syncs, and fails the Nth write (whole, or after some bytes) or the Nth sync.

It reaches into the SQLite library that Python's `sqlite3` has loaded. Where that library cannot
be found by name (it may be built into Python), `PowerRig.available` is False.
"""

import ctypes
import ctypes.util
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct

OK: Final = 0
IOERR_WRITE: Final = 778
IOERR_FSYNC: Final = 1034
FULL: Final = 13
SECTOR_BYTES: Final = 512
VFS_NAME: Final = b"perdure-power-rig"

_POINTER_BYTES: Final = ctypes.sizeof(ctypes.c_void_p)
_XOPEN: Final = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,  # the name: SQLite keeps this very pointer, so it is passed on as it is
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
)
_XDELETE: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
_XCLOSE: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_XWRITE: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
)
_XTRUNCATE: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_XSYNC: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
Callback: TypeAlias = Any
"""A C function pointer that ctypes made; its type cannot be written down."""


class _Vfs(ctypes.Structure):
    """The head of `struct sqlite3_vfs`; what follows is copied as it is."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("path_bytes_max", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("app", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("delete", ctypes.c_void_p),
        ("rest", ctypes.c_void_p * 14),
    )


class _Methods(ctypes.Structure):
    """`struct sqlite3_io_methods`, version 3."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
        ("truncate", ctypes.c_void_p),
        ("sync", ctypes.c_void_p),
        ("rest", ctypes.c_void_p * 13),
    )


class _Written(Struct, frozen=True):
    """One unsynced change of a file: bytes at an offset, or (None) its new length."""

    offset: int
    data: bytes | None


class _File:
    """What is known of one file: the bytes on the platter, and what is only written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.synced = path.read_bytes() if path.exists() else b""
        self.pending: list[_Written] = []

    def sync(self) -> None:
        """Put everything on the platter."""
        self.synced = self.path.read_bytes() if self.path.exists() else b""
        self.pending.clear()

    def after_cut(self, chance: random.Random | None) -> bytes:
        """Answer what a cut leaves: without chance nothing that was not synced."""
        image = bytearray(self.synced)
        for change in self.pending if chance is not None else ():
            assert chance is not None
            if change.data is None:
                if chance.random() < 0.5:
                    del image[change.offset :]
                continue
            for start in range(0, len(change.data), SECTOR_BYTES):
                if chance.random() < 0.5:
                    piece = change.data[start : start + SECTOR_BYTES]
                    place = change.offset + start
                    image.extend(bytes(max(0, place + len(piece) - len(image))))
                    image[place : place + len(piece)] = piece
        return bytes(image)


def _library() -> ctypes.CDLL | None:
    """Find the library that `sqlite3` uses; its version must be the one Python reports."""
    for name in ("libsqlite3.so.0", "libsqlite3.dylib", ctypes.util.find_library("sqlite3")):
        try:
            library = ctypes.CDLL(name) if name else None
        except OSError:
            continue
        if library is not None:
            library.sqlite3_libversion.restype = ctypes.c_char_p
            if library.sqlite3_libversion().decode() == sqlite3.sqlite_version:
                return library
    return None


class PowerRig:
    """Stand between SQLite and its files while the `with` block runs.

    Close every connection that was opened inside the block before it ends.
    """

    def __init__(self) -> None:
        library = _library()
        assert library is not None, "the SQLite library cannot be reached; ask `available` first"
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        library.sqlite3_vfs_find.argtypes = [ctypes.c_char_p]
        self._library = library
        self._below = library.sqlite3_vfs_find(None)
        self._vfs = _Vfs()
        self._files: dict[str, _File] = {}
        self._open: dict[int, tuple[_File, _Methods]] = {}
        self._methods: dict[int, _Methods] = {}
        self._kept: list[Callback] = []
        self.syncs: list[str] = []
        """Names of the files synced, in order; clear it to count from here."""
        self._fail_write: tuple[int, int, int] | None = None
        self._fail_sync: int | None = None
        self.on_sync: Callable[[str], None] | None = None
        """Called with the file's name before each sync: a named point for a crash rig."""

    @staticmethod
    def available() -> bool:
        """Say whether this Python lets the rig reach its SQLite library."""
        return _library() is not None

    def __enter__(self) -> "PowerRig":
        """Become the file system of every connection opened from now on."""
        ctypes.memmove(ctypes.byref(self._vfs), self._below, ctypes.sizeof(_Vfs))
        self._vfs.next = None
        self._vfs.name = VFS_NAME
        self._vfs.open = self._pointer(_XOPEN(self._on_open))
        self._vfs.delete = self._pointer(_XDELETE(self._on_delete))
        assert self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1) == OK
        return self

    def __exit__(self, *_: object) -> None:
        """Give the files back to the file system below."""
        self._library.sqlite3_vfs_unregister(ctypes.byref(self._vfs))
        self._library.sqlite3_vfs_register(self._below, 1)

    def _pointer(self, callback: Callback) -> int | None:
        self._kept.append(callback)
        return ctypes.cast(callback, ctypes.c_void_p).value

    # What a test asks for

    def cut(self, folder: Path, *, seed: int | None = None) -> None:
        """Write what a power loss at this moment leaves into a folder.

        Args:
            folder: where the files go; it is made.
            seed: None drops every unsynced byte; a number keeps random sectors of them.
        """
        chance = None if seed is None else random.Random(seed)
        folder.mkdir(parents=True, exist_ok=True)
        for file in self._files.values():
            image = file.after_cut(chance)
            if image or not file.path.name.endswith("-wal"):
                (folder / file.path.name).write_bytes(image)

    def fail_write(self, nth: int, *, code: int = IOERR_WRITE, keep_bytes: int = 0) -> None:
        """Fail the Nth write from now on, after `keep_bytes` of it; `code` FULL is a full disk."""
        self._fail_write = (nth, code, keep_bytes)

    def fail_sync(self, nth: int) -> None:
        """Fail the Nth sync from now on; its bytes stay unsynced."""
        self._fail_sync = nth

    # Between SQLite and the system

    def _on_open(self, _vfs: int, name: int | None, file: int, flags: int, out: Any) -> int:
        below = _XOPEN(self._below.contents.open)
        code = below(ctypes.addressof(self._below.contents), name, file, flags, out)
        if code != OK or name is None:
            return code
        path = ctypes.string_at(name).decode()
        known = self._files.setdefault(path, _File(Path(path)))
        slot = ctypes.c_void_p.from_address(file)
        if slot.value is not None:
            original = _Methods.from_address(slot.value)
            self._open[file] = (known, original)
            slot.value = ctypes.addressof(self._patched(slot.value, original))
        return code

    def _patched(self, address: int, original: _Methods) -> _Methods:
        found = self._methods.get(address)
        if found is None:
            found = self._methods[address] = _Methods()
            used = 1 + {1: 12, 2: 16, 3: 18}[min(original.version, 3)]
            ctypes.memmove(ctypes.byref(found), address, used * _POINTER_BYTES)
            found.close = self._pointer(_XCLOSE(self._on_close))
            found.write = self._pointer(_XWRITE(self._on_write))
            found.truncate = self._pointer(_XTRUNCATE(self._on_truncate))
            found.sync = self._pointer(_XSYNC(self._on_sync))
        return found

    def _on_close(self, file: int) -> int:
        _, original = self._open.pop(file)
        return _XCLOSE(original.close)(file)

    def _on_delete(self, _vfs: int, name: bytes, sync_folder: int) -> int:
        self._files.pop(name.decode(), None)
        below = _XDELETE(self._below.contents.delete)
        return below(ctypes.addressof(self._below.contents), name, sync_folder)

    def _on_write(self, file: int, data: int, count: int, offset: int) -> int:
        known, original = self._open[file]
        keep, code = count, OK
        if self._fail_write is not None:
            nth, failing, kept = self._fail_write
            self._fail_write = None if nth == 1 else (nth - 1, failing, kept)
            if nth == 1:
                keep, code = min(kept, count), failing
        if keep:
            known.pending.append(_Written(offset, ctypes.string_at(data, keep)))
            result = _XWRITE(original.write)(file, data, keep, offset)
            if result != OK:
                return result
        return code

    def _on_truncate(self, file: int, size: int) -> int:
        known, original = self._open[file]
        known.pending.append(_Written(size, None))
        return _XTRUNCATE(original.truncate)(file, size)

    def _on_sync(self, file: int, flags: int) -> int:
        known, original = self._open[file]
        if self.on_sync is not None:
            self.on_sync(known.path.name)
        if self._fail_sync is not None:
            self._fail_sync = None if self._fail_sync == 1 else self._fail_sync - 1
            if self._fail_sync is None:
                return IOERR_FSYNC
        code = _XSYNC(original.sync)(file, flags)
        if code == OK:
            self.syncs.append(known.path.name)
            known.sync()
        return code
