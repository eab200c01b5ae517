"""RC-28: whichever drive performs a cancellation, one claim joins the call and runs the abort."""

import asyncio

import pytest

from perdure.drive.context import TaskContext
from perdure.errors import Interrupted
from perdure.records.tasks import Task
from tests.engine import Engine, Gate
from tests.unit.drive.chores import Body, Chores, mark, plan, statuses


async def settled_loop() -> None:
    """Give everything that could run the chance to."""
    for _ in range(10):
        await asyncio.sleep(0)


def slow_to_stop(story: list[str], started: Gate, stopping: Gate) -> Body:
    """Make a body that, interrupted, takes its time."""

    async def body(task: Task, ctx: TaskContext) -> None:
        await ctx.patch(status="running")
        try:
            await ctx.outside(started())
        except Interrupted:
            story.append("stopping")
            await stopping()
            story.append("stopped")
            raise

    return body


@pytest.mark.spec("RC-28", "CN-09", "SC-12")
@pytest.mark.parametrize("second_drive", ["before the mark", "after the mark"])
async def test_one_claim_covers_the_join_and_the_abort(engine: Engine, second_drive: str) -> None:
    story: list[str] = []
    started, stopping, aborting = Gate(), Gate(), Gate()

    async def abort(task: Task, ctx: TaskContext) -> None:
        story.append("abort")
        await aborting()
        await ctx.settle("aborted")

    chores = Chores(x=slow_to_stop(story, started, stopping), x_abort=abort)
    root = await engine.root(kinds=[chores])
    (chore,) = await plan(engine, "x")
    drives = [engine.begin(engine.harness.drive())]
    await started.reached.wait()
    if second_drive == "before the mark":
        drives.append(engine.begin(root.drive()))
    await mark(engine, chore)
    await stopping.reached.wait()
    drives += [engine.begin(root.drive()), engine.begin(engine.harness.drive())]
    await settled_loop()
    assert story == ["stopping"], "no abort beside the running call"
    stopping.open()
    await aborting.reached.wait()
    drives.append(engine.begin(engine.harness.drive()))
    await settled_loop()
    assert story == ["stopping", "stopped", "abort"]
    aborting.open()
    await asyncio.gather(*drives)
    assert chores.calls == [("effect", "x"), ("abort", "x")]
    assert chores.most_running == 1
    assert await statuses(engine, chore) == ["aborted"]


@pytest.mark.spec("RC-28", "CN-17")
async def test_the_drive_that_started_the_call_may_be_gone(engine: Engine) -> None:
    started = Gate()

    async def body(task: Task, ctx: TaskContext) -> None:
        await ctx.patch(status="running")
        await ctx.outside(started())

    chores = Chores(x=body)
    await engine.open(kinds=[chores])
    (chore,) = await plan(engine, "x")
    first = engine.begin(engine.harness.drive())
    await started.reached.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await mark(engine, chore)
    assert await statuses(engine, chore) == ["running"]
    await engine.harness.drive()
    assert chores.calls == [("effect", "x"), ("abort", "x")]
    assert await statuses(engine, chore) == ["aborted"]
