"""The engine fixtures, for every test here, and the loops that each runs on.

A race is decided by what is durable, never by the order asyncio happens to choose: every test runs
in asyncio's own order and in orders drawn from seeds.
"""

from functools import partial
from typing import Any

import pytest

from perdure.testing.sim_loop import ShuffledLoop
from tests.engine import engine as engine
from tests.engine import memory_engine as memory_engine
from tests.engine import unopened_engine as unopened_engine

SEEDS = (1, 2, 3)


@pytest.fixture(params=[None, *SEEDS], ids=lambda seed: f"seed{seed}" if seed else "fifo")
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run on asyncio, in its own order or in one drawn from a seed."""
    seed = request.param
    factory = None if seed is None else partial(ShuffledLoop, seed)
    return "asyncio", {"loop_factory": factory}
