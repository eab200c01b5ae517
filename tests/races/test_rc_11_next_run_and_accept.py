"""RC-11: queueing for the next run and accepting."""

from collections.abc import Awaitable
from typing import Any

import pytest

from perdure.providers.script import say
from tests.engine import Engine, is_main
from tests.races.held import after_the_held


@pytest.mark.spec("RC-11", "QU-11")
@pytest.mark.parametrize("first", ["next_run", "accept"])
async def test_it_is_consumed_now_or_stays_for_the_next(engine: Engine, first: str) -> None:
    root = await engine.root([say("one"), say("two")])
    works: list[Awaitable[Any]] = [root.next_run("later"), root.accept("now")]
    if first == "accept":
        works.reverse()
    gate = engine.storage.hold(is_main)
    one = engine.begin(works[0])
    await gate.reached.wait()
    two = await after_the_held(engine, gate, works[1])
    waiting = (await one, two)[0 if first == "next_run" else 1]
    await root.drive()
    result = await root.result(waiting.input_id)
    assert (result.state, result.text) == (
        ("answered", "one") if first == "next_run" else ("queued", "")
    )
    assert len(engine.models.requests) == 1
    await root.prompt("again")
    assert (await root.result(waiting.input_id)).state == "answered"
