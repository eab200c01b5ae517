"""RC-14 and RC-27: working writes of a running task, its settlement, and the retirement."""

from collections.abc import Mapping
from typing import Any

import pytest

from perdure.errors import PerdureError
from perdure.ports import ToolContext
from perdure.providers.script import END, call, say
from perdure.records.addresses import PROGRESS, task_scope
from perdure.records.seqs import Seq
from tests.engine import Engine, Gate, Probe, is_main, task_moves


@pytest.mark.spec("RC-14", "RC-27", "WS-09", "IV-23")
async def test_a_progress_write_admitted_first_is_drained_before_the_outcome(
    engine: Engine,
) -> None:
    """The tool returns while its last checkpoint is still on its way to the disk."""

    async def work(_: Mapping[str, Any], ctx: ToolContext) -> object:
        progress.append(engine.begin(ctx.out.progress({"step": 1})))
        await gate.reached.wait()
        engine.begin(_open_soon(gate))
        return None

    progress: list[Any] = []
    root = await engine.root([say(call("work")), say("ok")], tools=[Probe("work", body=work)])
    await root.accept("hello")
    gate = engine.storage.hold(lambda commit: not is_main(commit))
    await root.drive()
    await progress[0]
    order = [
        "progress" if not is_main(one) else "outcome"
        for one in engine.storage.commits_made
        if not is_main(one) or task_moves("done")(one)
    ]
    assert order.index("progress") < order[1:].index("outcome") + 1
    assert not engine.errors
    assert await _left(engine) == []


@pytest.mark.spec("RC-14", "RC-27", "WS-10", "IV-23")
async def test_a_progress_write_after_the_settlement_is_refused(engine: Engine) -> None:
    tool = Probe("work")
    root = await engine.root([say(call("work")), say("ok")], tools=[tool])
    await root.accept("hello")
    gate = engine.storage.hold(
        lambda commit: bool(tool.runs) and is_main(commit) and task_moves("done")(commit)
    )
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    with pytest.raises(PerdureError):
        await tool.contexts[0].out.progress({"late": True})
    gate.open()
    await driving
    assert await _left(engine) == []
    assert not [one for one in engine.storage.commits_made if not is_main(one)]


@pytest.mark.spec("RC-14", "WS-09", "CN-09")
async def test_frames_admitted_before_an_abort_stand_in_the_partial(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("x" * 9_000, chunk=1_000, gates={END: gate})])
    accepted = await root.accept("hello")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    await driving
    partial = (await root.result(accepted.input_id)).partial
    assert partial is not None
    assert len(partial.text) == 9_000
    assert await _left(engine) == []


async def _open_soon(gate: Gate) -> None:
    gate.open()


async def _left(engine: Engine) -> list[Seq]:
    """Name the tasks whose working scope still holds a checkpoint."""
    root = await engine.harness.root()
    left: list[Seq] = []
    for task in await root.tasks():
        value = await engine.harness.get_value(task_scope(task.id).value(PROGRESS), None)
        if value is not None:
            left.append(task.id)
    return left
