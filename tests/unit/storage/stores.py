"""What the tests of the backends share: stores over a folder, and a run of commits."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from perdure.hosts.randomness import SystemRandomness
from perdure.ports import Storage
from perdure.storage.sqlite import SqliteSessions
from perdure.testing.manual_clock import ManualClock
from perdure.testing.storage_lab import Batch

NAME = "first"


def container(folder: Path, **options: Any) -> SqliteSessions:
    """Answer a container over the file `store.db` of a folder."""
    return SqliteSessions(
        folder / "store.db", clock=ManualClock(), randomness=SystemRandomness(), **options
    )


@asynccontextmanager
async def opened(
    folder: Path, *, create: bool = True, durability: Literal["power", "process"] = "power"
) -> AsyncGenerator[Storage, None]:
    """Open the session `first` for a block."""
    sessions = container(folder, durability=durability)
    try:
        yield await sessions.open(NAME, create=create)
    finally:
        await sessions.close()


def main(storage: Storage) -> Batch:
    """Start a main batch, one second after the commit before."""
    return Batch(storage, storage.info.last_commit_ms + 1_000)


async def count_up(storage: Storage, commits: int, *, barrier_every: int = 0) -> None:
    """Commit numbers 0, 1, … under one address, with a barrier at every n-th commit."""
    for number in range(commits):
        batch = main(storage)
        batch.set("n", number)
        await batch.commit(barrier=barrier_every > 0 and (number + 1) % barrier_every == 0)
