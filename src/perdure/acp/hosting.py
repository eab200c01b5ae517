"""What the adapter asks of the program around it: sessions, by their permanent ids."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from perdure.harness.harness import Harness
from perdure.ports import Storage


class Listed(Struct, frozen=True, kw_only=True):
    """One session of a list: its id, name, folder when one is known, and last commit (wall ms)."""

    id: str
    name: str
    folder: str | None
    last_commit_ms: int


class Opened(Struct, frozen=True, kw_only=True):
    """An open session, and how what is stored of it is read without it."""

    harness: Harness
    reader: Callable[[], Awaitable[Storage]]


class Host(Protocol):
    """A store of sessions, and how they are opened for an editor."""

    def open(self, session_id: str | None, folder: Path) -> AbstractAsyncContextManager[Opened]:
        """Open a session whose tools work in a folder; without an id a new one is made.

        Raises:
            Rejected: `not_found`, for an id that is not there.
            StorageBusy: another process has the session.
        """
        ...

    async def page(self, *, after: str | None, limit: int) -> Sequence[Listed]:
        """Answer sessions by name, `after` exclusive."""
        ...
