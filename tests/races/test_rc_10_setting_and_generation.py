"""RC-10: writing settings and creating a generation."""

from collections.abc import Awaitable
from typing import Any

import pytest

from perdure.line.command import Command
from perdure.providers.script import say
from perdure.records.addresses import MODEL, THINKING
from tests.engine import Engine, is_main
from tests.races.held import after_the_held

NEW = {"provider": "scripted", "modelId": "new"}


@pytest.mark.spec("RC-10", "VL-29", "GN-01")
@pytest.mark.parametrize("first", ["setting", "generation"])
async def test_a_generation_captures_all_old_or_all_new(engine: Engine, first: str) -> None:
    root = await engine.root([say("done")])

    def change(tx: Command) -> None:
        tx.set_value(MODEL, NEW)
        tx.set_value(THINKING, "high")

    works: list[Awaitable[Any]] = [root.command(change), root.accept("hello")]
    if first == "generation":
        works.reverse()
    gate = engine.storage.hold(is_main)
    one = engine.begin(works[0])
    await gate.reached.wait()
    await after_the_held(engine, gate, works[1])
    await one
    await root.drive()
    request = engine.models.requests[0]
    wanted = ("new", "high") if first == "setting" else ("test", "off")
    assert (request.model.model_id, request.thinking) == wanted
