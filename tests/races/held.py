"""Order on the line, forced: one command is held at its commit while the other one arrives."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tests.engine import Engine, Gate

T = TypeVar("T")


async def after_the_held(engine: Engine, gate: Gate, later: Awaitable[T]) -> T:
    """Start `later` while the held command owns the line, let that go on, and await `later`."""
    arriving = engine.begin(later)
    done, _ = await asyncio.wait({arriving}, timeout=0)
    assert not done, "the later command overtook the held one"
    gate.open()
    return await arriving
