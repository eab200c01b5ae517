"""The ground every async test stands on (tests/conftest.py)."""

import asyncio
import time
from pathlib import Path

import pytest
from blockbuster import BlockingError

from tests.house.source import SRC


async def test_async_tests_run_without_a_marker() -> None:
    assert asyncio.get_running_loop().is_running()


async def test_a_blocking_call_of_ours_is_caught() -> None:
    ours = compile("import time\ntime.sleep(0.001)", str(SRC / "line" / "sleeper.py"), "exec")
    with pytest.raises(BlockingError):
        exec(ours)


async def test_a_test_itself_may_block() -> None:
    time.sleep(0.001)
    assert Path(__file__).read_text()
