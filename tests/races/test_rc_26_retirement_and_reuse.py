"""RC-26: retiring a working scope and using its name again."""

from collections.abc import Awaitable
from typing import Any

import pytest
from msgspec import Raw

from perdure.line.command import Command, WorkingCommand
from perdure.records.addresses import WorkingScope
from perdure.records.sessions import ListPage
from tests.engine import Engine
from tests.races.held import after_the_held

SCOPE = WorkingScope("upload")
ITEMS = SCOPE.list("test.items")


@pytest.mark.spec("RC-26", "WS-06")
@pytest.mark.parametrize("first", ["retire", "write"])
@pytest.mark.parametrize("reopen", [False, True])
async def test_later_writes_survive_and_earlier_ones_do_not(
    engine: Engine, first: str, *, reopen: bool
) -> None:
    harness = await engine.open()
    await harness.working_command(SCOPE, lambda tx: _write(tx, "old"))

    def retire(tx: Command) -> None:
        tx.retire_scope(SCOPE)

    works: list[Awaitable[Any]] = [
        harness.command(retire),
        harness.working_command(SCOPE, lambda tx: _write(tx, "new")),
    ]
    if first == "write":
        works.reverse()
    gate = engine.storage.hold(lambda _: True)
    one = engine.begin(works[0])
    await gate.reached.wait()
    await after_the_held(engine, gate, works[1])
    await one
    if reopen:
        await engine.kill()
        harness = await engine.open()
    page = await harness.read_list(ITEMS, ListPage(limit=10))
    assert [item.value_json for item in page] == ([Raw(b'"new"')] if first == "retire" else [])


def _write(tx: WorkingCommand, text: str) -> None:
    tx.append_list(ITEMS, text)
