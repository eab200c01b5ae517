"""The control address of an owner: a Unix socket and its token in a private folder (CM-16).

Listening costs a folder, two files and one reader on the loop. What answers is made when somebody
connects; until then a connection waits in the kernel's backlog, so that a session which nobody
asks from outside loads nothing for it.
"""

import asyncio
import os
import secrets
import socket
import stat
import tempfile
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final, Protocol

from perdure.records.sessions import CONTROL_FOLDER_PREFIX, CONTROL_SOCKET, CONTROL_TOKEN

TOKEN_BYTES: Final = 32
PRIVATE: Final = 0o600
BACKLOG: Final = 64

PATH_BYTES_MAX: Final = 103
"""Longest path of a Unix socket: macOS has 104 bytes with the closing zero, Linux 108."""


class Answering(Protocol):
    """Whoever answers on the socket once it was reached."""

    async def close(self) -> None:
        """Take no more connections and end those there are."""


Begin = Callable[[socket.socket, str], Awaitable[Answering]]
"""Start answering on a listening socket, for callers that know the token."""


class ControlSocket:
    """One listening socket; make it with `ControlSocket.make`."""

    _open: ClassVar["weakref.WeakSet[ControlSocket]"] = weakref.WeakSet()
    _registered: ClassVar[bool] = False

    def __init__(self, folder: Path, listener: socket.socket, token: str) -> None:
        self.folder = folder
        self._listener = listener
        self._token = token
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beginning: asyncio.Task[Answering] | None = None
        # Also for a caller that was cancelled while this was made, and at the process's end.
        self._remove = weakref.finalize(self, _remove, folder)

    @classmethod
    def make(cls) -> "ControlSocket":
        """Make folder, token and socket; blocks, briefly.

        Raises:
            OSError: the folder for temporary files cannot be written, or its path is too long.
        """
        folder = Path(tempfile.mkdtemp(prefix=CONTROL_FOLDER_PREFIX, dir=_place()))
        token = secrets.token_urlsafe(TOKEN_BYTES)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            handle = os.open(folder / CONTROL_TOKEN, flags, PRIVATE)
            try:
                os.write(handle, token.encode())
            finally:
                os.close(handle)
            listener.bind(str(folder / CONTROL_SOCKET))
            (folder / CONTROL_SOCKET).chmod(PRIVATE)
            listener.settimeout(0)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            _remove(folder)
            raise
        made = cls(folder, listener, token)
        cls._open.add(made)
        if not cls._registered:
            cls._registered = True
            os.register_at_fork(after_in_child=cls._drop_in_child)
        return made

    @property
    def address(self) -> str:
        """Answer what the lock file names: the path of the socket."""
        return str(self.folder / CONTROL_SOCKET)

    @property
    def is_listening(self) -> bool:
        """Say whether this process can be reached."""
        return self._listener.fileno() >= 0

    def listen(self, begin: Begin, failed: Callable[[BaseException], None]) -> None:
        """Call `begin` when the first connection arrives; `failed` hears what it raises."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener, self._reached, begin, failed)

    def _reached(self, begin: Begin, failed: Callable[[BaseException], None]) -> None:
        assert self._loop is not None
        self._loop.remove_reader(self._listener)

        async def answer() -> Answering:
            return await begin(self._listener, self._token)

        def ended(task: "asyncio.Task[Answering]") -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._listener.close()  # who waits is refused at once instead of after a while
                failed(error)

        self._beginning = self._loop.create_task(answer(), name="perdure-control")
        self._beginning.add_done_callback(ended)

    async def close(self) -> None:
        """End what answers, and take no more connections."""
        task = self._beginning
        if self._loop is not None and task is None and self.is_listening:
            self._loop.remove_reader(self._listener)
        if task is not None:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled() and task.exception() is None:
                await task.result().close()
        self._listener.close()

    def remove(self) -> None:
        """Remove folder, socket and token; blocks, briefly."""
        ControlSocket._open.discard(self)
        self._remove()

    def drop(self) -> None:
        """Close the descriptor and nothing more: in a forked child the socket is the parent's."""
        self._remove.detach()
        with suppress(OSError):
            os.close(self._listener.detach())

    @classmethod
    def _drop_in_child(cls) -> None:
        """Close the socket in a forked child, which would keep it open beyond its owner's life."""
        for one in list(cls._open):
            one.drop()
        cls._open.clear()


def token_of(address: str) -> str:
    """Read the token of a control address; blocks, briefly.

    Raises:
        OSError: it is not there, or is not private to this user: then it is nobody's to trust.
    """
    folder = Path(address).parent
    facts = folder.lstat()
    private = stat.S_ISDIR(facts.st_mode) and not stat.S_IMODE(facts.st_mode) & 0o077
    if not private or facts.st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"the control address {address!r} is not private to this user")
    return (folder / CONTROL_TOKEN).read_text(encoding="utf-8")


def _place() -> str:
    """Answer a folder for sockets whose paths are short enough: the user's own, else a shared one.

    Raises:
        OSError: there is none.
    """
    run = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [run, tempfile.gettempdir(), "/tmp"]  # noqa: S108 - mkdtemp makes a private folder
    for place in places:
        longest = Path(place) / f"{CONTROL_FOLDER_PREFIX}{'x' * 8}" / CONTROL_SOCKET
        if (
            Path(place).is_absolute()
            and len(os.fsencode(longest)) <= PATH_BYTES_MAX
            and os.access(place, os.W_OK | os.X_OK)
        ):
            return place
    raise OSError(f"no folder of {places} can hold a socket: its path has at most 103 bytes")


def _remove(folder: Path) -> None:
    for name in (CONTROL_SOCKET, CONTROL_TOKEN):
        with suppress(OSError):
            (folder / name).unlink()
    with suppress(OSError):
        folder.rmdir()
