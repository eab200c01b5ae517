"""The simulated loop: one seed, one run; time jumps; a dead end is named at once."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from perdure.testing.sim_loop import Deadlock, SimClock, SimLoop

DAY_S = 86_400


def run(seed: int, main: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """Play a program under a seed."""

    async def body() -> list[str]:
        return await main()

    with asyncio.Runner(loop_factory=partial(SimLoop, seed)) as runner:
        return runner.run(body())


async def racers() -> list[str]:
    """Let eight tasks take three steps each, and write down the order."""
    trace: list[str] = []

    async def racer(name: str) -> None:
        for step in range(3):
            await asyncio.sleep(0)
            trace.append(f"{name}{step}")

    async with asyncio.TaskGroup() as group:
        for name in "abcdefgh":
            group.create_task(racer(name))
    return trace


def test_one_seed_gives_one_trace() -> None:
    assert len({tuple(run(7, racers)) for _ in range(10)}) == 1


def test_ten_seeds_give_ten_traces() -> None:
    assert len({tuple(run(seed, racers)) for seed in range(10)}) == 10


def test_a_task_keeps_its_own_order_under_every_seed() -> None:
    for seed in range(20):
        trace = run(seed, racers)
        assert [step for step in trace if step.startswith("c")] == ["c0", "c1", "c2"]


def test_a_day_of_waiting_takes_no_time() -> None:
    async def sleeper() -> list[str]:
        clock = SimClock(start_ms=5)
        await clock.sleep(DAY_S * 1000)
        assert asyncio.get_running_loop().time() == pytest.approx(DAY_S)
        return [str(clock.now_ms()), str(clock.monotonic_ms())]

    begun = time.monotonic()
    assert run(1, sleeper) == [str(DAY_S * 1000 + 5), str(DAY_S * 1000)]
    assert time.monotonic() - begun < 1


def test_timers_fire_in_the_order_of_their_times_under_every_seed() -> None:
    async def timers() -> list[str]:
        trace: list[str] = []

        async def later(delay: int) -> None:
            await asyncio.sleep(delay)
            trace.append(str(delay))

        async with asyncio.TaskGroup() as group:
            for delay in (3, 1, 2):
                group.create_task(later(delay))
        return trace

    assert {tuple(run(seed, timers)) for seed in range(10)} == {("1", "2", "3")}


def test_a_program_that_can_never_go_on_is_named_at_once() -> None:
    async def stuck() -> list[str]:
        await asyncio.Event().wait()
        return []

    begun = time.monotonic()
    with pytest.raises(Deadlock, match=r"seed 3.*waiting: Task-"):
        run(3, stuck)
    assert time.monotonic() - begun < 1


def test_a_missing_check_is_found_by_some_seed() -> None:
    """The abort wins only in some orders; plain asyncio shows one order for ever."""

    async def race() -> list[str]:
        status = ["running"]

        async def abort() -> None:
            await asyncio.sleep(0)
            status[0] = "aborted"

        async def settle() -> None:
            await asyncio.sleep(0)
            status[0] = "done"  # does not look whether it was aborted meanwhile

        async with asyncio.TaskGroup() as group:
            group.create_task(settle())
            group.create_task(abort())
        return status

    found = [run(seed, race)[0] for seed in range(40)]
    assert 5 <= found.count("done") <= 35
