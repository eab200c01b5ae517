"""RC-22: steering and the creation of the next generation."""

import pytest

from perdure.providers.script import call, say
from perdure.records.writes import InsertTask
from tests.engine import Engine, Gate, Probe
from tests.races.held import after_the_held


def _next_generation(commit: object) -> bool:
    return any(
        isinstance(write, InsertTask) and write.kind == "generation"
        for write in getattr(commit, "writes", ())
    )


@pytest.mark.spec("RC-22", "QU-05", "QU-18")
@pytest.mark.parametrize("first", ["steer", "generation"])
async def test_steering_is_included_or_waits_for_the_next_boundary(
    engine: Engine, first: str
) -> None:
    tool = Gate()
    root = await engine.root(
        [say(call("look")), say("one"), say("two")], tools=[Probe("look", gate=tool)]
    )
    await root.accept("start")
    driving = engine.begin(root.drive())
    await tool.reached.wait()
    if first == "steer":
        steered = await root.steer("this way")
        tool.open()
    else:
        gate = engine.storage.hold(_next_generation)
        tool.open()
        await gate.reached.wait()
        steered = await after_the_held(engine, gate, root.steer("this way"))
    await driving
    result = await root.result(steered.input_id)
    assert (result.state, result.text) == ("answered", "one" if first == "steer" else "two")
    assert len(engine.models.requests) == (2 if first == "steer" else 3)
