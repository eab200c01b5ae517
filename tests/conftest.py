"""What every test gets: asyncio, a detector of blocking calls, and hypothesis profiles.

An ``async def`` test runs without a marker (``anyio_mode = "auto"``), on asyncio only.
While it runs, any call of ours that would block the loop raises ``BlockingError``;
the testing kit is left out, since starting and killing processes is its trade.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings

SRC = Path(__file__).parents[1] / "src" / "perdure"

MAY_USE_SQLITE = (
    ("perdure/storage/sqlite/writer.py", "_commit_here"),
    ("perdure/storage/sqlite/threads.py", "_read_here"),
)
"""The functions that ask SQLite on the event loop, by file (ADR 0014); nothing else may."""

MAY_STAT = (("perdure/storage/sqlite/writer.py", "_commit_here"),)
"""A barrier made on the loop asks first whether the store's file still has its name (ADR 0014)."""

settings.register_profile(
    "default",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("deep", settings.get_profile("default"), max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run every async test on asyncio, the only loop perdure supports (ADR 0001)."""
    return "asyncio"


def place(folder: Path) -> ModuleType:
    """Stand for a package by its folder, so that naming it imports nothing."""
    module = ModuleType(folder.name)
    module.__path__ = [f"{folder}{os.sep}"]
    return module


@pytest.fixture(scope="session", autouse=True)
def no_blocking_calls() -> Iterator[BlockBuster]:
    """Raise on a blocking call made by perdure inside a running event loop."""
    detector = BlockBuster([place(SRC)], excluded_modules=[place(SRC / "testing")])
    for name, function in detector.functions.items():
        for file, allowed in MAY_USE_SQLITE if name.startswith("sqlite3.") else ():
            function.can_block_in(file, allowed)
        for file, allowed in MAY_STAT if name == "os.stat" else ():
            function.can_block_in(file, allowed)
    detector.activate()
    yield detector
    detector.deactivate()
