"""Failures, retries and their waits, interrupted streams, and the codes an input fails with."""

import asyncio
from typing import Any

import pytest
from msgspec import UNSET

from perdure.errors import FailureCode, Rejected
from perdure.providers.script import Deferred, Reply, call, say
from perdure.records.addresses import observed_window
from perdure.records.models import parse_model
from perdure.records.retry import retry_delay_ms
from perdure.records.settings import RetryPolicy
from perdure.records.writes import AppendList, PatchTask
from tests.engine import Engine, Gate, Probe, task_moves
from tests.unit.kinds.turns import (
    USED,
    advance_until,
    failing,
    generation,
    generations,
    kinds,
    outcomes,
    settlement,
    usage_of,
)

POLICY = RetryPolicy(max_attempts=3, base_delay_ms=1_000, max_delay_ms=4_000)


@pytest.mark.spec("GN-25", "GN-26", "GN-29", "GN-40", "GN-44", "US-02", "GN-47")
async def test_failed_attempts_wait_by_policy_on_one_task(engine: Engine) -> None:
    root = await engine.root(
        [failing("server", "par", usage=USED), failing("network"), say("done", usage=USED)],
        settings={"retry": POLICY},
    )
    accepted = await root.accept("hi")
    waits: list[int] = []
    driving = engine.begin(root.drive())
    for attempt in (1, 2):
        await engine.clock.until_asleep()
        (task,) = await generations(root)
        state = generation(task)
        assert (task.status, state.attempt) == ("retry_wait", attempt + 1)
        assert state.not_before is not UNSET
        waits.append(state.not_before - engine.clock.now_ms())
        engine.clock.advance(waits[-1] - 1)
        await asyncio.sleep(0)
        assert len(engine.models.requests) == attempt
        engine.clock.advance(1)
        await engine.storage.until(
            lambda commit, attempt=attempt: len(engine.models.requests) > attempt
        )
        await asyncio.sleep(0)
    await driving
    (task,) = await generations(root)
    session = engine.harness.info.id
    expected = [
        retry_delay_ms(POLICY, session_id=session, task_id=task.id, attempt=n) for n in (1, 2)
    ]
    assert waits == expected
    assert 1_000 <= waits[0] <= 1_200
    assert 2_000 <= waits[1] <= 2_400
    assert await kinds(root) == ["user", "assistant"], "a retried attempt leaves no entry"
    assert [request.attempt for request in engine.models.requests] == [1, 2, 3]
    assert [(u.task, u.attempt) for u in await usage_of(engine)] == [(task.id, 1), (task.id, 3)]
    assert (await root.result(accepted.input_id)).text == "done"


@pytest.mark.spec("GN-25", "GN-44")
async def test_the_last_attempt_of_the_policy_fails(engine: Engine) -> None:
    root = await engine.root([failing("server") for _ in range(3)], settings={"retry": POLICY})
    result = await advance_until(engine, engine.begin(root.prompt("hi")))
    assert result.error is not None
    assert (result.state, result.error.code) == ("failed", "server")
    assert "3 of 3" in result.error.message
    assert len(engine.models.requests) == 3
    assert len(await generations(root)) == 1


@pytest.mark.spec("GN-26")
async def test_a_restart_neither_shortens_nor_repeats_a_wait(engine: Engine) -> None:
    root = await engine.root([failing("server")], settings={"retry": POLICY})
    await root.accept("hi")
    first = await root.drive(wait_timers=False)
    assert first.next_at is not None
    await engine.kill()
    engine.clock.advance(300)
    root = await engine.root([failing("server"), say("done")], settings={"retry": RetryPolicy()})
    again = await root.drive(wait_timers=False)
    assert again.next_at == first.next_at
    assert engine.models.requests == []
    engine.clock.advance(first.next_at - engine.clock.now_ms())
    second = await root.drive(wait_timers=False)
    (task,) = await generations(root)
    assert generation(task).attempt == 3, "the budget goes on where it stood"
    assert second.next_at is not None
    assert second.next_at - engine.clock.now_ms() <= 2_400, "the captured policy, not the new one"


@pytest.mark.spec("GN-25", "US-01", "BR-02")
async def test_usage_of_a_failed_attempt_is_in_the_commit_of_its_wait(engine: Engine) -> None:
    root = await engine.root([failing("server", usage=USED)])
    await root.accept("hi")
    await root.drive(wait_timers=False)
    commit = (await engine.commits())[-1]
    assert any(isinstance(w, AppendList) for w in commit.writes)
    assert any(isinstance(w, PatchTask) and w.status == "retry_wait" for w in commit.writes)
    assert commit not in engine.storage.barriers


@pytest.mark.spec("GN-31", "GN-45", "IV-22")
async def test_publish_keeps_the_partial_of_a_killed_stream(engine: Engine) -> None:
    pay = Probe("pay")
    gate = Gate()
    parts = ("half an", call("pay"), call("unfinished"))
    root = await engine.root(
        [say(*parts, gates={7: gate})], settings={"interrupted": "publish"}, tools=[pay]
    )
    accepted = await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    await engine.storage.until(lambda commit: commit.time_ms == 0)
    await engine.kill()
    root = await engine.root([], settings={"interrupted": "publish"}, tools=[pay])
    await root.drive()
    result = await root.result(accepted.input_id)
    assert result.error is not None
    assert (result.state, result.error.code) == ("failed", "interrupted")
    assert result.partial is not None
    assert (result.partial.text, result.partial.stop) == ("half an", "aborted")
    assert await outcomes(root) == ["notStarted"] * len(result.partial.calls)
    assert pay.runs == []
    assert engine.models.requests == []
    assert await usage_of(engine) == [], "nobody reported: unknown, not zero"
    (task,) = await generations(root)
    assert task.status == "failed"


@pytest.mark.spec("GN-32", "US-04")
@pytest.mark.parametrize("mode", ["retry", "publish"])
async def test_a_killed_stream_without_frames_is_tried_again(engine: Engine, mode: str) -> None:
    gate = Gate()
    root = await engine.root([say("x", gates={0: gate})], settings={"interrupted": mode})
    accepted = await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    await engine.kill()
    root = await engine.root([say("done")])
    driving = engine.begin(root.drive())
    await engine.clock.until_asleep()
    (task,) = await generations(root)
    assert (task.status, generation(task).attempt, generation(task).error) == (
        "retry_wait",
        2,
        "interrupted",
    )
    assert await usage_of(engine) == []
    await advance_until(engine, driving)
    assert (await root.result(accepted.input_id)).text == "done"
    totals = await engine.harness.usage_totals()
    assert totals.unknown_attempts == 2


@pytest.mark.spec("GN-31", "GN-32", "GN-38")
async def test_retry_drops_the_frames_of_a_killed_stream(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("old half", "more", gates={4: gate})])
    accepted = await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    await engine.storage.until(lambda commit: commit.time_ms == 0)
    await engine.kill()
    second = Gate()
    root = await engine.root([say("new half", "rest", gates={4: second})])
    driving = engine.begin(root.drive())
    await engine.clock.until_asleep()
    engine.clock.advance(60_000)
    await second.reached.wait()
    await engine.storage.until(lambda commit: commit.time_ms == 0)
    aborting = engine.begin(root.abort())
    await aborting
    await driving
    result = await root.result(accepted.input_id)
    assert result.partial is not None
    assert result.partial.text == "new half", "not the frames of the attempt before"


@pytest.mark.spec("GN-32")
async def test_an_interrupted_stream_without_budget_is_published(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root(
        [say("half", "x", gates={4: gate})], settings={"retry": RetryPolicy(max_attempts=1)}
    )
    accepted = await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    await engine.storage.until(lambda commit: commit.time_ms == 0)
    await engine.kill()
    root = await engine.root([])
    await root.drive()
    result = await root.result(accepted.input_id)
    assert result.error is not None
    assert (result.state, result.error.code) == ("failed", "interrupted")
    assert result.partial is not None
    assert result.partial.text == "half"


@pytest.mark.spec("GN-33", "CN-18")
async def test_recovery_never_revives_a_marked_generation(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("half", "x", gates={4: gate})])
    accepted = await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await engine.storage.until(lambda commit: commit.time_ms == 0)
    held = engine.storage.hold(task_moves("aborted"))
    await root.abort()
    await held.reached.wait()
    await engine.kill()
    assert driving.done()
    root = await engine.root([])
    await root.drive()
    (task,) = await generations(root)
    assert (task.status, engine.models.requests) == ("aborted", [])
    result = await root.result(accepted.input_id)
    assert result.state == "aborted"
    assert result.partial is not None
    assert result.partial.text == "half"


@pytest.mark.spec("GN-48")
async def test_an_observed_window_is_kept_and_only_shrinks(engine: Engine) -> None:
    model = parse_model("scripted:test")
    root = await engine.root(
        [
            failing("overflow", window=32_000),
            failing("overflow", window=64_000),
            failing("overflow", window=16_000),
            failing("overflow"),
        ]
    )
    seen: list[Any] = []
    for _ in range(4):
        await root.prompt("hi")
        seen.append(await engine.harness.get_value(observed_window(model), None))
    assert seen == [32_000, 32_000, 16_000, 16_000]
    (first, *_) = await generations(root)
    commit = await settlement(engine, first.id)
    assert any(getattr(w, "key", "") == "scripted/test" for w in commit.writes)
    await engine.close()
    await engine.open()
    assert await engine.harness.get_value(observed_window(model), None) == 16_000


def _ways() -> list[tuple[FailureCode, Reply]]:
    said: tuple[FailureCode, ...] = (
        "overflow",
        "auth",
        "quota",
        "billing",
        "invalid_request",
        "content_filter",
        "model_not_found",
        "rate_limited",
        "overloaded",
        "server",
        "network",
        "timeout",
        "stream_ended",
        "interrupted",
    )
    return [
        *((code, failing(code)) for code in said),
        ("retry_after_too_long", failing("rate_limited", retry_after_ms=3_600_000)),
        ("network", say("x", raises={0: ConnectionResetError("gone")})),
        ("timeout", say("x", raises={0: TimeoutError("slow")})),
        ("stream_ended", say("x", raises={0: EOFError("cut")})),
        ("invalid_request", say("x", raises={0: KeyError("odd")})),
    ]


@pytest.mark.spec("FM-10", "FT-07")
@pytest.mark.parametrize(("code", "reply"), _ways())
async def test_each_failure_code_reaches_the_input(
    memory_engine: Engine, code: FailureCode, reply: Reply
) -> None:
    engine = memory_engine
    attempts = 2 if code == "retry_after_too_long" else 1
    policy = RetryPolicy(max_attempts=attempts)
    root = await engine.root([reply, say("next")], settings={"retry": policy})
    result = await root.prompt("hi")
    assert result.error is not None
    assert (result.state, result.error.code) == ("failed", code)
    assert (await root.prompt("and now?")).text == "next", "the next message is accepted"
    assert engine.line.fault is None


@pytest.mark.spec("FM-10")
async def test_a_model_nobody_offers_fails_the_input_only(engine: Engine) -> None:
    root = await engine.root([say("x")])
    await root.accept("hi")
    refusing = engine.models

    def stream(request: Any) -> Any:
        raise Rejected("invariant", "the provider 'gone' is unknown")

    refusing.stream = stream
    await root.drive()
    (task,) = await generations(root)
    assert (task.status, generation(task).error) == ("failed", "no_model")
    assert engine.line.fault is None


@pytest.mark.spec("FM-10", "GN-27")
async def test_a_deferred_answer_that_expires_fails_with_its_code(engine: Engine) -> None:
    ends = engine.clock.now_ms() + 60_000
    root = await engine.root([say("late", deferred=Deferred(polls=99, expires_at_ms=ends))])
    accepted = await root.accept("hi")
    await root.drive(wait_timers=False)
    engine.clock.advance(61_000)
    await root.drive(poll_deferred=True)
    result = await root.result(accepted.input_id)
    assert result.error is not None
    assert (result.state, result.error.code) == ("failed", "deferred_expired")
    assert engine.models.polls == [], "settled without fetching"
