"""RC-05: an abort and a tool's outcome, both durable orders."""

import asyncio
from typing import Any

import pytest

from perdure.providers.script import call, say
from perdure.records.writes import InsertEntry
from tests.engine import Engine, Gate, Probe


def _results(commit: Any) -> bool:
    return any(isinstance(w, InsertEntry) and w.kind == "tool_result" for w in commit.writes)


async def _outcome(root: Any) -> tuple[str, str, str]:
    (tool,) = [task for task in await root.tasks() if task.kind == "tool"]
    (entry,) = [one for one in await root.entries() if one.kind == "tool_result"]
    (join,) = [task for task in await root.tasks() if task.kind == "post_tools"]
    return tool.status, str(entry.meta.outcome), join.status


@pytest.mark.spec("RC-05", "CN-09")
async def test_mark_first_signals_the_call_and_settles_aborted(engine: Engine) -> None:
    gate = Gate()
    probe = Probe("t", gate=gate)
    root = await engine.root([say(call("t"))], tools=[probe])
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    await driving
    assert await _outcome(root) == ("aborted", "interrupted", "aborted")
    assert probe.contexts[0].signal.reason == "abort"
    assert len(engine.models.requests) == 1


@pytest.mark.spec("RC-05")
async def test_outcome_first_stays_done_with_its_result(engine: Engine) -> None:
    root = await engine.root([say(call("t"))], tools=[Probe("t")])
    accepted = await root.accept("hi")
    held = engine.storage.hold(_results)
    driving = engine.begin(root.drive())
    await held.reached.wait()
    aborting = engine.begin(root.abort())
    await asyncio.sleep(0)
    held.open()
    await aborting
    await driving
    assert await _outcome(root) == ("done", "finished", "aborted")
    assert (await root.result(accepted.input_id)).state == "aborted"
    assert len(engine.models.requests) == 1


@pytest.mark.spec("RC-05", "FM-07")
async def test_a_call_that_ended_before_it_heard_of_the_mark_says_finished(
    engine: Engine,
) -> None:
    # The call returned; its settlement waits behind the mark on the line.
    root = await engine.root([say(call("t"))], tools=[Probe("t")])
    await root.accept("hi")
    gate = Gate()
    returned = asyncio.Event()

    async def body(args: Any, ctx: Any) -> None:
        await gate()
        ctx.out.write("done in time")
        returned.set()

    await engine.kill()
    root = await engine.root([say(call("t"))], tools=[Probe("t", body=body)])
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    marking = engine.storage.hold(lambda commit: True)
    aborting = engine.begin(root.abort())
    await marking.reached.wait()
    gate.open()
    await returned.wait()
    marking.open()
    await aborting
    await driving
    assert await _outcome(root) == ("aborted", "finished", "aborted")
