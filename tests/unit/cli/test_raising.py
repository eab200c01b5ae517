"""A session that another process has open is raised through its owner (BG-12)."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest

import perdure
from perdure.cli.driving.plan import Plan
from perdure.cli.driving.raising import raise_there
from perdure.cli.forwarding.there import There
from perdure.client.asking import Asked, Asker
from perdure.errors import Rejected
from perdure.harness.harness import Harness
from perdure.ports import Storage
from perdure.records.approvals import ApprovalOutcome, Verdict
from perdure.records.seqs import Seq
from perdure.testing.manual_clock import ManualClock
from perdure.testing.scripted_model import ScriptedModels, call, say
from tests.engine import CountedTokens, Probe


class NoServer:
    """Carries nothing."""

    async def call(self, asked: Asked) -> NoReturn:
        raise AssertionError(asked)

    async def stream(self, asked: Asked) -> NoReturn:
        raise AssertionError(asked)


class Owned(There):
    """An owner in this very process."""

    def __init__(self, harness: Harness) -> None:
        asker = Asker(NoServer(), clock=ManualClock(), randomness=CountedTokens(), tries=1)
        super().__init__(asker, session_id="", session=harness.info.name)
        self._harness = harness

    async def decide(
        self, approval: Seq, verdict: Verdict, details: object, *, by: str
    ) -> ApprovalOutcome:
        return await self._harness.decide_approval(approval, verdict, details=details, by=by)


@pytest.mark.spec("BG-12")
async def test_what_an_owner_waits_for_is_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Probe("t")
    models = ScriptedModels([say(call("t")), say("end")])
    opening = perdure.open("memory:", session="s", model="scripted:x", models=models, tools=[tool])

    @asynccontextmanager
    async def reading(_: str, __: str) -> AsyncGenerator[Storage]:
        storage = await opening.reader()
        yield storage
        await storage.close()

    monkeypatch.setattr("perdure.cli.driving.raising.reading", reading)
    async with opening as harness:
        root = await harness.root()
        accepted = await root.accept("go", budget=perdure.Budget(turns=1))
        await root.drive()

        def plan(**limits: object) -> Plan:
            return Plan(
                opening=opening, url="memory:", session="s", continuing=(), again=(), raises=limits
            )

        with pytest.raises(Rejected) as refused:
            await raise_there(plan(cost="5"), Owned(harness))
        assert refused.value.code == "nothing_to_do"
        assert "turns 1 of 1 spent" in refused.value.message
        left = await raise_there(plan(turns=2), Owned(harness))
        assert left.raises == {}
        await root.drive()
        assert (await root.result(accepted.input_id)).text == "end"
        assert len(tool.runs) == 1
