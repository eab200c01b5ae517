"""RC-25: the join's settlement and an abort, both durable orders."""

import asyncio
from typing import Any

import pytest

from perdure.providers.script import call, say
from perdure.records.writes import InsertTask, SettleTask
from tests.engine import Engine, Gate, Probe


def _joins(commit: Any) -> bool:
    made = [w.kind for w in commit.writes if isinstance(w, InsertTask)]
    return made == ["generation"] and any(isinstance(w, SettleTask) for w in commit.writes)


@pytest.mark.spec("RC-25", "PT-03", "CN-14")
async def test_a_marked_join_creates_nothing(engine: Engine) -> None:
    root = await engine.root([say(call("t"))], tools=[Probe("t")])
    accepted = await root.accept("hi")
    held = engine.storage.hold(_joins)
    engine.begin(root.drive())
    await held.reached.wait()
    await engine.kill()
    root = await engine.root([], tools=[Probe("t")])
    (join,) = engine.harness.inspect().start
    report = await root.abort()
    assert report.marked == (join.id,)
    await root.drive()
    kinds = [(task.kind, task.status) for task in await root.tasks()]
    assert kinds == [("generation", "done"), ("tool", "done"), ("post_tools", "aborted")]
    assert (await root.result(accepted.input_id)).state == "aborted"


@pytest.mark.spec("RC-25", "PT-03")
async def test_a_mark_that_lands_before_the_joins_command_wins(engine: Engine) -> None:
    # The tool settles; the abort stands in line before the join's own command.
    gate = Gate()
    root = await engine.root([say(call("t")), say("never")], tools=[Probe("t", gate=gate)])
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    held = engine.storage.hold(lambda c: any(isinstance(w, SettleTask) for w in c.writes))
    gate.open()
    await held.reached.wait()
    aborting = engine.begin(root.abort())
    await asyncio.sleep(0)
    held.open()
    await aborting
    await driving
    assert [task.status for task in await root.tasks()] == ["done", "done", "aborted"]
    assert len(engine.models.requests) == 1


@pytest.mark.spec("RC-25", "RC-04")
async def test_a_committed_successor_becomes_a_target(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say(call("t")), say("x", gates={0: gate})], tools=[Probe("t")])
    accepted = await root.accept("hi")
    held = engine.storage.hold(_joins)
    driving = engine.begin(root.drive())
    await held.reached.wait()
    aborting = engine.begin(root.abort())
    await asyncio.sleep(0)
    held.open()
    report = await aborting
    await driving
    tasks = await root.tasks()
    assert [(task.kind, task.status) for task in tasks] == [
        ("generation", "done"),
        ("tool", "done"),
        ("post_tools", "done"),
        ("generation", "aborted"),
    ]
    assert report.marked == (tasks[-1].id,)
    assert (await root.result(accepted.input_id)).state == "aborted"
