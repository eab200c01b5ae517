"""RC-16: a close and a settlement, both durable orders."""

import asyncio

import pytest

from perdure.providers.script import call, say
from tests.engine import Engine, Gate, Probe, task_moves


@pytest.mark.spec("RC-16")
async def test_settled_before_close_stays_settled(engine: Engine) -> None:
    pay = Probe("pay")
    root = await engine.root([say(call("pay"))], tools=[pay])
    accepted = await root.accept("hi")
    held = engine.storage.hold(lambda c: bool(pay.runs) and task_moves("done")(c))
    engine.begin(root.drive())
    await held.reached.wait()
    closing = engine.begin(engine.harness.close(grace=5))
    await asyncio.sleep(0)
    held.open()
    await closing
    root = await engine.root([say("end")], tools=[pay])
    assert engine.harness.inspect().inflight == ()
    await root.drive()
    assert len(pay.runs) == 1
    outcomes = [e.meta.outcome for e in await root.entries() if e.kind == "tool_result"]
    assert outcomes == ["finished"]
    assert (await root.result(accepted.input_id)).text == "end"


@pytest.mark.spec("RC-16", "OP-15")
async def test_closed_before_its_settlement_it_is_inflight_and_recovers(engine: Engine) -> None:
    gate = Gate()

    async def body(args: object, ctx: object) -> None:
        try:
            await gate()
        except asyncio.CancelledError:
            return  # it ends as if it had finished, a moment too late

    pay = Probe("pay", body=body)
    root = await engine.root([say(call("pay"))], tools=[pay])
    accepted = await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    await engine.harness.close(grace=5)
    root = await engine.root([say("end")], tools=[pay])
    assert [task.status for task in engine.harness.inspect().inflight] == ["running"]
    await root.drive()
    assert len(pay.runs) == 1
    outcomes = [e.meta.outcome for e in await root.entries() if e.kind == "tool_result"]
    assert outcomes == ["interrupted"]
    assert (await root.result(accepted.input_id)).text == "end"
