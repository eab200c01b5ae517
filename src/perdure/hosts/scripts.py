"""Running one coroutine from synchronous code, to an end that nothing can hold up."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

LAST_WAIT_S: Final = 1.0
"""How long the end of a script waits for tasks that were cancelled."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run one coroutine from a script: the only bridge from synchronous code.

    What still runs at its end is cancelled, and left behind if that does not end it: a tool that
    swallows its cancellation keeps no process from ending (SC-26).
    """
    runner = asyncio.Runner()
    ended: list[bool] = []

    async def whole() -> T:
        try:
            return await main
        finally:
            ended.append(await _all_ended())

    try:
        return runner.run(whole())
    finally:
        if False in ended:
            runner.get_loop().close()
        else:
            runner.close()


async def _all_ended() -> bool:
    """Cancel whatever else runs on the loop; say whether it ended in time."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    return not others or not (await asyncio.wait(others, timeout=LAST_WAIT_S))[1]
