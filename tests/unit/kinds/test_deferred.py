"""Deferred answers: the handle in the task, polls under a permit, longer waits (D14)."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from perdure.errors import Rejected
from perdure.kinds.polling import poll_delay_ms
from perdure.providers.script import Deferred, Failure, call, say
from perdure.records.models import DeferredHandle
from tests.engine import Engine, Gate, Probe, task_moves
from tests.unit.kinds.turns import (
    USED,
    generation,
    generations,
    kinds,
    outcomes,
    usage_of,
)


@pytest.mark.spec("GN-27", "GN-44", "US-01", "BR-02")
async def test_a_deferred_answer_stores_its_handle_once_and_waits_for_a_permit(
    engine: Engine,
) -> None:
    root = await engine.root(
        [say("later", usage_early=USED, deferred=Deferred(poll_after_ms=2_000))]
    )
    accepted = await root.accept("hi")
    first = await root.drive(wait_timers=False)
    (task,) = await generations(root)
    state = generation(task)
    assert (task.status, state.poll) == ("deferred", 0)
    assert state.deferred is not UNSET
    assert state.not_before == engine.clock.now_ms() + 2_000 == first.next_at
    (commit,) = [c for c in await engine.commits() if task_moves("deferred")(c)]
    assert commit in engine.storage.barriers
    assert len(await usage_of(engine)) == 1
    assert await kinds(root) == ["user"], "a deferred answer is never an entry"
    engine.clock.advance(2_000)
    assert [w.kind for w in (await root.drive()).waiting_for] == ["poll"]
    assert engine.models.polls == []
    await root.drive(poll_deferred=True)
    assert len(engine.models.polls) == 1
    assert (await root.result(accepted.input_id)).text == "later"


@pytest.mark.spec("GN-28", "GN-29", "GN-40")
async def test_each_poll_is_committed_first_and_waits_longer(engine: Engine) -> None:
    gates = {n: Gate() for n in (1, 2, 3)}
    root = await engine.root([say("later", deferred=Deferred(polls=2, gates=gates))])
    accepted = await root.accept("hi")
    await root.drive(wait_timers=False)
    waits: list[int] = []
    for poll in (1, 2, 3):
        (task,) = await generations(root)
        due = generation(task).not_before
        assert due is not UNSET
        waits.append(due - engine.clock.now_ms())
        engine.clock.advance(waits[-1])
        driving = engine.begin(root.drive(poll_deferred=True, wait_timers=False))
        await gates[poll].reached.wait()
        (task,) = await generations(root)
        assert (task.status, generation(task).poll) == ("polling", poll)
        gates[poll].open()
        await driving
    assert waits == [5_000, 10_000, 20_000]
    assert (await root.result(accepted.input_id)).text == "later"
    assert len(engine.models.requests) == 1
    assert len(await generations(root)) == 1
    barriers = [c for c in engine.storage.barriers if task_moves("deferred")(c)]
    assert len(barriers) == 1, "only a new handle is a barrier"


@pytest.mark.spec("GN-27")
@pytest.mark.parametrize(
    ("asked", "polls", "wait"),
    [
        (None, 0, 5_000),
        (10, 0, 1_000),
        (3_000, 1, 6_000),
        (900_000, 0, 300_000),
        (None, 10, 300_000),
        (None, 10_000, 300_000),
    ],
)
def test_waits_between_polls(asked: int | None, polls: int, wait: int) -> None:
    handle = DeferredHandle(
        provider="p",
        model_id="m",
        api="a",
        id="h",
        poll_after_ms=UNSET if asked is None else asked,
    )
    assert poll_delay_ms(handle, polls) == wait


@pytest.mark.spec("GN-28")
@pytest.mark.parametrize(
    "failure",
    [
        Failure(code="network"),
        Failure(code="server", status=500),
        Failure(code="auth", status=401),
    ],
)
async def test_a_fetch_that_fails_is_tried_again_later(engine: Engine, failure: Failure) -> None:
    root = await engine.root([say("later", deferred=Deferred(failures={1: failure}))])
    accepted = await root.accept("hi")
    for _ in range(3):
        await root.drive(poll_deferred=True, wait_timers=False)
        (task,) = await generations(root)
        if task.status == "deferred":
            due = generation(task).not_before
            assert due is not UNSET
            engine.clock.advance(due - engine.clock.now_ms())
    assert len(engine.models.polls) == 2
    assert (await root.result(accepted.input_id)).text == "later"
    assert [type(error).__name__ for error in engine.errors] == ["ProviderError"]


@pytest.mark.spec("GN-28", "GN-29")
async def test_what_the_remote_work_failed_with_is_retried_as_a_new_request(
    engine: Engine,
) -> None:
    failure = Failure(code="overloaded")
    root = await engine.root(
        [say("never", deferred=Deferred(failures={1: failure})), say("second request")]
    )
    accepted = await root.accept("hi")
    await root.drive(wait_timers=False)
    engine.clock.advance(10_000)
    await root.drive(poll_deferred=True, wait_timers=False)
    (task,) = await generations(root)
    state = generation(task)
    assert (task.status, state.deferred, state.poll, state.attempt) == ("retry_wait", UNSET, 0, 2)
    engine.clock.advance(60_000)
    await root.drive()
    assert (await root.result(accepted.input_id)).text == "second request"


@pytest.mark.spec("GN-28")
async def test_a_new_handle_starts_over_and_is_a_barrier(engine: Engine) -> None:
    root = await engine.root([say("later", deferred=Deferred(polls=3))])
    await root.accept("hi")
    await root.drive(wait_timers=False)
    engine.clock.advance(5_000)
    await root.drive(poll_deferred=True, wait_timers=False)
    (task,) = await generations(root)
    assert generation(task).poll == 1
    poll = engine.models.poll

    async def renamed(handle: DeferredHandle) -> Any:
        outcome = await poll(handle)
        changed = msgspec.structs.replace(outcome.result, id="another", expires_at_ms=UNSET)
        return msgspec.structs.replace(outcome, result=changed)

    engine.models.poll = renamed
    engine.clock.advance(10_000)
    before = generation(task).deferred
    assert before is not UNSET
    ends = before.expires_at_ms
    await root.drive(poll_deferred=True, wait_timers=False)
    (task,) = await generations(root)
    state = generation(task)
    assert state.deferred is not UNSET
    assert (state.deferred.id, state.deferred.expires_at_ms, state.poll) == ("another", ends, 0)
    assert state.not_before == engine.clock.now_ms() + 5_000
    assert len([c for c in engine.storage.barriers if task_moves("deferred")(c)]) == 2


@pytest.mark.spec("GN-30")
async def test_a_poll_that_was_cut_off_goes_back_to_deferred(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("later", deferred=Deferred(gates={1: gate}))])
    accepted = await root.accept("hi")
    await root.drive(wait_timers=False)
    engine.clock.advance(5_000)
    engine.begin(root.drive(poll_deferred=True))
    await gate.reached.wait()
    await engine.kill()
    root = await engine.root([])
    (task,) = await generations(root)
    assert task.status == "polling"
    assert (await root.drive(wait_timers=False)).waiting_for[0].kind == "timer"
    (task,) = await generations(root)
    assert (task.status, generation(task).poll) == ("deferred", 1)
    engine.clock.advance(300_000)
    await root.drive(poll_deferred=True)
    assert (await root.result(accepted.input_id)).text == "later", (
        "the handle works in a new process"
    )


@pytest.mark.spec("GN-27", "TK-10")
async def test_a_deferred_answer_with_calls_goes_on_as_any_other(engine: Engine) -> None:
    root = await engine.root(
        [say(call("t"), deferred=Deferred(), usage=USED), say("end")], tools=[Probe("t")]
    )
    accepted = await root.accept("hi")
    await root.drive(wait_timers=False)
    engine.clock.advance(5_000)
    await root.drive(poll_deferred=True)
    assert await outcomes(root) == ["finished"]
    assert (await root.result(accepted.input_id)).text == "end"


@pytest.mark.spec("GN-34")
@pytest.mark.parametrize("refuses", [False, True])
async def test_an_abort_cancels_the_remote_work_and_ignores_its_error(
    engine: Engine, *, refuses: bool
) -> None:
    root = await engine.root([say("later", deferred=Deferred())])
    accepted = await root.accept("hi")
    await root.drive(wait_timers=False)
    if refuses:

        async def cancel(handle: DeferredHandle) -> None:
            raise Rejected("invariant", "no such provider")

        engine.models.cancel = cancel
    await root.abort()
    await root.drive()
    (task,) = await generations(root)
    assert task.status == "aborted"
    assert (await root.result(accepted.input_id)).state == "aborted"
    assert await kinds(root) == ["user"]
    if refuses:
        assert [str(error) for error in engine.errors] == ["no such provider"]
    else:
        assert len(engine.models.cancelled) == 1


async def test_resetting_the_context_while_deferred_needs_force(engine: Engine) -> None:
    root = await engine.root([say("later", deferred=Deferred())])
    await root.accept("hi")
    await root.drive(wait_timers=False)
    with pytest.raises(Rejected) as caught:
        await root.reset_context()
    assert caught.value.code == "busy"
    await root.reset_context(force=True)
    assert list((await root.state()).context) == []
