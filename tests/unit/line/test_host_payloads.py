"""What a host hands over as a payload has exactly the shape of its kind (FM-03)."""

from typing import Any

import pytest

from perdure.errors import Rejected
from perdure.line.command import Command
from perdure.records.entries import EntryMeta
from perdure.records.messages import UserPayload, text_message
from tests.engine import Engine

RIGHT: dict[str, Any] = {
    "v": 1,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}], "timestamp": 5}],
}
MESSAGE: dict[str, Any] = RIGHT["messages"][0]


@pytest.mark.spec("FM-03")
@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": RIGHT["messages"]},
        {"v": 1},
        {"v": 2, "messages": RIGHT["messages"]},
        {**RIGHT, "more": 1},
        {"v": 1, "messages": [{**MESSAGE, "more": 1}]},
        {"v": 1, "messages": [{**MESSAGE, "content": [{"type": "text"}]}]},
        {"v": 1, "messages": [{**MESSAGE, "content": [{"type": "text", "text": "a", "z": 1}]}]},
        {"v": 1, "messages": [{**MESSAGE, "content": [{"type": "video", "x": {}}]}]},
        {"v": 1, "messages": [{**MESSAGE, "role": "system"}]},
    ],
)
async def test_a_payload_of_another_shape_is_refused_at_write(
    engine: Engine, wrong: dict[str, Any]
) -> None:
    root = await engine.root()
    before = engine.storage.last_seq

    def build(tx: Command) -> None:
        tx.insert_entry(root.id, "user", EntryMeta(timestamp=5), wrong)

    with pytest.raises(Rejected, match="UserPayload"):
        await engine.harness.command(build)
    assert engine.storage.last_seq == before


@pytest.mark.spec("FM-03")
@pytest.mark.parametrize("right", [RIGHT, UserPayload(messages=(text_message("hi", 5),))])
async def test_a_payload_of_its_shape_is_stored_as_it_is(engine: Engine, right: object) -> None:
    root = await engine.root()

    def build(tx: Command) -> None:
        tx.insert_entry(root.id, "user", EntryMeta(timestamp=5), right)

    await engine.harness.command(build)
    assert (await root.entries())[-1].payload == RIGHT
