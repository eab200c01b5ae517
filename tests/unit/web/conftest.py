"""A site on every backend."""

from collections.abc import AsyncIterator

import pytest

from tests.engine import Engine, engine, memory_engine, unopened_engine
from tests.unit.web.site import Site

__all__ = ["engine", "memory_engine", "unopened_engine"]


@pytest.fixture
async def site(engine: Engine) -> AsyncIterator[Site]:
    made = Site(engine)
    yield made
    await made.house.close(grace=0)


@pytest.fixture
async def memory_site(memory_engine: Engine) -> AsyncIterator[Site]:
    made = Site(memory_engine)
    yield made
    await made.house.close(grace=0)
