"""How to test an agent: a scripted model behind the strict wire, and a crash at every commit.

python -m pytest examples/test_agent.py
"""

import asyncio
from pathlib import Path

import perdure
from perdure.opening import SilentTelemetry, open_store, system_ports
from perdure.records.models import parse_model
from perdure.testing.effect_counter import EffectCounter
from perdure.testing.faulty_storage import Fault, FaultPlan, FaultySessions
from perdure.testing.scripted_model import ScriptedModels, call, say
from perdure.testing.strict_wire import StrictWire

SCRIPT = [
    say(call("pay", {"key": "o-7"}), call("pay", {"key": "o-8"})),
    say("Both are paid."),
    say("Yes."),
]


async def life(folder: Path, plan: FaultPlan) -> list[str]:
    """Open the session over a storage that may fail, ask twice; answers what was said."""
    ports = system_ports()
    store = open_store(f"sqlite:{folder / 'store.db'}", ports, durability="process")
    sessions = FaultySessions(store, plan)
    try:
        storage = await sessions.open("shop", create=True)
        options = perdure.HarnessOptions(
            models=StrictWire(ScriptedModels(SCRIPT, by="transcript")),
            clock=ports.clock,
            randomness=ports.randomness,
            threads=ports.threads,
            telemetry=SilentTelemetry(),
            initial=perdure.GenerationSettings(
                model=parse_model("scripted:shop"),
                retry=perdure.RetryPolicy(base_delay_ms=1),  # a cut-off request is asked again
            ),
            tools=[EffectCounter(folder / "effects").tool("pay", replay="never")],
        )
        async with await perdure.Harness.open(storage, options) as harness:
            root = await harness.root()
            first = await root.prompt("Pay both.", request_id="pay")
            second = await root.prompt("Are you still there?", request_id="there")
            return [first.text, second.text]
    finally:
        await sessions.close()


def test_the_agent_pays_once(tmp_path: Path) -> None:
    assert asyncio.run(life(tmp_path, FaultPlan())) == ["Both are paid.", "Yes."]
    assert EffectCounter(tmp_path / "effects").counts() == {"pay:o-7": 1, "pay:o-8": 1}


def test_a_crash_at_any_commit_pays_nothing_twice(tmp_path: Path) -> None:
    nth, plan = 0, FaultPlan()
    while nth == plan.nth and (nth == 0 or plan.fired):
        nth += 1
        for fault in (Fault.BEFORE, Fault.AFTER):
            folder = tmp_path / f"{nth}-{fault}"
            folder.mkdir()
            plan = FaultPlan(nth, fault)
            try:
                asyncio.run(life(folder, plan))
            except perdure.Faulted:
                assert plan.fired
            said = asyncio.run(life(folder, FaultPlan()))
            assert said == ["Both are paid.", "Yes."]
            assert all(n == 1 for n in EffectCounter(folder / "effects").counts().values())
    assert nth > 5
