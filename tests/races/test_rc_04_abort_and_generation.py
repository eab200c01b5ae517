"""RC-04: an abort and a generation's settlement, both durable orders."""

import asyncio
from typing import Any

import pytest

from perdure.providers.script import call, say
from perdure.records.messages import Usage
from perdure.records.writes import InsertEntry, PatchTask
from tests.engine import Engine, Gate, Probe, writes

USED = Usage(input=7, output=3, cache_read=None, cache_write=None, reasoning=None, cost=None)


@pytest.mark.spec("RC-04", "CN-06", "GN-09")
async def test_mark_first_keeps_the_answer_and_starts_nothing(engine: Engine) -> None:
    end = Gate()
    tool = Probe("t")
    reply = say("answer", call("t"), usage=USED, gates={-1: end})
    root = await engine.root([reply], tools=[tool])
    accepted = await root.accept("hi")
    # The mark is durable, and held back from everybody, while the answer arrives.
    held = engine.storage.hold(writes(PatchTask, abort_requested=True), when="after")
    driving = engine.begin(root.drive())
    await end.reached.wait()
    aborting = engine.begin(root.abort())
    await held.reached.wait()
    end.open()
    await asyncio.sleep(0)
    held.open()
    await aborting
    await driving
    (task,) = [one for one in await root.tasks() if one.kind == "generation"]
    assert task.status == "aborted"
    assert [one.kind for one in await root.tasks()] == ["generation"], "no tool, no join"
    result = await root.result(accepted.input_id)
    assert result.state == "aborted"
    assert result.partial is not None
    assert (result.partial.text, result.partial.stop) == ("answer", "aborted")
    assert tool.runs == []
    outcomes = [e.meta.outcome for e in await root.entries() if e.kind == "tool_result"]
    assert outcomes == ["notStarted"]
    assert (await engine.harness.usage_totals()).reports == 1


@pytest.mark.spec("RC-04")
async def test_settlement_first_keeps_the_output_and_the_abort_reaches_what_follows(
    engine: Engine,
) -> None:
    tool_gate = Gate()
    root = await engine.root([say("answer", call("t"))], tools=[Probe("t", gate=tool_gate)])
    accepted = await root.accept("hi")
    held = engine.storage.hold(_answers)
    driving = engine.begin(root.drive())
    await held.reached.wait()
    aborting = engine.begin(root.abort())
    await asyncio.sleep(0)
    held.open()
    report = await aborting
    await driving
    kinds = {task.kind: task for task in await root.tasks()}
    assert kinds["generation"].status == "done"
    assert set(report.marked) == {kinds["tool"].id, kinds["post_tools"].id}
    assert (kinds["tool"].status, kinds["post_tools"].status) == ("aborted", "aborted")
    assert (await root.result(accepted.input_id)).state == "aborted"
    assert [e.kind for e in await root.entries()] == ["user", "assistant", "tool_result"]


def _answers(commit: Any) -> bool:
    return any(isinstance(w, InsertEntry) and w.kind == "assistant" for w in commit.writes)
