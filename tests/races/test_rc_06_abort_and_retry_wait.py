"""RC-06: an abort and a wait that ends, both durable orders."""

import asyncio

import pytest

from perdure.providers.script import fail, say
from tests.engine import Engine, Gate, task_moves


@pytest.mark.spec("RC-06", "CN-13")
async def test_mark_before_the_timer_settles_without_waiting(engine: Engine) -> None:
    root = await engine.root([fail("server"), say("never")])
    accepted = await root.accept("hi")
    driving = engine.begin(root.drive())
    await engine.clock.until_asleep()
    await root.abort()
    await asyncio.wait_for(driving, 5)
    (task,) = await root.tasks()
    assert task.status == "aborted"
    assert len(engine.models.requests) == 1
    assert (await root.result(accepted.input_id)).state == "aborted"


@pytest.mark.spec("RC-06")
async def test_an_attempt_that_started_is_signalled_and_aborted(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([fail("server"), say("half", "x", gates={4: gate})])
    accepted = await root.accept("hi")
    await root.drive(wait_timers=False)
    engine.clock.advance(60_000)
    held = engine.storage.hold(task_moves("streaming"))
    driving = engine.begin(root.drive())
    await held.reached.wait()
    aborting = engine.begin(root.abort())
    await asyncio.sleep(0)
    held.open()
    await aborting
    await driving
    (task,) = await root.tasks()
    assert task.status == "aborted"
    assert len(engine.models.requests) <= 2
    assert (await root.result(accepted.input_id)).state == "aborted"


@pytest.mark.spec("RC-06", "GN-34")
async def test_an_attempt_under_way_keeps_its_partial(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([fail("server"), say("half", "x", gates={4: gate})])
    accepted = await root.accept("hi")
    await root.drive(wait_timers=False)
    engine.clock.advance(60_000)
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    await driving
    result = await root.result(accepted.input_id)
    assert result.partial is not None
    assert (result.state, result.partial.text) == ("aborted", "half")
