"""RC-21: two parallel outcomes in either order; the join is ready after the last."""

import asyncio
from typing import Any

import pytest

from perdure.providers.script import call, say
from perdure.records.writes import InsertTask, SettleTask
from tests.engine import Engine, Gate, Probe


@pytest.mark.spec("RC-21", "PT-02", "TL-11")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_each_settles_itself_and_the_join_follows_the_last(
    engine: Engine, order: tuple[int, int]
) -> None:
    gates = [Gate(), Gate()]
    root = await engine.root(
        [say(call("t0"), call("t1")), say("end")],
        tools=[Probe(f"t{n}", gate=gate) for n, gate in enumerate(gates)],
    )
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await asyncio.gather(*(gate.reached.wait() for gate in gates))
    tools = [task.id for task in await root.tasks() if task.kind == "tool"]
    for at in order:
        gates[at].open()
        await engine.storage.until(lambda c, at=at: tools[at] in _settled(c))
    await driving
    settling = [set(_settled(c)) for c in await engine.commits() if _settled(c)]
    (join,) = [task.id for task in await root.tasks() if task.kind == "post_tools"]
    own = [settled for settled in settling if settled & {*tools, join}]
    assert own == [{tools[order[0]]}, {tools[order[1]]}, {join}]
    joining = [c for c in await engine.commits() if join in _settled(c)]
    made = [w for w in joining[0].writes if isinstance(w, InsertTask)]
    assert [w.kind for w in made] == ["generation"]
    sent = [getattr(m, "tool_name", None) for m in engine.models.requests[1].messages]
    assert [name for name in sent if name] == ["t0", "t1"], "call order, whatever came first"


def _settled(commit: Any) -> list[int]:
    return [w.task_id for w in commit.writes if isinstance(w, SettleTask)]
