"""One launch's folder as the harness sees it: the file protocol of D06.

Every call here blocks, briefly; the host runs it on a daemon thread.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec
from msgspec import Struct

from perdure.errors import Rejected
from perdure.hosts.process_table import Identity
from perdure.records.launches import Exited, LaunchRef, LaunchSpec

PRIVATE_FOLDER: Final = 0o700
PRIVATE_FILE: Final = 0o600

_TAIL: Final = re.compile(r"tail-(\d+)")
_EXITED: Final = msgspec.json.Decoder(Exited)
_IDENTITY: Final = msgspec.json.Decoder(Identity)


class _StoredSpec(Struct, frozen=True, kw_only=True):
    """What `spec.json` holds: names of variables, never their values."""

    argv: tuple[str, ...]
    cwd: str
    env: tuple[str, ...]
    nonce: str
    output_bytes_max: int


class LaunchFolder:
    """Read and write the files of one launch."""

    def __init__(self, root: Path, ref: LaunchRef) -> None:
        parts = PurePosixPath(ref.dir).parts
        if not parts or ref.dir.startswith("/") or ".." in parts or "\0" in ref.dir:
            raise Rejected(
                "invariant",
                f"launch folder {ref.dir!r}; accepted: a path below the launch root, no `..`",
            )
        self._root = root
        self._parts = parts
        self.path = root.joinpath(*parts)

    def make(self) -> None:
        """Make the folder and what lies above it, private whatever the umask (SX-06).

        Each name is on disk before a command can run: a launch that a power cut made vanish
        would pass for one that never ran (D06).
        """
        self._root.parent.mkdir(parents=True, exist_ok=True)
        at = self._root
        for part in ("", *self._parts):
            at = at / part
            if not at.exists():
                at.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
                at.chmod(PRIVATE_FOLDER)
                _sync(at.parent)

    def write_spec(self, spec: LaunchSpec) -> None:
        """Write `spec.json`, in ASCII; arguments that are no UTF-8 keep their bytes."""
        stored = _StoredSpec(
            argv=spec.argv,
            cwd=spec.cwd,
            env=tuple(spec.env),
            nonce=spec.ref.nonce,
            output_bytes_max=spec.output_bytes_max,
        )
        text = json.dumps(msgspec.to_builtins(stored)).encode("ascii")
        file = os.open(self.path / "spec.json", os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE)
        try:
            os.write(file, text)
        finally:
            os.close(file)

    def claim(self) -> bool:
        """Take the claim, so that no supervisor ever starts the command; False when it is taken."""
        try:
            os.close(self._open("claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def revoke(self) -> None:
        """Forbid a slow supervisor to start; only by who holds the lock."""
        os.close(self._open("revoked", os.O_CREAT | os.O_WRONLY))

    def _open(self, name: str, flags: int) -> int:
        return os.open(self.path / name, flags, PRIVATE_FILE)

    def is_alive(self) -> bool:
        """Say whether a supervisor holds the lock: the proof of life."""
        try:
            file = self._open("alive", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            # Shared: two who only look do not take each other for the supervisor.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(file)

    @contextmanager
    def lock(self) -> Generator[bool]:
        """Hold the lock; yields False when a supervisor has it."""
        file = self._open("alive", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(file)

    def identity(self) -> Identity | None:
        """Answer who runs, None before the command could have run its first instruction."""
        content = self._read("identity.json")
        return None if content is None else _IDENTITY.decode(content)

    def exit(self) -> Exited | None:
        """Answer how the command ended, None while that is not written."""
        content = self._read("exit.json")
        if content is None:
            return None
        return msgspec.structs.replace(_EXITED.decode(content), stopped=self._is_stopped())

    def mark_stopped(self) -> None:
        """Note that a stop is asked for, so that its end is never taken for the command's own."""
        os.close(self._open("stopped", os.O_CREAT | os.O_WRONLY))

    def _is_stopped(self) -> bool:
        return (self.path / "stopped").exists()

    def _read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def log(self, offset: int, limit: int) -> bytes:
        """Read output from a byte offset; a negative one counts from the end of what is kept."""
        while True:
            try:
                return self._log(offset, limit)
            except FileNotFoundError:
                # The supervisor let go of the oldest piece between listing and opening: look again.
                continue

    def _log(self, offset: int, limit: int) -> bytes:
        pieces = self._pieces()
        if offset < 0:
            end = max((start + size for start, size, _ in pieces), default=0)
            offset = max(0, end + offset)
        found = b""
        for start, size, path in pieces:
            at = offset + len(found)
            if start <= at < start + size and len(found) < limit:
                with path.open("rb") as file:
                    file.seek(at - start)
                    found += file.read(limit - len(found))
        return found

    def _pieces(self) -> list[tuple[int, int, Path]]:
        """List where in the output each file starts and how long it is, by start."""
        pieces: list[tuple[int, int, Path]] = []
        for path in self.path.iterdir() if self.path.exists() else ():
            tail = _TAIL.fullmatch(path.name)
            if path.name == "log" or tail:
                try:
                    pieces.append((int(tail[1]) if tail else 0, path.stat().st_size, path))
                except FileNotFoundError:
                    # The supervisor let go of the oldest piece between listing and asking.
                    continue
        return sorted(pieces)

    def remove(self) -> None:
        """Remove the folder and all it holds; of a launch that never began its claim stays."""
        if self.identity() is not None or not (self.path / "claim").exists():
            shutil.rmtree(self.path, ignore_errors=True)
            return
        (self.path / "spec.json").unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
