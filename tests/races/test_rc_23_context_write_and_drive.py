"""RC-23: a context-only write and a drive or a reopening."""

import pytest

from perdure.providers.script import say
from tests.engine import Engine, task_moves
from tests.races.held import after_the_held


@pytest.mark.spec("RC-23", "QU-10", "SC-20", "IV-21")
@pytest.mark.parametrize("first", ["write", "drive", "reopen"])
async def test_neither_order_creates_a_generation(engine: Engine, first: str) -> None:
    root = await engine.root([say("done")])
    await root.accept("hello")
    if first == "drive":
        gate = engine.storage.hold(task_moves("done"))
        driving = engine.begin(root.drive())
        await gate.reached.wait()
        written = await after_the_held(engine, gate, root.append_message("context"))
        await driving
    else:
        written = await root.append_message("context")
        if first == "reopen":
            await engine.kill()
            root = await engine.root([say("done")])
        await root.drive()
    assert (await root.result(written.input_id)).state == "placed"
    for _ in range(2):
        assert (await root.drive()).outcome == "idle"
        assert [task.kind for task in await root.tasks()] == ["generation"]
        await engine.kill()
        root = await engine.root()
    last = (await root.entries())[-1]
    assert last.kind == "user", "the list ends with a user entry and nobody answers it"
