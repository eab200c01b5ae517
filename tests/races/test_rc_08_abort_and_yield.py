"""RC-08: an abort and an on_yield continuation, both durable orders."""

from typing import Any

import pytest

from perdure.harness.conversation import Conversation
from perdure.kinds.hooks import Continue, Hooks
from perdure.providers.script import say
from perdure.records.writes import InsertTask
from tests.engine import Engine, Gate
from tests.races.held import after_the_held


def _starts_another(commit: Any) -> bool:
    return any(
        isinstance(write, InsertTask) and write.kind == "generation" for write in commit.writes
    )


async def _statuses(root: Conversation) -> list[str]:
    return [task.status for task in await root.tasks() if task.kind == "generation"]


@pytest.mark.spec("RC-08", "HK-12")
async def test_mark_first_inserts_no_continuation(engine: Engine) -> None:
    gate = Gate()
    hooks = Hooks()

    async def more(_: Any) -> Continue:
        await gate()
        return Continue("and then?")

    hooks.on("on_yield", more)
    root = await engine.root([say("done"), say("never")], hooks=hooks)
    accepted = await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    gate.open()
    await driving
    assert await _statuses(root) == ["aborted"]
    assert [entry.kind for entry in await root.entries()] == ["user", "assistant"]
    assert (await root.result(accepted.input_id)).state == "aborted"


@pytest.mark.spec("RC-08")
async def test_continuation_first_runs_on_and_is_then_aborted(engine: Engine) -> None:
    hooks = Hooks()
    hooks.on("on_yield", lambda _: Continue("and then?"))
    stream = Gate()
    root = await engine.root([say("done"), say("never", gates={0: stream})], hooks=hooks)
    accepted = await root.accept("hi")
    held = engine.storage.hold(_starts_another)
    driving = engine.begin(root.drive())
    await held.reached.wait()
    report = await after_the_held(engine, held, root.abort())
    await driving
    assert await _statuses(root) == ["done", "aborted"]
    assert len(report.marked) == 1
    kinds = [entry.kind for entry in await root.entries()]
    assert kinds == ["user", "assistant", "user"]
    assert (await root.result(accepted.input_id)).state == "aborted"
