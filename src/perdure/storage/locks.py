"""The writer lock of one session: a file held by flock from open to close (D18, SN-11).

The kernel frees it when its holder dies. The descriptor is close-on-exec and is closed in forked
children, which would otherwise keep the lock beyond their parent's life. The file is never
renamed; its content says who holds it, for people and for forwarding.
"""

import fcntl
import os
import stat
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from perdure.errors import StorageBusy
from perdure.records.sessions import (
    CONTROL_FOLDER_PREFIX,
    CONTROL_SOCKET,
    CONTROL_TOKEN,
    Owner,
)
from perdure.storage.owners import busy

LOCK_MODE: Final = 0o600
CONTENT_BYTES_MAX: Final = 4096

ORPHAN_STEP_S: Final = 0.01
ORPHAN_TRIES: Final = 200
"""Two seconds: starting a process takes a hundredth of that, on a busy machine a tenth."""


class FileLock:
    """One held lock; make it with `FileLock.acquire`."""

    _held: ClassVar["weakref.WeakSet[FileLock]"] = weakref.WeakSet()
    _registered: ClassVar[bool] = False

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle: int | None = handle

    @classmethod
    def acquire(cls, path: Path, what: str) -> "FileLock":
        """Take the lock without waiting; what a killed holder left to be reached by goes (CM-16).

        Raises:
            StorageBusy: another process has it, or the file system has no such locks.
        """
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, LOCK_MODE)
        try:
            _take(handle, path)
        except BlockingIOError:
            os.close(handle)
            raise busy(what, holder_of(path)) from None
        except OSError as error:
            os.close(handle)
            raise StorageBusy(f"{what}: the file system refuses the lock {path}: {error}") from None
        left = holder_of(path)
        if left is not None and left.control is not None and left.host == os.uname().nodename:
            remove_control(Path(left.control))
        lock = cls(path, handle)
        cls._held.add(lock)
        if not cls._registered:
            cls._registered = True
            os.register_at_fork(after_in_child=cls._drop_in_child)
        return lock

    def write(self, owner: Owner) -> None:
        """Say who holds the lock."""
        assert self._handle is not None
        content = msgspec.json.encode(owner)
        os.pwrite(self._handle, content, 0)
        os.ftruncate(self._handle, len(content))

    def release(self, *, remove: bool = False) -> None:
        """Give the lock free; `remove` the file when its session is gone for ever."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.ftruncate(handle, 0)
            if remove:
                self.path.unlink(missing_ok=True)
            os.close(handle)
        FileLock._held.discard(self)

    def drop(self) -> None:
        """Close the descriptor and nothing more: in a forked child the lock is the parent's."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    @classmethod
    def _drop_in_child(cls) -> None:
        for lock in list(cls._held):
            lock.drop()
        cls._held.clear()


def _take(handle: int, path: Path) -> None:
    """Take the lock, waiting a moment for a dead holder's.

    A process killed while it starts another leaves the lock with that one until it executes.
    """
    for _ in range(ORPHAN_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not _is_dead(holder_of(path)):
                raise
        threading.Event().wait(ORPHAN_STEP_S)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_dead(owner: Owner | None) -> bool:
    if owner is None or owner.host != os.uname().nodename:
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def remove_control(path: Path) -> None:
    """Remove the folder of a dead owner's socket, and nothing that is not such a folder of ours.

    The path was read from a lock file, which anybody can have written who may write beside the
    store.
    """
    folder = path.parent
    with suppress(OSError):
        facts = folder.lstat()
        is_ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
        if is_ours and folder.name.startswith(CONTROL_FOLDER_PREFIX):
            for name in (CONTROL_SOCKET, CONTROL_TOKEN):
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()


def holder_of(path: Path) -> Owner | None:
    """Read who says to hold a lock; None when the file does not say."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return msgspec.json.decode(os.pread(handle, CONTENT_BYTES_MAX, 0), type=Owner)
    except msgspec.MsgspecError:
        return None
    finally:
        os.close(handle)
