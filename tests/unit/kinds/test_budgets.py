"""Budgets: reserved before the call, settled with the outcome, suspended at the limit (BG)."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from perdure.drive.outcomes import DriveOutcome
from perdure.errors import Faulted, Rejected
from perdure.harness.approvals import list_approvals
from perdure.harness.spending import open_budgets, raise_budgets
from perdure.kinds.settlement import generation_state
from perdure.kinds.spending import read_chain
from perdure.line.command import Command
from perdure.providers.script import Reply, call, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.addresses import Address, input_record
from perdure.records.approvals import ApprovalView
from perdure.records.budgets import FIELDS, NOTHING_SPENT, Budget, Spent
from perdure.records.codec import decode, decode_json
from perdure.records.inputs import InputRecord
from perdure.records.messages import Cost, Usage
from perdure.records.models import ModelInfo, TokenPrice
from perdure.records.seqs import Seq
from perdure.records.usage import NO_USAGE
from perdure.testing.strict_wire import StrictWire
from tests.engine import CAN, Engine, Gate, Probe
from tests.unit.drive.chores import Chores, new_conversation, plan
from tests.unit.kinds.turns import failing, generations, outcomes

PRICE = Cost(amount="0.01", currency="USD", prices="test")
"""What each request of these tests costs."""

PRICED: ModelInfo = msgspec.structs.replace(
    CAN, output_limit=1_000, price=TokenPrice(input_price="0", output_price="10")
)
"""A model whose 1,000 tokens of output cost exactly `PRICE`."""


def used(tokens: int = 1_000, cost: Cost | None = PRICE) -> Usage:
    return Usage(input=0, output=tokens, cache_read=0, cache_write=0, cost=cost)


def priced(engine: Engine, replies: Sequence[Reply]) -> ScriptedModels:
    return ScriptedModels(replies, clock=engine.clock, can=PRICED)


def looping(turns: int, *calls: str) -> list[Reply]:
    """A model that calls tools for so many turns, then ends."""
    names = calls or ("t",)
    return [say(*(call(name) for name in names), usage=used()) for _ in range(turns)] + [
        say("end", usage=used())
    ]


async def questions(engine: Engine) -> Sequence[ApprovalView]:
    return await list_approvals(engine.storage.inner)


async def grant(engine: Engine, **limits: Any) -> None:
    (asked,) = await questions(engine)
    await engine.harness.decide_approval(asked.id, "grant", details={"raise": limits})


async def record_of(engine: Engine, input_id: Seq) -> InputRecord:
    raw = await engine.line.value(input_record(input_id).address())
    assert raw is not None
    return decode(raw, InputRecord)


# At the limit: suspend.


@pytest.mark.spec("BG-05", "BG-06")
@pytest.mark.parametrize("calls", [("t",), ("t", "u", "t")])
async def test_the_price_of_two_requests_buys_no_third(
    engine: Engine, calls: tuple[str, ...]
) -> None:
    models = priced(engine, looping(4, *calls))
    root = await engine.root(models, tools=[Probe("t"), Probe("u")])
    accepted = await root.accept("go", budget=Budget(cost="0.02"))
    driven = await root.drive()
    assert driven.outcome is DriveOutcome.SUSPENDED
    assert len(models.requests) == 2
    (asked,) = await questions(engine)
    assert [wait.task for wait in driven.waiting_for] == [asked.id]
    assert asked.prompt == (
        f"May it go on? the budget of input {accepted.input_id} is reached: "
        "cost 0.02 of 0.02 USD spent"
    )
    await grant(engine, cost="0.03")
    driven = await root.drive()
    assert driven.outcome is DriveOutcome.SUSPENDED
    assert len(models.requests) == 3
    await grant(engine, cost="1")
    driven = await root.drive()
    assert driven.outcome is DriveOutcome.IDLE
    assert len(models.requests) == 5
    assert (await root.result(accepted.input_id)).text == "end"
    assert engine.errors == []


@pytest.mark.spec("BG-06")
async def test_calls_wait_before_they_start_behind_one_question(engine: Engine) -> None:
    tool = Probe("t")
    models = priced(engine, looping(1, "t", "t", "t"))
    root = await engine.root(models, tools=[tool])
    accepted = await root.accept("go", budget=Budget(turns=1))
    driven = await root.drive()
    assert tool.runs == []
    (asked,) = await questions(engine)
    assert asked.budget == {
        "input": accepted.input_id,
        "field": "turns",
        "limit": "1",
        "spent": "1",
        "currency": "USD",
    }
    assert {wait.task for wait in driven.waiting_for} == {asked.id}
    await grant(engine, turns=2)
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    assert len(tool.runs) == 3
    assert (await record_of(engine, accepted.input_id)).budget == Budget(turns=2)


@pytest.mark.spec("BG-06")
async def test_a_grant_that_raises_nothing_or_too_little_is_refused(engine: Engine) -> None:
    root = await engine.root(priced(engine, looping(3)), tools=[Probe("t")])
    await root.accept("go", budget=Budget(turns=1))
    await root.drive()
    (asked,) = await questions(engine)
    decide = engine.harness.decide_approval
    for details in (
        None,
        "yes",
        {"raise": {}},
        {"raise": 3},
        {"raise": {"turns": 1}},
        {"raise": {"tokens": 5}},
        {"raise": {"money": 5}},
        {"raise": {"turns": "2"}},
    ):
        with pytest.raises(Rejected) as refused:
            await decide(asked.id, "grant", details=details)
        assert refused.value.code == "invariant"
    assert [one.status for one in await questions(engine)] == ["waiting"]
    await decide(asked.id, "grant", details={"raise": {"turns": 9}})
    assert (await root.drive()).outcome is DriveOutcome.IDLE


@pytest.mark.spec("BG-06", "BG-07")
async def test_a_denial_ends_the_input_and_the_next_one_is_answered(engine: Engine) -> None:
    tool = Probe("t")
    models = StrictWire(priced(engine, [*looping(1, "t", "t")[:1], say("next", usage=used())]))
    root = await engine.root(tools=[tool], models=models)
    accepted = await root.accept("go", budget=Budget(turns=1))
    await root.drive()
    (asked,) = await questions(engine)
    await engine.harness.decide_approval(asked.id, "deny")
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    assert tool.runs == []
    assert await outcomes(root) == ["notStarted", "notStarted"]
    result = await root.result(accepted.input_id)
    assert result.state == "failed"
    assert result.error is not None
    assert result.error.code == "budget"
    assert (await root.prompt("again")).text == "next"


# At the limit: fail.


@pytest.mark.spec("BG-07", "FM-10")
async def test_a_budget_that_fails_ends_the_input_and_keeps_the_queue(engine: Engine) -> None:
    gate = Gate()
    tool = Probe("t", gate=gate)
    models = StrictWire(priced(engine, [*looping(1, "t")[:1], say("queued", usage=used())]))
    root = await engine.root(tools=[tool], models=models)
    budget = Budget(tokens=1_100, on_limit="fail")
    accepted = await root.accept("go", budget=budget)
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    queued = await root.follow_up("later")
    gate.open()
    assert (await driving).outcome is DriveOutcome.IDLE
    assert await outcomes(root) == ["finished"], "what runs finishes and is kept"
    result = await root.result(accepted.input_id)
    assert result.state == "failed"
    assert result.error is not None
    assert result.error.code == "budget"
    for word in ("tokens", "1000 of 1100", f"input {accepted.input_id}"):
        assert word in result.error.message
    assert (await root.result(queued.input_id)).state == "queued"
    assert await root.flush(budget=Budget(turns=1)) == (queued.input_id,)
    await root.drive()
    assert (await root.result(queued.input_id)).text == "queued"
    assert (await record_of(engine, queued.input_id)).budget == Budget(turns=1)


@pytest.mark.spec("BG-05", "BG-07")
async def test_a_tool_starts_only_below_every_limit(engine: Engine) -> None:
    tool = Probe("t")
    root = await engine.root(priced(engine, looping(1)), tools=[tool])
    accepted = await root.accept("go", budget=Budget(turns=1, on_limit="fail"))
    await root.drive()
    assert tool.runs == []
    assert await outcomes(root) == ["notStarted"]
    assert (await root.result(accepted.input_id)).state == "failed"


# Reservations.


@pytest.mark.spec("BG-05", "BG-02")
@pytest.mark.parametrize(
    "budget", [Budget(cost="0.02"), Budget(tokens=2_100), Budget(turns=2)], ids=repr
)
async def test_of_three_that_race_for_two_units_two_start(engine: Engine, budget: Budget) -> None:
    gate = Gate()
    replies = [say("done", usage=used(), gates={0: gate}) for _ in range(4)]
    models = priced(engine, replies)
    racing = [await engine.root(models, budget=budget)]
    for _ in range(3):
        other = await engine.harness.conversation(await new_conversation(engine))
        assert other is not None
        racing.append(other)
    accepted = [await conversation.accept("x") for conversation in racing]
    driving = engine.begin(engine.harness.drive())
    await gate.reached.wait()
    while len(await questions(engine)) < 2:
        await engine.clock.sleep(0)
    assert len(models.requests) == 2
    gate.open()
    driven = await driving
    assert driven.outcome is DriveOutcome.SUSPENDED
    assert len(models.requests) == 2
    asked = await questions(engine)
    assert ["the session" in one.prompt for one in asked] == [True, True]
    waiting = [
        conversation
        for conversation, one in zip(racing, accepted, strict=True)
        if not (await conversation.result(one.input_id)).final
    ]
    for conversation, one in zip(waiting, asked, strict=True):
        alone = await conversation.drive()
        assert [(wait.kind, wait.task) for wait in alone.waiting_for] == [("decision", one.id)]
    limits = {name: getattr(budget, name) for name in FIELDS if getattr(budget, name)}
    (name,) = limits
    more = {name: "9" if name == "cost" else 99_999}
    await engine.harness.decide_approval(asked[0].id, "grant", details={"raise": more})
    assert not await questions(engine), "one decision is for all that ask about this budget"
    for conversation in waiting:
        assert (await conversation.drive()).outcome is DriveOutcome.IDLE
    assert len(models.requests) == 4


@pytest.mark.spec("BG-02", "BG-05")
async def test_a_session_capped_at_the_price_of_two_makes_no_third(engine: Engine) -> None:
    models = priced(engine, [say("ok", usage=used())] * 4)
    root = await engine.root(models, budget=Budget(cost="0.02", on_limit="fail"))
    states = [(await root.prompt("x")).state for _ in range(4)]
    assert states == ["answered", "answered", "failed", "failed"]
    assert len(models.requests) == 2


@pytest.mark.spec("AQ-04", "BG-06")
async def test_a_reached_budget_is_asked_about_before_the_call_is(engine: Engine) -> None:
    tool = Probe("t", approval="ask")
    root = await engine.root(priced(engine, looping(1)), tools=[tool])
    await root.accept("go", budget=Budget(turns=1))
    await root.drive()
    (asked,) = await questions(engine)
    assert asked.budget is not None
    await grant(engine, turns=9)
    await root.drive()
    (asked,) = await questions(engine)
    assert (asked.tool, asked.budget) == ("t", None)
    await engine.harness.decide_approval(asked.id, "grant")
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    assert len(tool.runs) == 1


@pytest.mark.spec("BG-05")
async def test_an_output_limit_is_lowered_to_what_fits_down_to_256(engine: Engine) -> None:
    models = priced(engine, [say(call("t"), usage=used(700)), say("end", usage=used(1))])
    root = await engine.root(models, tools=[Probe("t")])
    result = await root.prompt("x" * 40, budget=Budget(tokens=2_000, on_limit="fail"))
    assert result.text == "end"
    first, second = models.requests
    assert "max_tokens" not in decode_json(first.options)
    assert 256 <= decode_json(second.options)["max_tokens"] < 600


@pytest.mark.spec("BG-05")
@pytest.mark.parametrize(("tokens", "starts"), [(1_000 - 700, True), (255, False)])
async def test_less_than_256_tokens_of_output_is_the_limit(
    engine: Engine, tokens: int, *, starts: bool
) -> None:
    models = priced(engine, [say("end", usage=used(1))])
    root = await engine.root(models)
    await root.accept("hi", budget=Budget(tokens=tokens, on_limit="fail"))
    await root.drive()
    assert bool(models.requests) is starts


@pytest.mark.spec("BG-05", "BG-10")
async def test_a_kill_leaves_no_reservation_behind(engine: Engine) -> None:
    gate = Gate()
    models = priced(engine, [say("x", usage=used(), gates={0: gate})])
    root = await engine.root(models, budget=Budget(turns=2))
    await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    (task,) = await generations(root)
    assert generation_state(task).reserved
    await engine.kill()
    again = priced(engine, [say("x", usage=used()), say("y", usage=used())])
    root = await engine.root(again, budget=Budget(turns=2))
    engine.begin(root.drive())
    await engine.clock.until_asleep()
    engine.clock.advance(60_000)
    await root.wait_for_idle()
    assert (await root.prompt("more")).text == "y"
    totals = await engine.harness.usage_totals()
    assert (totals.turns, totals.attempts, totals.unknown_attempts) == (2, 3, 1)


# Unknown.


@pytest.mark.spec("BG-08", "BB-41", "BG-01")
@pytest.mark.parametrize(
    "usage",
    [None, used(cost=None), used(cost=Cost(amount="9", currency="EUR", prices="test"))],
    ids=["no report", "no cost", "another currency"],
)
async def test_unknown_is_no_zero_and_no_limit_unless_it_is_asked_to_stop(
    engine: Engine, usage: Usage | None
) -> None:
    script = [say(call("t"), usage=usage), say("end", usage=usage)]
    root = await engine.root(priced(engine, script * 2), tools=[Probe("t")])
    result = await root.prompt("go", budget=Budget(cost="0.05", on_limit="fail"))
    assert result.text == "end"
    accepted = await root.accept("go", budget=Budget(cost="0.05", on_limit="fail", unknown="stop"))
    await root.drive()
    result = await root.result(accepted.input_id)
    assert result.error is not None
    assert "unknown cost" in result.error.message
    assert len(engine.models.requests) == 3


# Time.


@pytest.mark.spec("BG-04")
async def test_time_counts_while_something_runs_and_once_for_parallel_work(
    engine: Engine,
) -> None:
    async def slow(_: object, __: object) -> None:
        await engine.clock.sleep(3_000)

    tools = [Probe("t", body=slow), Probe("u", body=slow)]
    script = [say(call("t"), call("u"), usage=used(), delays_ms={0: 2_000}), say("end")]
    root = await engine.root(priced(engine, script), tools=tools)
    driving = engine.begin(root.prompt("go"))
    await engine.clock.until_asleep()
    engine.clock.advance(2_000)
    await engine.clock.until_asleep(2)
    engine.clock.advance(3_000)
    await driving
    engine.clock.advance(50_000)
    assert (await engine.harness.usage_totals()).seconds == 5.0


@pytest.mark.spec("BG-04", "AQ-12")
async def test_waiting_for_a_person_costs_no_time(engine: Engine) -> None:
    root = await engine.root(priced(engine, looping(1)), tools=[Probe("t", approval="ask")])
    await root.accept("go", budget=Budget(seconds=1))
    await root.drive()
    engine.clock.advance(3_600_000)
    (asked,) = await questions(engine)
    await engine.harness.decide_approval(asked.id, "grant")
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    assert (await engine.harness.usage_totals()).seconds == 0


@pytest.mark.spec("BG-09")
async def test_time_ends_a_running_call_when_the_budget_fails(engine: Engine) -> None:
    async def slow(_: object, ctx: Any) -> None:
        ctx.out.write("half")
        await engine.clock.sleep(60_000)

    root = await engine.root(priced(engine, looping(1)), tools=[Probe("t", body=slow)])
    accepted = await root.accept("go", budget=Budget(seconds=5, on_limit="fail"))
    driving = engine.begin(root.drive())
    await engine.clock.until_asleep(2)
    engine.clock.advance(4_999)
    assert not driving.done()
    engine.clock.advance(1)
    await driving
    assert await outcomes(root) == ["finished"]
    (entry,) = [one for one in await root.entries() if one.kind == "tool_result"]
    assert entry.payload["message"]["isError"]
    text = entry.payload["message"]["content"][0]["text"]
    assert "the budget of input" in text
    assert "seconds" in text
    assert "half" in str(entry.payload)
    result = await root.result(accepted.input_id)
    assert result.error is not None
    assert result.error.code == "budget"
    assert (await engine.harness.usage_totals()).seconds == 5.0


@pytest.mark.spec("BG-09")
async def test_time_ends_a_stream_when_the_budget_fails_and_its_partial_stays(
    engine: Engine,
) -> None:
    script = [say("half", "whole", delays_ms={4: 60_000}, usage=used()), say("next")]
    root = await engine.root(models=StrictWire(priced(engine, script)))
    accepted = await root.accept("go", budget=Budget(seconds=2, on_limit="fail"))
    driving = engine.begin(root.drive())
    await engine.clock.until_asleep(2)
    engine.clock.advance(2_000)
    await driving
    result = await root.result(accepted.input_id)
    assert result.error is not None
    assert result.error.code == "budget"
    assert result.partial is not None
    assert "half" in result.partial.text
    assert (await root.prompt("again")).text == "next"


@pytest.mark.spec("BG-09", "BG-06")
async def test_time_that_suspends_cuts_nothing_and_counts_on(engine: Engine) -> None:
    async def slow(_: object, __: object) -> None:
        await engine.clock.sleep(60_000)

    root = await engine.root(priced(engine, looping(1)), tools=[Probe("t", body=slow)])
    await root.accept("go", budget=Budget(seconds=5))
    driving = engine.begin(root.drive())
    await engine.clock.until_asleep()
    for ms in (5_000, 55_000):
        engine.clock.advance(ms)
        for _ in range(20):
            await engine.clock.sleep(0)
    assert (await driving).outcome is DriveOutcome.SUSPENDED
    assert await outcomes(root) == ["finished"]
    (asked,) = await questions(engine)
    assert "seconds 60 of 5 spent" in asked.prompt
    await grant(engine, seconds=61)
    assert (await root.drive()).outcome is DriveOutcome.IDLE


# The same from stored facts.


async def _told(engine: Engine, kill_after: int | None = None) -> list[Spent]:
    """Play one story; answers what was known to be spent after each commit, by the ledger."""
    known: list[Spent] = []
    ledger = engine.harness._core.services.ledger
    root = await engine.harness.root()

    def note(_: object) -> None:
        sums = list(ledger._sums.values())
        known.append(sums[0] if sums else NOTHING_SPENT)
        if len(known) == kill_after:
            engine.storage.die()

    stop = engine.harness.on_commit(note)
    with suppress(Faulted, asyncio.CancelledError):
        await root.accept("go", budget=Budget(cost="9", tokens=99_999, turns=9, seconds=999))
        driving = engine.begin(root.drive())
        while not driving.done():
            await engine.clock.sleep(0)
            engine.clock.advance(engine.clock.next_due_ms() or 0)
        await driving
    stop()
    return known


def _story(engine: Engine) -> tuple[ScriptedModels, list[Probe]]:
    async def slow(_: object, __: object) -> None:
        await engine.clock.sleep(700)

    tools = [Probe("t", body=slow), Probe("u", body=slow, replay="safe")]
    script = [
        say(call("t"), call("u"), usage=used(), delays_ms={0: 300}),
        say(call("t"), usage=None),
        failing("overloaded", usage=used(10)),
        say("end", usage=used(7)),
    ]
    return priced(engine, script), tools


@pytest.mark.spec("BG-10", "BG-04")
async def test_spent_is_equal_after_a_kill_at_every_commit(memory_engine: Engine) -> None:
    engine = memory_engine
    models, tools = _story(engine)
    await engine.open(models, session="whole", tools=tools)
    whole = await _told(engine)
    assert len({repr(one) for one in whole}) > 6, "the story spends at many commits"
    input_id = next(iter(await _input_ids(engine)))
    await engine.kill()
    for kill_after in range(1, len(whole) + 1):
        models, tools = _story(engine)
        name = f"killed-{kill_after}"
        await engine.open(models, session=name, tools=tools)
        before = (await _told(engine, kill_after))[kill_after - 1]
        await engine.kill()
        await engine.open([], session=name, tools=tools)
        after = (await read_chain(engine.storage.inner, input_id)).spent
        assert _plain(after) == _plain(before), kill_after
        await engine.kill()


async def _input_ids(engine: Engine) -> list[Seq]:
    page = await engine.storage.inner.scan_values(
        Address(kind="value", namespace="perdure.input"), after=None, limit=10
    )
    return [Seq(int(one.key)) for one in page]


def _plain(spent: Spent) -> dict[str, object]:
    return {name: getattr(spent, name) for name in spent.__struct_fields__}


@pytest.mark.spec("BG-10")
async def test_a_request_reads_no_more_of_a_longer_session(engine: Engine) -> None:
    reads: list[int] = []
    root = await engine.root(
        lambda _: say("ok", usage=used()), budget=Budget(turns=1_000), tools=[Probe("t")]
    )
    for _ in range(30):
        engine.storage.reads.clear()
        await root.prompt("hi", budget=Budget(turns=5))
        reads.append(sum(name in ("elements", "scan_tasks") for name in engine.storage.reads))
    assert reads[5] == reads[-1]


# Trees.


@pytest.mark.spec("BG-03", "BG-11", "US-10")
async def test_what_a_call_owns_counts_to_the_input_and_to_the_totals(engine: Engine) -> None:
    gate = Gate()
    script = [say(call("t"), usage=used()), say("child", usage=used()), say("end", usage=used())]
    models = priced(engine, script)
    root = await engine.root(models, tools=[Probe("t", gate=gate)])
    accepted = await root.accept("go", budget=Budget(turns=2))
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    (owner,) = [task for task in await root.tasks() if task.kind == "tool"]
    made: list[Seq] = []

    async def own(tx: Command) -> None:
        made.append(tx.insert_conversation(owner=owner.id))
        tx.patch(await tx.task(owner.id), owns=made[0])

    await engine.line.submit(own)
    child = await engine.harness.conversation(made[0])
    assert child is not None
    await child.accept("work", budget=Budget(turns=99))
    while len(models.requests) < 2:
        await engine.clock.sleep(0)
    await child.wait_for_idle()
    gate.open()
    driven = await driving
    assert driven.outcome is DriveOutcome.SUSPENDED, "the child's turn was one of the two"
    assert len(models.requests) == 2
    (asked,) = await questions(engine)
    assert asked.budget is not None
    assert (asked.budget["input"], asked.budget["spent"]) == (accepted.input_id, "2")
    totals = await engine.harness.usage_totals(root.id)
    theirs = await engine.harness.usage_totals(child.id)
    whole = await engine.harness.usage_totals()
    assert (totals.turns, theirs.turns, totals.with_children.turns) == (1, 1, 2)
    assert totals.own + theirs.own == totals.with_children == whole.with_children
    assert totals.with_children.costs == {"USD": Decimal("0.02")}


@pytest.mark.spec("BG-02")
async def test_a_session_budget_counts_its_whole_life_and_is_not_stored(engine: Engine) -> None:
    script = [say("ok", usage=used())]
    await (await engine.root(priced(engine, script))).prompt("one")
    await engine.close()
    root = await engine.root(priced(engine, script), budget=Budget(cost="0.01"))
    await root.accept("two", budget=Budget(cost="99"))
    assert (await root.drive()).outcome is DriveOutcome.SUSPENDED
    (asked,) = await questions(engine)
    assert "the session" in asked.prompt
    await grant(engine, cost="0.02")
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    await engine.close()
    root = await engine.root(priced(engine, script))
    assert (await root.prompt("three")).text == "ok"


@pytest.mark.spec("BG-12")
async def test_raising_from_another_process_repeats_nothing(engine: Engine) -> None:
    tool = Probe("t")
    root = await engine.root(priced(engine, looping(1)), tools=[tool])
    accepted = await root.accept("go", budget=Budget(cost="0.01"))
    await root.drive()
    assert tool.runs == []
    await engine.kill()
    root = await engine.root(priced(engine, [say("end", usage=used())]), tools=[tool])
    (asked,) = await questions(engine)
    await raise_budgets(engine.harness, {"cost": "5"}, by="test")
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    assert len(tool.runs) == 1
    assert (await root.result(accepted.input_id)).text == "end"
    assert len(await questions(engine)) == 0
    (ended,) = await list_approvals(engine.storage.inner, waiting_only=False)
    assert (ended.id, ended.status) == (asked.id, "granted")


@pytest.mark.spec("BG-11", "BG-12")
async def test_spent_stands_beside_each_limit_from_storage_alone(engine: Engine) -> None:
    root = await engine.root(priced(engine, looping(3)), tools=[Probe("t")])
    accepted = await root.accept("go", budget=Budget(cost="0.02", turns=9))
    await root.drive()
    (spent,) = await open_budgets(engine.storage.inner)
    assert spent.input_id == accepted.input_id
    assert [(one.field, one.spent, one.limit) for one in spent.limits] == [
        ("cost", "0.02", "0.02"),
        ("turns", "2", "9"),
    ]


@pytest.mark.spec("BG-11")
async def test_totals_with_children_are_the_sum_of_all_descendants(engine: Engine) -> None:
    models = ScriptedModels(lambda _: say("ok", usage=used()), clock=engine.clock, can=PRICED)
    root = await engine.root(models, kinds=[Chores()])
    tree, owner = [root], root.id
    for _ in range(3):
        (task_id,) = await plan(engine, "owner", conv_id=owner, status="waiting")

        async def own(tx: Command, task_id: Seq = task_id) -> None:
            tx.patch(await tx.task(task_id), owns=tx.insert_conversation(owner=task_id))

        await engine.line.submit(own)
        task = await engine.line.task(task_id)
        assert task is not None
        child = await engine.harness.conversation(Seq(int(task.owns or 0)))
        assert child is not None
        tree.append(child)
        owner = child.id
    for conversation in tree:
        assert (await conversation.prompt("x")).final
    total = NO_USAGE
    for conversation in reversed(tree):
        totals = await engine.harness.usage_totals(conversation.id)
        total += totals.own
        assert totals.with_children == total
    assert total.turns == 4


@pytest.mark.spec("BG-06", "AP-08")
async def test_an_abort_cancels_the_question_and_what_waits_for_it(engine: Engine) -> None:
    tool = Probe("t")
    models = StrictWire(priced(engine, [*looping(1, "t", "t")[:1], say("next", usage=used())]))
    root = await engine.root(tools=[tool], models=models)
    accepted = await root.accept("go", budget=Budget(turns=1))
    await root.drive()
    await root.abort()
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    (ended,) = await list_approvals(engine.storage.inner, waiting_only=False)
    assert ended.status == "cancelled"
    assert (await root.result(accepted.input_id)).state == "aborted"
    assert await outcomes(root) == ["notStarted", "notStarted"]
    assert tool.runs == []
    assert (await root.prompt("again")).text == "next"


@pytest.mark.spec("BG-06", "BG-07")
@pytest.mark.parametrize("killed", [False, True])
async def test_a_denied_session_budget_ends_the_chain_that_asked(
    engine: Engine, *, killed: bool
) -> None:
    tools = [Probe("t")]
    budget = Budget(turns=1)
    root = await engine.root(priced(engine, looping(3)), tools=tools, budget=budget)
    accepted = await root.accept("go")
    await root.drive()
    (asked,) = await questions(engine)
    await engine.harness.decide_approval(asked.id, "deny")
    if killed:
        await engine.kill()
        root = await engine.root(priced(engine, looping(3)), tools=tools, budget=budget)
    driven = await root.drive()
    assert tools[0].runs == []
    assert await outcomes(root) == ["notStarted"]
    if killed:  # what a person refused is known of what waited; the next request asks anew
        assert driven.outcome is DriveOutcome.SUSPENDED
        (asked,) = await questions(engine)
        await engine.harness.decide_approval(asked.id, "deny")
        driven = await root.drive()
    assert driven.outcome is DriveOutcome.IDLE
    result = await root.result(accepted.input_id)
    assert result.error is not None
    assert result.error.code == "budget"
