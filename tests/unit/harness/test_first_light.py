"""One turn with two tools, end to end, is the smallest thing everything else stands on."""

from perdure.providers.script import call, say
from tests.engine import Engine, Probe


async def test_a_turn_with_two_tools_answers(engine: Engine) -> None:
    tools = [Probe("look", replay="safe"), Probe("pay")]
    root = await engine.root([say(call("look"), call("pay")), say("done")], tools=tools)
    result = await root.prompt("hello", request_id="k1")
    assert (result.state, result.text) == ("answered", "done")
    assert [len(tool.runs) for tool in tools] == [1, 1]
    assert not engine.errors


async def test_a_killed_turn_goes_on(engine: Engine) -> None:
    pay = Probe("pay")
    root = await engine.root([say(call("pay"))], tools=[pay])
    accepted = await root.accept("hello")
    gate = engine.storage.hold(lambda commit: len(pay.runs) == 1)
    engine.begin(root.drive())
    await gate.reached.wait()
    await engine.kill()
    root = await engine.root([say("done")], tools=[pay])
    await root.drive()
    assert (await root.result(accepted.input_id)).text == "done"
    assert len(pay.runs) == 1
