"""Integers keep every digit at every door, and too long ones are refused by name (VD-18, K33)."""

from collections.abc import Mapping
from typing import Any

import pytest

from perdure.errors import Rejected
from perdure.ports import ToolContext
from perdure.providers.script import call, say
from perdure.records.addresses import ConversationList, ConversationValue, SessionValue
from perdure.records.codec import decode_json
from perdure.records.messages import ToolResultMessage
from perdure.records.sessions import ListPage
from tests.engine import Engine, Probe

PLAN = ConversationValue[object]("test.plan")
STEPS = ConversationList[object]("test.steps")
NOTE = SessionValue[object]("test.note")
EXACT = [9007199254740993, 2**64, -7108510333361982070, 10**4_299]


@pytest.mark.spec("VD-18", "BB-39")
async def test_values_come_back_exact(engine: Engine) -> None:
    root = await engine.root()
    await root.set_value(PLAN, {"numbers": EXACT})
    await engine.harness.set_value(NOTE, EXACT[3])
    for number in EXACT:
        await root.append_list(STEPS, number)
    for _ in range(2):
        assert await root.get_value(PLAN, None) == {"numbers": EXACT}
        assert await engine.harness.get_value(NOTE, None) == EXACT[3]
        page = await root.read_list(STEPS, ListPage(limit=9))
        assert [decode_json(one.value_json) for one in page] == EXACT
        await engine.kill()
        root = await engine.root()
    head = engine.storage.last_seq
    for wrong in (10**4_300, [1, {"a": -(10**4_300)}]):
        with pytest.raises(Rejected, match="digits"):
            await root.set_value(PLAN, wrong)
    assert engine.storage.last_seq == head
    assert engine.line.fault is None


@pytest.mark.spec("VD-18", "BB-39")
async def test_arguments_arrive_exact_and_too_long_ones_are_an_error_result(
    engine: Engine,
) -> None:
    async def keep(args: Mapping[str, Any], ctx: ToolContext) -> object:
        ctx.out.details(args["n"])
        return None

    tool = Probe("keep", body=keep)
    texts = [f'{{"n":{number}}}' for number in EXACT] + [f'{{"n":{"9" * 4_301}}}']
    root = await engine.root(
        [say(*(call("keep", args_text=text) for text in texts)), say("done")], tools=[tool]
    )
    assert (await root.prompt("hello")).text == "done"
    assert sorted(args["n"] for args in tool.runs) == sorted(EXACT)
    results = [
        one for one in engine.models.requests[-1].messages if isinstance(one, ToolResultMessage)
    ]
    assert [one.is_error for one in results] == [False] * 4 + [True]
    assert "digits" in repr(results[-1].content)
    details = [decode_json(one.details) for one in results[:4] if one.details]
    assert details == EXACT
    assert engine.line.fault is None
