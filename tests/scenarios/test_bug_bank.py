"""Failures that users of other systems met, as cases: transcripts, effects, retries, replies.

Each ends with one more message that the strict wire accepts, on every backend.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import UNSET

import perdure
from perdure.drive.outcomes import DriveOutcome
from perdure.errors import Rejected, ToolFailed
from perdure.ports import ToolContext
from perdure.providers.script import call, fail, say
from perdure.records.codec import encode
from perdure.records.messages import Usage
from perdure.records.settings import RetryPolicy
from perdure.testing.crash_rig.audit import Journal
from tests.engine import Engine, Gate, Probe, task_moves
from tests.scenarios.bank import LAST, USAGE, Case, results_in
from tests.unit.kinds.turns import failing


@pytest.fixture
def case(engine: Engine) -> Case:
    return Case(engine)


# BB-01, BB-02: what a run that was cut off leaves.

IN_TURN = {"tool_order": "sequential"}
THREE = say(call("a"), call("b"), call("c"))


async def cut_in_the_second_call(case: Case) -> tuple[Probe, Probe, Probe]:
    """Call a, b and c in turn; a has returned, b is in the middle, c is not started."""
    tools = (Probe("a"), Probe("b", gate=Gate()), Probe("c"))
    root = await case.open([THREE], tools, settings=IN_TURN)
    await root.accept("go")
    case.engine.begin(root.drive())
    gate = tools[1].gate
    assert gate is not None
    await gate.reached.wait()
    return tools


@pytest.mark.spec("BB-01")
async def test_killed_while_a_tool_runs(case: Case) -> None:
    await cut_in_the_second_call(case)
    await case.engine.kill()
    again = (Probe("a"), Probe("b"), Probe("c"))
    root = await case.open([say("done"), say("went on")], again)
    head = case.engine.storage.last_seq
    queued = await root.accept("go on")
    assert [len(tool.runs) for tool in again] == [0, 0, 0]
    assert case.engine.storage.last_seq > head
    await root.drive()
    assert [len(tool.runs) for tool in again] == [0, 0, 1]
    results = await case.results()
    assert [outcome for outcome, _ in results] == ["finished", "interrupted", "finished"]
    assert results[0][1] == "a ran"
    assert "may have had effects" in results[1][1]
    assert (await root.result(queued.input_id)).text == "went on"
    await case.goes_on()


@pytest.mark.spec("BB-01")
async def test_aborted_while_a_tool_runs(case: Case) -> None:
    tools = await cut_in_the_second_call(case)
    await case.root.abort()
    assert (await case.root.drive()).outcome is DriveOutcome.IDLE
    results = await case.results()
    assert [outcome for outcome, _ in results] == ["finished", "interrupted", "notStarted"]
    assert results[0][1] == "a ran"
    assert "not executed" in results[2][1]
    assert [len(tool.runs) for tool in tools] == [1, 1, 0]
    await case.goes_on()


@pytest.mark.spec("BB-02", "FM-07")
async def test_four_truths_are_told_apart(case: Case) -> None:
    gate = Gate()

    async def half(args: Mapping[str, Any], ctx: ToolContext) -> None:
        await ctx.out.progress({"done": "step 1"})
        await gate()

    tools = (
        Probe("finished"),
        Probe("denied", approval="deny"),
        Probe("interrupted", body=half),
        Probe("never", gate=Gate()),
    )
    order = ("finished", "denied", "interrupted", "never")
    root = await case.open([say(*map(call, order))], tools, settings=IN_TURN)
    await root.accept("go")
    case.engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    await root.drive()
    entries = [entry for entry in await case.entries() if entry.kind == "tool_result"]
    entries.sort(key=lambda entry: str(entry.call_index))
    assert [entry.meta.outcome for entry in entries] == [
        "finished",
        "denied",
        "interrupted",
        "notStarted",
    ]
    texts = [text for _, text in await case.results()]
    assert len(set(texts)) == 4
    assert entries[2].payload["message"]["checkpoint"] == {"done": "step 1"}
    await case.goes_on()


@pytest.mark.spec("BB-02", "FM-07")
@pytest.mark.parametrize("why", ["abort", "gone", "denied"])
async def test_a_safe_call_that_ran_before_a_kill_is_never_called_not_started(
    case: Case, why: str
) -> None:
    ran = Probe("act", replay="safe", gate=Gate())
    root = await case.open([say(call("act"))], [ran])
    await root.accept("go")
    case.engine.begin(root.drive())
    assert ran.gate is not None
    await ran.gate.reached.wait()
    await case.engine.kill()

    # Its recovery makes it ready to run again; before it does, something stops it.
    await case.open([], [Probe("act", replay="safe")])
    held = case.engine.storage.hold(task_moves("planned"), when="after")
    case.engine.begin(case.root.drive())
    await held.reached.wait()
    if why == "abort":
        aborting = case.engine.begin(case.root.abort())
        held.open()
        await aborting
    else:
        await case.engine.kill()
        stopping = [] if why == "gone" else [Probe("act", replay="safe", approval="deny")]
        await case.open([say("done")], stopping)
    await case.root.drive()
    assert [outcome for outcome, _ in await case.results()] == ["interrupted"]
    await case.goes_on()


# BB-04, BB-35: retries.


@pytest.mark.spec("BB-04")
async def test_a_network_fault_repeats_one_request_and_nothing_else(case: Case) -> None:
    count = Probe("count")
    reset = fail("network", "half")
    script = [
        say(call("count"), usage=USAGE),
        reset,
        reset,
        say("done", usage=USAGE),
    ]
    root = await case.open(script, [count], settings={"retry": RetryPolicy()})
    result = await case.patient(root.prompt("do it"))
    assert result.text == "done"
    assert len(count.runs) == 1
    kinds = [entry.kind for entry in await case.entries()]
    assert kinds.count("user") == 1
    assert kinds.count("assistant") == 2
    second = [request.messages[:] for request in case.wire.accepted[1:]]
    assert [encode(list(one)) for one in second] == [encode(list(second[0]))] * 3
    journal = Journal().fold(await case.engine.commits())
    assert len(journal.usage) == len(set(journal.usage)) == 2
    await case.goes_on()


@pytest.mark.spec("BB-35")
async def test_a_rate_limit_is_waited_for_and_the_wait_outlives_a_restart(case: Case) -> None:
    limited = fail("rate_limited", status=429, retry_after_ms=7_000)
    policy = RetryPolicy(max_attempts=3, base_delay_ms=1_000)
    root = await case.open([limited], settings={"retry": policy})
    await root.accept("go")
    result = await root.drive(wait_timers=False)
    assert result.outcome is DriveOutcome.SUSPENDED
    (wait,) = result.waiting_for
    due = case.engine.clock.now_ms() + 7_000
    assert wait.kind == "timer"
    assert wait.until == result.next_at
    assert result.next_at is not None
    assert result.next_at >= due

    await case.engine.kill()
    root = await case.open([fail("overloaded"), fail("server")], settings={"retry": policy})
    again = await root.drive(wait_timers=False)
    assert again.next_at == result.next_at
    assert not case.wire.accepted

    # Two attempts are left of three, whatever each of them meets; then it fails, once.
    assert (await case.patient(root.drive())).outcome is DriveOutcome.IDLE
    assert len(case.wire.accepted) == 2
    assert case.engine.clock.now_ms() >= due + 2 * policy.base_delay_ms
    await case.goes_on()


@pytest.mark.spec("BB-35")
async def test_a_wait_is_aborted_at_once(case: Case) -> None:
    root = await case.open([fail("rate_limited", retry_after_ms=50_000)])
    accepted = await root.accept("go")
    driving = case.engine.begin(root.drive())
    await case.engine.clock.until_asleep()
    await root.abort()
    assert (await driving).outcome is DriveOutcome.IDLE
    assert (await root.result(accepted.input_id)).state == "aborted"
    await case.goes_on()


# BB-06: the answer to a message was lost.


@pytest.mark.spec("BB-06")
async def test_a_message_sent_again_is_one_message(case: Case) -> None:
    root = await case.open([say("once")])
    first = await root.accept("hello", request_id="r-17")
    await case.engine.kill()
    root = await case.open([say("once")])
    together = await asyncio.gather(
        *(root.accept("hello", request_id="r-17") for _ in range(5)),
        *(root.accept("other", request_id="r-18") for _ in range(5)),
    )
    assert {one.input_id for one in together[:5]} == {first.input_id}
    assert all(one.duplicate for one in together[:5])
    assert len({one.input_id for one in together[5:]}) == 1
    assert [one.duplicate for one in together[5:]].count(False) == 1
    await root.drive()
    again = await root.accept("hello", request_id="r-17")
    assert again.input_id == first.input_id
    assert (await root.result(first.input_id)).text == "once"
    await case.goes_on()


@pytest.mark.spec("BB-06")
async def test_a_used_request_id_with_another_message_changes_nothing(case: Case) -> None:
    root = await case.open([say("once")])
    made: list[Any] = []
    await case.engine.harness.command(lambda tx: made.append(tx.insert_conversation()))
    other = await case.engine.harness.conversation(made[0])
    assert other is not None
    await root.accept("hello", request_id="r-17")
    for _ in range(2):
        head = case.engine.storage.last_seq
        for conv, text, verb in (
            (root, "other words", "accept"),
            (other, "hello", "accept"),
            (root, "hello", "follow_up"),
        ):
            with pytest.raises(Rejected) as conflict:
                await getattr(conv, verb)(text, request_id="r-17")
            assert conflict.value.code == "request_conflict"
        assert case.engine.storage.last_seq == head
        await root.drive()
    await case.goes_on()


# BB-41: what a cancelled, failed or repeated request had cost.


@pytest.mark.spec("BB-41")
async def test_what_every_request_reported_is_counted_once_and_for_ever(case: Case) -> None:
    gate = Gate()
    early = Usage(input=100)
    script = [
        say(call("a"), usage=USAGE),
        say(call("a"), usage=USAGE),
        failing("server", "half", usage=USAGE, retry_after_ms=5),
        say("three requests and a retry", usage=USAGE),
        failing("auth", "half", usage=USAGE),
        say("cut", "off", usage_early=early, usage=USAGE, gates={3: gate}),
        say("nobody says what this cost"),
    ]
    root = await case.open(script, [Probe("a")])
    assert (await case.patient(root.prompt("one"))).state == "answered"
    assert (await root.prompt("two")).state == "failed"
    await root.accept("three")
    driving = case.engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    await driving
    await root.prompt("four")
    totals = await case.engine.harness.usage_totals()
    assert (totals.reports, totals.unknown_attempts) == (6, 1)
    assert (totals.input.tokens, totals.input.unknown_reports) == (5 * 10 + 100, 0)
    assert (totals.output.tokens, totals.output.unknown_reports) == (5 * 2, 1)
    assert await case.engine.harness.usage_totals() == totals, "a second look adds nothing"
    await case.engine.kill()
    await case.open([])
    assert await case.engine.harness.usage_totals() == totals
    await case.goes_on()


# BB-30, BB-31: calls that cannot run.

CUT = '{"path":"a.txt","text":"line 1\nline'


@pytest.mark.spec("BB-30")
@pytest.mark.parametrize("stop", ["length", "toolUse"])
async def test_a_call_cut_off_in_the_middle_is_never_executed(case: Case, stop: Any) -> None:
    write, other = Probe("write"), Probe("other")
    cut = say(call("other"), call("write", args_text=CUT), stop=stop)
    root = await case.open([cut, say("smaller, then")], [write, other])
    assert (await root.prompt("go")).text == "smaller, then"
    assert not write.runs
    results = await case.results()
    assert results[1][0] == "notStarted"
    assert "not executed" in results[1][1]
    # A turn that ended abnormally runs none of its calls, the whole ones neither.
    assert len(other.runs) == (0 if stop == "length" else 1)
    stored = next(entry for entry in await case.entries() if entry.kind == "assistant")
    assert stored.payload["message"]["content"][1]["argsText"] == CUT
    await case.goes_on()


@pytest.mark.spec("BB-30")
async def test_a_call_cut_off_by_a_lost_connection_is_never_executed(case: Case) -> None:
    write = Probe("write")
    lost = fail("network", call("write", args_text=CUT), at=2)
    policy = RetryPolicy(max_attempts=2, base_delay_ms=10)
    root = await case.open([lost, lost], [write], settings={"retry": policy})
    result = await case.patient(root.prompt("go"))
    assert result.state == "failed"
    assert not write.runs
    assert all(outcome == "notStarted" for outcome, _ in await case.results())
    await case.goes_on()


BAD_ARGUMENTS = {
    "a trailing comma": '{"a":1,}',
    "a list": "[1,2]",
    "null": "null",
    "a text": '"text"',
    "two objects": '{"a":1}{"a":2}',
    "a key twice": '{"a":1,"a":2}',
    "NaN": '{"a":NaN}',
    "deep nesting": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "broken schema": '{"a":"much"}',
    "unknown field is harmless, missing one is not": '{"b":1}',
}


@pytest.mark.spec("BB-31")
@pytest.mark.parametrize("text", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
async def test_bad_arguments_cost_their_own_call_only(case: Case, text: str) -> None:
    amounts: list[int] = []

    @perdure.tool
    def pay(a: int) -> str:
        """Pay."""
        amounts.append(a)
        return f"paid {a}"

    calls = (call("pay", args_text=text), call("pay", {"a": 5}), call("unknown", {"a": 1}))
    root = await case.open([say(*calls), say("done")], [pay])
    assert (await root.prompt("go")).text == "done"
    assert amounts == [5]
    bad, good, unknown = await case.results()
    assert bad[0] == unknown[0] == "notStarted"
    assert good == ("finished", "paid 5")
    assert len(bad[1]) <= 2_048
    assert '"a"' in bad[1]
    assert "pay" in bad[1]
    assert "not found" in unknown[1]
    assert not case.engine.errors
    await case.goes_on()


# BB-32: results in call order.


@pytest.mark.spec("BB-32")
async def test_results_go_out_in_call_order_whatever_ended_first(case: Case) -> None:
    slow, fast, middle = (Probe(name, gate=Gate()) for name in ("slow", "fast", "middle"))
    probes = (slow, fast, middle)
    root = await case.open([say(*(call(one.name) for one in probes)), say("done")], probes)
    prompting = case.engine.begin(root.prompt("go"))
    for probe in (fast, middle, slow):
        assert probe.gate is not None
        await probe.gate.reached.wait()
        settled = case.engine.storage.hold(task_moves("done"), when="after")
        probe.gate.open()
        await settled.reached.wait()
        settled.open()
    assert (await prompting).text == "done"
    entries = [entry for entry in await case.entries() if entry.kind == "tool_result"]
    assert [entry.call_index for entry in entries] == [1, 2, 0]
    first = case.wire.accepted[1]
    assert results_in(first) == ["slow ran", "fast ran", "middle ran"]

    await case.engine.kill()
    await case.open([])
    later = await case.goes_on()
    prefix = list(later.messages)[: len(first.messages)]
    assert encode(prefix) == encode(list(first.messages))


@pytest.mark.spec("BB-32")
async def test_call_order_survives_a_restart_between_two_results(case: Case) -> None:
    slow, fast = Probe("slow", gate=Gate()), Probe("fast")
    root = await case.open([say(call("slow"), call("fast"))], [slow, fast])
    await root.accept("go")
    case.engine.begin(root.drive())
    await case.engine.storage.until(task_moves("done"))
    assert slow.gate is not None
    await slow.gate.reached.wait()
    await case.engine.storage.until(
        lambda commit: any(getattr(write, "kind", "") == "tool_result" for write in commit.writes)
    )
    await case.engine.kill()
    root = await case.open([say("done")], [Probe("slow"), Probe("fast")])
    await root.drive()
    texts = results_in(case.wire.accepted[0])
    assert texts[0].startswith("interrupted")
    assert texts[1] == "fast ran"
    await case.goes_on()


# A tool that raises is an answer, not an end.


@pytest.mark.spec("FT-07")
@pytest.mark.parametrize("error", [ToolFailed("no"), ValueError("odd"), KeyError("x")], ids=repr)
async def test_a_tool_that_raises_answers_its_call(case: Case, error: Exception) -> None:
    async def broken(args: Mapping[str, Any], ctx: ToolContext) -> None:
        raise error

    root = await case.open([say(call("act")), say("sorry")], [Probe("act", body=broken)])
    assert (await root.prompt("go")).text == "sorry"
    ((outcome, text),) = await case.results()
    assert outcome == "finished"
    assert str(error) in text
    await case.goes_on()


@pytest.mark.spec("FT-07")
async def test_a_provider_that_raises_anything_fails_its_input_only(case: Case) -> None:
    odd = say("odd", raises={0: RuntimeError("a vendor's bug")})
    root = await case.open([odd])
    result = await root.prompt("go")
    assert result.state == "failed"
    assert result.error is not None
    assert "a vendor's bug" in result.error.message
    await case.goes_on()


@pytest.mark.spec("FT-07")
async def test_an_unknown_model_fails_its_input_only(case: Case) -> None:
    root = await case.open([fail("model_not_found", status=404), fail("auth", status=401)])
    for code in ("model_not_found", "auth"):
        result = await root.prompt("go")
        assert result.error is not None
        assert result.error.code == code
    assert len(case.wire.accepted) == 2
    request = await case.goes_on()
    assert [type(message).__name__ for message in request.messages] == ["UserMessage"] * 3
    assert request.messages[2].content[0] != UNSET
    assert LAST in str(request.messages[2].content)
