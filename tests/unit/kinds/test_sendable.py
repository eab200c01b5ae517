"""Whatever a model says, the next message is accepted: no reply bricks a session."""

import pytest

import perdure
from perdure.providers.script import Reply, call, fail, say, think
from perdure.providers.scripted import ScriptedModels
from perdure.testing.strict_wire import StrictWire

ODD_REPLIES = {
    "empty": [Reply()],
    "blank": [say("  ")],
    "only thinking": [say(think("hm"))],
    "thinking and a blank": [say(think("hm"), "\n")],
    "a result without output": [say(call("go")), say("ok")],
    "one id twice": [say(call("go", call_id="a"), call("go", call_id="a")), say("ok")],
    "an odd id": [say(call("go", call_id="a.b")), say("ok")],
    "no tool name": [say(call("", call_id="x")), say("ok")],
    "a tool name with a space": [say(call("no such", call_id="x")), say("ok")],
    "NaN in arguments": [say(call("go", args_text='{"n": NaN}')), say("ok")],
    "a surrogate and a NUL": [say("a\ud800b\x00")],
    "a call cut off": [say(call("go", args_text='{"n'), stop="length"), say("ok")],
    "a failure in the middle": [fail("invalid_request", "Half", call("go"))],
    "a blank beside a call": [say("", call("go")), say("ok")],
}


@perdure.tool(replay="safe")
async def go(n: int = 0) -> str:
    """Go."""
    return ""


@pytest.mark.spec("IV-06", "BB-30", "BB-31")
@pytest.mark.parametrize("reply", sorted(ODD_REPLIES))
async def test_the_next_message_is_accepted_after(reply: str) -> None:
    wire = StrictWire(ScriptedModels([*ODD_REPLIES[reply], say("next", uses=0)]))
    async with perdure.open(
        "memory:", session="s", model="scripted:x", models=wire, tools=[go]
    ) as harness:
        root = await harness.root()
        await root.prompt("do it")
        stored = [entry.payload for entry in await root.entries()]
        answer = await root.prompt("and now")
        kept = [entry.payload for entry in await root.entries(limit=len(stored))]
    assert not wire.refused
    assert answer.state == "answered"
    assert kept == stored
