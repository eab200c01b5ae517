"""RC-09: cancelling a queued input and the boundary that consumes it."""

import pytest

from perdure.providers.script import say
from tests.engine import Engine, task_moves
from tests.races.held import after_the_held


@pytest.mark.spec("RC-09", "QU-14")
async def test_cancelled_first_is_never_placed(engine: Engine) -> None:
    root = await engine.root([say("for A"), say("unreached")])
    await root.accept("A")
    queued = await root.accept("secret")
    gate = engine.storage.hold(lambda commit: len(commit.writes) == 2)
    cancelling = engine.begin(root.cancel_queued(queued.input_id))
    await gate.reached.wait()
    await after_the_held(engine, gate, root.drive())
    assert await cancelling == "cancelled"
    assert (await root.result(queued.input_id)).state == "withdrawn"
    assert len(engine.models.requests) == 1
    assert [entry.kind for entry in await root.entries()] == ["user", "input", "assistant"]


@pytest.mark.spec("RC-09", "QU-14")
async def test_consumed_first_is_already_consumed(engine: Engine) -> None:
    root = await engine.root([say("for A"), say("for B")])
    await root.accept("A")
    queued = await root.accept("B")
    gate = engine.storage.hold(task_moves("done"))
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    answer = await after_the_held(engine, gate, root.cancel_queued(queued.input_id))
    assert answer == "already_consumed"
    await driving
    assert (await root.result(queued.input_id)).text == "for B"
