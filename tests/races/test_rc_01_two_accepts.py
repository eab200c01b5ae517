"""RC-01: two accepts on an idle conversation."""

import pytest

from tests.engine import Engine, is_main
from tests.races.held import after_the_held


@pytest.mark.spec("RC-01", "QU-01")
@pytest.mark.parametrize("order", [("A", "B"), ("B", "A")])
async def test_the_first_is_the_prompt_and_the_second_queues(
    engine: Engine, order: tuple[str, str]
) -> None:
    root = await engine.root(lambda request: f"answer {len(request.messages)}")
    gate = engine.storage.hold(is_main)
    first = engine.begin(root.accept(order[0]))
    await gate.reached.wait()
    second = await after_the_held(engine, gate, root.accept(order[1]))
    one, two = await first, second
    assert (await root.result(one.input_id)).state == "open"
    assert (await root.result(two.input_id)).state == "queued"
    assert [item.kind for item in (await root.state()).inbox] == ["followUp"]
    assert len(await root.tasks()) == 1
    await root.drive()
    assert (await root.result(one.input_id)).text == "answer 1"
    assert (await root.result(two.input_id)).text == "answer 3"
