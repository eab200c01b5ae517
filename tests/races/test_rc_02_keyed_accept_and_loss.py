"""RC-02: a keyed accept and the loss of the process before its answer."""

import asyncio
from typing import Any

import pytest

from perdure.errors import Faulted
from perdure.providers.script import say
from perdure.records.addresses import request_input
from tests.engine import Engine, is_main


@pytest.mark.spec("RC-02", "ID-02", "IV-17")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_both_records_are_absent_or_both_present(engine: Engine, when: Any) -> None:
    root = await engine.root()
    gate = engine.storage.hold(is_main, when=when)
    asking = engine.begin(root.accept("hello", request_id="web-42"))
    await gate.reached.wait()
    await engine.kill()
    with pytest.raises((Faulted, asyncio.CancelledError)):
        await asking
    root = await engine.root([say("done")])
    mapped = await engine.harness.get_value(request_input("web-42"), None)
    entries = await root.entries()
    assert (mapped is not None) == bool(entries) == (when == "after")
    again = await root.accept("hello", request_id="web-42")
    assert again.duplicate == (when == "after")
    if entries:
        assert again.input_id == entries[0].id == mapped
    await root.drive()
    assert (await root.result(again.input_id)).text == "done"
    assert [entry.kind for entry in await root.entries()] == ["user", "assistant"]
