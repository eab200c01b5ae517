"""A wall clock that steps back or jumps forward repeats nothing, lets no time fall (ST-36, D40)."""

import asyncio

import pytest

from perdure.providers.script import Failure, Reply, say
from perdure.records.addresses import SessionValue
from perdure.records.settings import RetryPolicy
from tests.engine import Engine, is_main, task_moves

DAY_MS = 24 * 3_600_000
DELAY_MS = 10_000
POLICY = RetryPolicy(max_attempts=4, base_delay_ms=DELAY_MS, max_delay_ms=DELAY_MS)
FAILED = Reply(failure=Failure(code="overloaded"))


async def settle(turns: int = 50) -> None:
    """Let everything run that can run now."""
    for _ in range(turns):
        await asyncio.sleep(0)


def waits(engine: Engine) -> int:
    return sum(task_moves("retry_wait")(commit) for commit in engine.storage.commits_made)


async def times(engine: Engine) -> list[int]:
    return [commit.time_ms for commit in engine.storage.commits_made if is_main(commit)]


@pytest.mark.spec("ST-36")
async def test_a_step_back_lengthens_a_wait_and_repeats_nothing(memory_engine: Engine) -> None:
    engine = memory_engine
    root = await engine.root([FAILED, say("done")], settings={"retry": POLICY})
    running = engine.begin(root.prompt("go"))
    await engine.storage.until(task_moves("retry_wait"))
    engine.clock.set_now_ms(engine.clock.now_ms() - DAY_MS)
    await engine.harness.set_value(SessionValue("app.n"), 1)
    engine.clock.advance(2 * DELAY_MS)
    await settle()
    assert len(engine.models.requests) == 1, "the stored wait is a wall time, and that is not yet"
    engine.clock.advance(DAY_MS)
    assert (await running).text == "done"
    assert len(engine.models.requests) == 2
    assert waits(engine) == 1
    stamps = await times(engine)
    assert stamps == sorted(stamps)


@pytest.mark.spec("ST-36")
async def test_a_step_back_before_reopening_lengthens_the_wait_too(engine: Engine) -> None:
    root = await engine.root([FAILED], settings={"retry": POLICY})
    engine.begin(root.prompt("go"))
    await engine.storage.until(task_moves("retry_wait"))
    before = await times(engine)
    await engine.kill()
    engine.clock.set_now_ms(engine.clock.now_ms() - DAY_MS)
    root = await engine.root([say("done")])
    drive = await root.drive(wait_timers=False)
    assert drive.next_at is not None
    assert drive.next_at > engine.clock.now_ms() + DAY_MS - 2 * DELAY_MS
    assert engine.models.requests == []
    running = engine.begin(root.drive())
    await settle()
    engine.clock.advance(DAY_MS + 2 * DELAY_MS)
    await running
    assert len(engine.models.requests) == 1
    assert min(await times(engine)) >= max(before)


@pytest.mark.spec("ST-36")
async def test_a_jump_forward_ends_each_wait_at_most_once(engine: Engine) -> None:
    root = await engine.root([FAILED, FAILED, say("done")], settings={"retry": POLICY})
    running = engine.begin(root.prompt("go"))
    await engine.storage.until(task_moves("retry_wait"))
    second = engine.storage.hold(task_moves("retry_wait"))
    engine.clock.set_now_ms(engine.clock.now_ms() + DAY_MS)
    engine.clock.advance(2 * DELAY_MS)
    await second.reached.wait()
    second.open()
    await settle()
    engine.clock.advance(DELAY_MS // 100)
    await settle()
    assert len(engine.models.requests) == 2, "the second wait is its own"
    engine.clock.advance(2 * DELAY_MS)
    assert (await running).text == "done"
    assert len(engine.models.requests) == 3
    stamps = await times(engine)
    assert stamps == sorted(stamps)
