"""RC-24: a settlement whose persistence is uncertain."""

from typing import Any

import pytest

from perdure.errors import Faulted
from perdure.providers.script import call, say
from perdure.records.messages import Usage
from perdure.records.writes import AppendList, InsertEntry, InsertTask, RetireScope, SettleTask
from tests.engine import Engine, Probe, task_moves, writes

ALL = {InsertEntry, AppendList, SettleTask, InsertTask, RetireScope}


@pytest.mark.spec("RC-24", "FT-05", "TK-10")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("settling", ["generation", "tool", "join"])
async def test_all_of_it_is_there_after_reopening_or_none(
    engine: Engine, when: Any, settling: str
) -> None:
    tool = Probe("look", replay="safe")
    usage = Usage(input=1, output=1)
    root = await engine.root([say(call("look"), usage=usage), say("done")], tools=[tool])
    await root.accept("hello")
    match = {
        "generation": task_moves("planned"),
        "tool": lambda commit: bool(tool.runs) and writes(SettleTask)(commit),
        "join": lambda commit: task_moves("done")(commit) and _creates_generation(commit),
    }[settling]
    engine.storage.fail(match, OSError("lost reply"), when=when)
    with pytest.raises(Faulted):
        await root.drive()
    with pytest.raises(Faulted):
        await root.accept("later")
    await engine.kill()
    root = await engine.root(tools=[tool])
    last = (await engine.commits())[-1]
    present = {type(write) for write in last.writes} & ALL
    tasks = {task.kind: task.status for task in await root.tasks()}
    if settling == "generation":
        assert present == (ALL if when == "after" else set())
        assert tasks["generation"] == ("done" if when == "after" else "streaming")
    elif settling == "tool":
        wanted = {InsertEntry, SettleTask, RetireScope} if when == "after" else set[Any]()
        assert present == wanted
        assert tasks["tool"] == ("done" if when == "after" else "running")
    else:
        live = [task.kind for task in await root.tasks(live=True)]
        assert live == (["generation"] if when == "after" else ["post_tools"])
        if when == "after":
            assert {SettleTask, InsertTask, RetireScope} <= present


def _creates_generation(commit: Any) -> bool:
    return any(
        isinstance(write, InsertTask) and write.kind == "generation" for write in commit.writes
    )
