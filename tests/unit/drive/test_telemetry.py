"""Telemetry: which spans there are, what they nest in, and that none says what was said (TM)."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from perdure.drive.claims import Claim
from perdure.kinds.hooks import Block, Hooks
from perdure.kinds.streaming import RequestSpan
from perdure.ports import ToolContext
from perdure.providers.script import Deferred, call, fail, say, think
from perdure.records.entries import ModelId
from perdure.records.messages import Cost, Usage
from tests.engine import Engine, Gate, Probe, task_moves
from tests.unit.drive.listening import KeptSpan, Listening

MARKED = "mArKeD-content"
USED = Usage(
    input=7,
    output=3,
    cache_read=2,
    cache_write=None,
    reasoning=None,
    cost=Cost(amount="0.25", currency="USD", prices="2026-01-01"),
)


async def marked_tool(args: Mapping[str, Any], ctx: ToolContext) -> None:
    """Put the marker everywhere a tool can."""
    ctx.out.write(f"{MARKED} result")
    ctx.out.details({"secret": MARKED})
    await ctx.out.progress({"at": MARKED})


async def failing_tool(args: Mapping[str, Any], ctx: ToolContext) -> None:
    raise RuntimeError(MARKED)


async def one_turn(engine: Engine, listening: Listening) -> None:
    replies = [
        say(
            think(MARKED), MARKED, call("t", {"key": MARKED}), call("bad", {"k": MARKED}),
            usage=USED,
        ),
        fail("overloaded", message=MARKED, status=529),
        say(f"{MARKED} done", usage=USED),
    ]  # fmt: skip
    root = await engine.root(
        replies,
        tools=[Probe("t", body=marked_tool), Probe("bad", body=failing_tool)],
        telemetry=listening,
        system_prompt=MARKED,
    )
    await root.accept(f"{MARKED} input", request_id=MARKED)
    await root.steer(MARKED)
    driving = engine.begin(root.drive())
    await engine.storage.until(task_moves("retry_wait"))
    engine.clock.advance(120_000)
    await driving


@pytest.mark.spec("TM-01", "IV-02")
async def test_every_span_stands_under_what_caused_it(engine: Engine) -> None:
    listening = Listening()
    await one_turn(engine, listening)
    parents = {(span.name, span.parent.name if span.parent else None) for span in listening.spans}
    assert {
        ("harness.open", None),
        ("line.command", "harness.open"),  # the root's first commit
        ("harness.accept", None),
        ("line.command", "harness.accept"),
        ("harness.drive", None),
        ("task.effect", "harness.drive"),
        ("line.command", "task.effect"),
        ("task.settle", "line.command"),
        ("ai.request", "task.effect"),
        ("tool.execute", "task.effect"),
    } <= parents
    assert {name for name, parent in parents if parent == "harness.drive"} == {"task.effect"}
    frames = [span for span in listening.named("line.command") if not span.facts["main"]]
    assert {span.parent.name for span in frames if span.parent} == {"tool.execute"}
    assert all(span.ended_by is not None for span in listening.spans)


@pytest.mark.spec("TM-01")
async def test_each_pass_of_the_scheduler_is_one_span(engine: Engine) -> None:
    listening = Listening()
    root = await engine.root([say("x")], telemetry=listening)
    await root.accept("hi")
    await root.drive()
    launched, answered = ([s.facts[k] for s in listening.named("harness.drive")] for k in (
        "launched", "answered"))  # fmt: skip
    assert sum(map(int, launched)) == 1
    assert sum(map(int, answered)) == 1
    assert (launched[0], answered[-1]) == (1, 1)
    assert len(launched) == len(answered) >= 2


@pytest.mark.spec("TM-01", "TM-05")
async def test_recovery_and_abort_have_spans_of_their_own(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("x", gates={0: gate})])
    await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    await engine.kill()
    listening, again = Listening(), Gate()
    root = await engine.root([say("y", gates={0: again})], telemetry=listening)
    driving = engine.begin(root.drive())
    await engine.storage.until(task_moves("retry_wait"))
    engine.clock.advance(120_000)
    await again.reached.wait()
    await root.abort()
    await driving
    (recover,) = listening.named("task.recover")
    (generation,) = [one for one in await root.tasks() if one.kind == "generation"]
    assert recover.facts == {
        "kind": "generation", "task": generation.id, "conv": root.id, "attempt": 1,
        "status_from": "streaming", "status_to": "retry_wait",
    }  # fmt: skip
    (effect,) = listening.named("task.effect")
    assert (effect.facts["status_from"], effect.facts["status_to"]) == ("retry_wait", "aborted")
    assert effect.facts["attempt"] == 2
    (settled,) = listening.named("task.settle")
    assert settled.facts["status_to"] == "aborted"


@pytest.mark.spec("TM-05", "TM-06")
async def test_spans_carry_the_facts_they_are_for(memory_engine: Engine) -> None:
    listening = Listening()
    await one_turn(memory_engine, listening)
    first, failed, last = listening.named("ai.request")
    assert first.facts == {
        "provider": "scripted", "model": "test", "attempt": 1, "stop": "toolUse",
        "task": first.facts["task"], "first_frame_ms": 0, "duration_ms": 0,
        "input": 7, "output": 3, "cache_read": 2, "cost": "0.25", "currency": "USD",
    }  # fmt: skip
    assert failed.facts["error"] == "overloaded"
    assert (last.facts["attempt"], last.facts["stop"]) == (2, "stop")
    done, bad = sorted(listening.named("tool.execute"), key=lambda one: one.facts["call_index"])
    assert done.facts == {
        "name": "t", "call_index": 0, "bytes": len(f"{MARKED} result"), "is_error": False,
        "outcome": "finished",
    }  # fmt: skip
    assert (bad.facts["name"], bad.facts["call_index"], bad.facts["is_error"]) == ("bad", 1, True)
    commits = await memory_engine.commits()
    commands = [one.facts for one in listening.named("line.command") if one.facts["main"]]
    assert [(c.first_seq, c.last_seq, len(c.writes)) for c in commits] == [
        (one["first_seq"], one["last_seq"], one["records"]) for one in commands if one["records"]
    ]
    assert all("duration_ms" in one for one in commands)
    settled = [one.facts for one in listening.named("task.settle")]
    assert [(one["kind"], one["status_from"], one["status_to"]) for one in settled] == [
        ("generation", "streaming", "done"), ("tool", "running", "done"),
        ("tool", "running", "done"), ("post_tools", "pending", "done"),
        ("generation", "streaming", "done"),
    ]  # fmt: skip
    assert [one["successors"] for one in settled] == [3, 0, 0, 1, 0]


@pytest.mark.spec("TM-05")
async def test_a_deferred_answer_is_a_request_for_each_poll(memory_engine: Engine) -> None:
    listening = Listening()
    later = Deferred(poll_after_ms=2_000)
    root = await memory_engine.root([say(MARKED, deferred=later)], telemetry=listening)
    await root.accept("hi")
    await root.drive(wait_timers=False)
    memory_engine.clock.advance(3_600_000)
    await root.drive(poll_deferred=True)
    asked, polled = listening.named("ai.request")
    assert (asked.facts["stop"], polled.facts["poll"], polled.facts["stop"]) == (
        "deferred", 1, "stop",
    )  # fmt: skip
    assert not says_the_marker(listening)


def says_the_marker(listening: Listening) -> list[KeptSpan]:
    return [span for span in listening.spans if MARKED.lower() in repr(span).lower()]


@pytest.mark.spec("TM-02", "SX-04")
async def test_no_fact_of_any_span_says_what_was_said(engine: Engine) -> None:
    listening = Listening()
    await one_turn(engine, listening)
    assert len(listening.spans) > 30
    assert not says_the_marker(listening)
    longest = max(
        len(fact) for span in listening.spans for fact in span.facts.values()
        if isinstance(fact, str)
    )  # fmt: skip
    assert longest <= 40, "ids, names and statuses are short"


@pytest.mark.spec("TM-02")
async def test_nothing_asks_for_a_span_while_nobody_listens(engine: Engine) -> None:
    deaf = Listening()
    deaf.is_on = False
    await one_turn(engine, deaf)
    assert deaf.spans == []


@pytest.mark.spec("TM-03")
async def test_work_whose_signal_fired_before_it_began_opens_no_span(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = Listening()
    launch = Claim.launch

    def launched_and_fired(claim: Claim, *args: Any) -> None:
        launch(claim, *args)
        claim.fire("close")

    monkeypatch.setattr(Claim, "launch", launched_and_fired)
    root = await engine.root([say("x")], telemetry=listening)
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await engine.close()
    assert listening.named("harness.drive")
    await driving
    names = {span.name for span in listening.spans}
    assert names <= {"harness.open", "harness.accept", "harness.drive", "line.command"}


@pytest.mark.spec("TM-03")
async def test_an_outside_call_after_the_signal_opens_no_span(memory_engine: Engine) -> None:
    listening = Listening()
    asked: list[bool] = []

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            context = ctx.out._ctx  # type: ignore[attr-defined]
            before = len(listening.spans)
            with RequestSpan(context, ModelId(provider="p", model_id="m"), attempt=1):
                asked.append(len(listening.spans) == before)

    root = await memory_engine.root(
        [say(call("t"))], tools=[Probe("t", body=body)], telemetry=listening
    )
    await root.accept("hi")
    driving = memory_engine.begin(root.drive())
    await memory_engine.storage.until(task_moves("running"))
    await asyncio.sleep(0)
    await root.abort()
    await driving
    assert asked == [True]


@pytest.mark.spec("TM-04", "ST-33")
async def test_cancelling_a_caller_ends_its_observation_and_nothing_else(engine: Engine) -> None:
    listening = Listening()
    root = await engine.root([say("x")], telemetry=listening)
    held = engine.storage.hold(lambda commit: True)
    accepting = engine.begin(root.accept("hi"))
    await held.reached.wait()
    accepting.cancel()
    await asyncio.wait({accepting})
    (accept,) = listening.named("harness.accept")
    assert accept.ended_by == "CancelledError"
    (command,) = [one for one in listening.named("line.command") if one.parent is accept]
    assert command.ended_by is None, "the command goes on under its own span"
    held.open()
    await engine.line.drained()
    await root.drive()
    assert command.ended_by == "end"
    assert command.facts["records"]
    assert [entry.kind for entry in await root.entries()] == ["user", "assistant"]


@pytest.mark.spec("TM-04")
async def test_what_a_drive_starts_stands_under_that_drives_caller(engine: Engine) -> None:
    """One scheduler serves every drive; a caller that left is nobody's parent."""
    listening = Listening()
    gate = Gate()
    root = await engine.root([say("x", gates={0: gate}), say("y")], telemetry=listening)
    await root.accept("hi")

    async def observed(name: str) -> None:
        with listening.span(name):
            await root.drive()

    first = engine.begin(observed("first"))
    await gate.reached.wait()
    second = engine.begin(observed("second"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    await root.follow_up("more")
    gate.open()
    await second
    under = [
        [one.name for one in span.around() if one.name in ("first", "second")]
        for span in listening.named("task.effect")
    ]
    assert under == [["first"], ["second"]]


@pytest.mark.spec("TM-01", "TM-02")
async def test_each_hook_and_each_delivery_to_watches_is_a_span(engine: Engine) -> None:
    listening = Listening()
    hooks = Hooks()

    async def block(_: Any) -> Block:
        return Block(MARKED)

    async def fail_loudly(_: Any) -> None:
        raise RuntimeError(MARKED)

    hooks.on("before_tool", block)
    hooks.on("on_yield", fail_loudly)
    root = await engine.root([say(call("t")), say("end")], tools=[Probe("t")],
        hooks=hooks, telemetry=listening)  # fmt: skip
    async with root.watch() as watch:
        await root.prompt("hi")
        watching = listening.named("watch.deliver")
        await watch.close()
    decided, failed = listening.named("hook")
    where = f"{test_each_hook_and_each_delivery_to_watches_is_a_span.__name__}.<locals>"
    assert decided.facts == {"point": "before_tool", "name": f"{where}.block", "decision": "Block"}
    assert failed.facts == {"point": "on_yield", "name": f"{where}.fail_loudly"}
    assert failed.ended_by == "RuntimeError"
    assert {one.parent.name for one in (decided, failed) if one.parent} == {"task.effect"}
    commits = [commit.last_seq for commit in await engine.commits()][1:]
    assert [one.facts for one in watching] == [
        {"watches": 1, "last_seq": seq, "dropped": 0} for seq in commits
    ]
    assert {one.parent.name for one in watching if one.parent} == {"line.command"}
    assert not says_the_marker(listening)
