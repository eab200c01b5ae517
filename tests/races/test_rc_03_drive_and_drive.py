"""RC-03: two drives share what runs; there are never two executors."""

import asyncio

import pytest

from perdure.drive.outcomes import DriveOutcome
from perdure.providers.script import call, say
from tests.engine import Engine, Gate, Probe


@pytest.mark.spec("RC-03", "SC-12", "ER-04", "IV-24")
async def test_the_second_joins_what_the_first_runs(engine: Engine) -> None:
    gate = Gate()
    tool = Probe("t", gate=gate)
    root = await engine.root([say(call("t")), say("end")], tools=[tool])
    await root.accept("hi")
    first = engine.begin(root.drive())
    await gate.reached.wait()
    second = engine.begin(root.drive())
    third = engine.begin(engine.harness.drive())
    await asyncio.sleep(0)
    gate.open()
    results = await asyncio.gather(first, second, third)
    assert {result.outcome for result in results} == {DriveOutcome.IDLE}
    assert (len(tool.runs), len(engine.models.requests)) == (1, 2)


@pytest.mark.spec("RC-03", "SC-15")
async def test_the_second_goes_on_with_what_the_first_left(engine: Engine) -> None:
    gate = Gate()
    tool = Probe("t", gate=gate)
    root = await engine.root([say(call("t")), say("end")], tools=[tool])
    accepted = await root.accept("hi")
    first = engine.begin(root.drive())
    await gate.reached.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = engine.begin(root.drive())
    await asyncio.sleep(0)
    gate.open()
    await second
    assert (len(tool.runs), len(engine.models.requests)) == (1, 2)
    assert (await root.result(accepted.input_id)).text == "end"
