"""The simulated loop leans on two private names of asyncio; a Python without them is found here."""

import asyncio
import inspect

from perdure.testing.sim_loop import PRIVATE_NAMES, missing_names


def test_the_simulated_loop_leans_on_two_names_only() -> None:
    assert PRIVATE_NAMES == ("_ready", "_run_once")


def test_the_running_python_has_them() -> None:
    assert not missing_names()


def test_one_turn_still_takes_what_is_ready_from_the_left() -> None:
    source = inspect.getsource(getattr(asyncio.base_events.BaseEventLoop, PRIVATE_NAMES[1]))
    assert "self._ready.popleft()" in source
    assert "self._selector.select(timeout)" in source
