"""The whole harness survives a bad day, whatever the seed; `make sim SEED=…` replays one."""

import asyncio
import os
from functools import partial

import pytest

from perdure.testing.sim_loop import SimLoop
from tests.sim.world import World, simulate

SEEDS = 30
SEEDS_DEEP = 2_000

_REPLAY = os.environ.get("PERDURE_SIM_SEED")


def check(seed: int) -> None:
    try:
        faults = simulate(seed)
    except Exception as error:
        error.add_note(f"replay: make sim SEED={seed}")
        raise
    assert not faults, "\n".join([*faults, f"replay: make sim SEED={seed}"])


@pytest.mark.parametrize("seed", [int(_REPLAY)] if _REPLAY else range(SEEDS))
@pytest.mark.spec("FT-05", "IV-04", "IV-07", "IV-19", "IV-24", "IV-25")
def test_a_bad_day(seed: int) -> None:
    check(seed)


@pytest.mark.deep
@pytest.mark.timeout(3_600)
def test_two_thousand_bad_days() -> None:
    for seed in range(SEEDS, SEEDS + SEEDS_DEEP):
        check(seed)


def test_one_seed_is_one_day() -> None:
    def trace(seed: int) -> tuple[list[str], dict[str, int], list[tuple[int, int]]]:
        world = World(seed)
        with asyncio.Runner(loop_factory=partial(SimLoop, seed)) as runner:
            runner.run(world.day())
        return world.trace, dict(world.effects), world.reported

    assert trace(3) == trace(3)
    assert trace(3) != trace(4)
