"""Signals, joined cancellation, and what cannot be stopped (SC-24 to SC-28, TL-10)."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

import perdure
from perdure.drive.context import TaskContext
from perdure.drive.outcomes import DriveOutcome
from perdure.errors import Interrupted
from perdure.hosts.threads import DaemonThreads
from perdure.ports import ToolContext
from perdure.providers.script import call, say
from perdure.records.tasks import Task
from tests.engine import Engine, Gate, Probe
from tests.unit.drive.chores import Chores, mark, new_conversation, plan, statuses


@pytest.mark.spec("SC-24", "SC-25", "CN-09")
async def test_a_mark_cancels_only_the_outside_call_and_the_kind_classifies(
    engine: Engine,
) -> None:
    story: list[str] = []
    gate, cleanup = Gate(), Gate()

    async def outside(ctx: TaskContext) -> None:
        try:
            await gate()
        except asyncio.CancelledError:
            story.append(f"outside cancelled, signal {ctx.signal.reason}")
            await cleanup()
            raise

    async def body(task: Task, ctx: TaskContext) -> None:
        await ctx.patch(status="running")
        try:
            await ctx.outside(outside(ctx))
        except Interrupted as interruption:
            story.append(f"kind told {interruption.reason}")
            await asyncio.sleep(0)
            story.append("kind finished")

    async def abort(task: Task, ctx: TaskContext) -> None:
        story.append("abort")
        await ctx.settle("aborted")

    await engine.open(kinds=[Chores(x=body, x_abort=abort)])
    (chore,) = await plan(engine, "x")
    driving = engine.begin(engine.harness.drive())
    await gate.reached.wait()
    await mark(engine, chore)
    await cleanup.reached.wait()
    assert story == ["outside cancelled, signal abort"]
    assert await statuses(engine, chore) == ["running"]
    cleanup.open()
    await driving
    assert story[1:] == ["kind told abort", "kind finished", "abort"]
    assert await statuses(engine, chore) == ["aborted"]


@pytest.mark.spec("SC-25")
async def test_a_signal_is_read_only_and_can_be_read_from_a_thread(engine: Engine) -> None:
    seen: list[tuple[bool, str | None]] = []
    waited = asyncio.Event()

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        signal = ctx.signal
        for name, value in (("is_set", True), ("reason", "abort")):
            with pytest.raises(AttributeError):
                setattr(signal, name, value)
        assert not [name for name in dir(signal) if name in ("fire", "set", "clear")]
        seen.append((signal.is_set, signal.reason))
        waited.set()
        try:
            await signal.wait()
        finally:
            seen.append(await DaemonThreads().run("reader", lambda: (signal.is_set, signal.reason)))

    root = await engine.root([say(call("t"))], tools=[Probe("t", body=body)])
    await root.accept("go")
    driving = engine.begin(root.drive())
    await waited.wait()
    await root.abort()
    await driving
    assert seen == [(False, None), (True, "abort")]


@pytest.mark.spec("SC-27")
@pytest.mark.parametrize("where", ["tool", "stream"])
async def test_a_cancellation_nobody_asked_for_is_classified(engine: Engine, where: str) -> None:
    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        raise asyncio.CancelledError

    first = say(call("t"))
    replies = [first, say("done")]
    if where == "stream":
        replies = [say("x", raises={0: asyncio.CancelledError()}), say("done")]
    root = await engine.root(replies, tools=[Probe("t", body=body)])
    driving = engine.begin(root.prompt("go"))
    if where == "stream":
        await engine.clock.until_asleep()
        engine.clock.advance(120_000)
    result = await driving
    if where == "tool":
        assert (result.state, result.text) == ("answered", "done")
        (entry,) = [one for one in await root.entries() if one.kind == "tool_result"]
        assert (entry.meta.outcome, entry.meta.is_error) == ("finished", True)
    assert engine.line.fault is None
    assert (await root.drive()).outcome is DriveOutcome.IDLE


@pytest.mark.spec("CN-11", "SC-26", "BB-21")
async def test_an_abort_waits_for_a_thread_and_for_nothing_else(engine: Engine) -> None:
    hold, started = threading.Event(), threading.Event()

    @perdure.tool
    def beat() -> str:
        """Beat."""
        started.set()
        hold.wait(20)
        return "beaten"

    replies = {"a": [say(call("beat"))], "b": [say("other")]}
    root = await engine.root(
        lambda request: replies["b" if "other" in str(request.messages[-1]) else "a"][0],
        tools=[beat],
    )
    other = await engine.harness.conversation(await new_conversation(engine))
    assert other is not None
    await root.accept("go")
    driving = engine.begin(root.drive())
    await DaemonThreads().run("wait", lambda: started.wait(10))
    report = await root.abort()
    assert len(report.marked) == 2
    answered = await asyncio.wait_for(other.prompt("other"), 0.5)
    assert answered.text == "other", "other conversations go on"
    tools = [task for task in await root.tasks(live=True) if task.kind == "tool"]
    assert [(task.status, bool(task.abort_requested)) for task in tools] == [("running", True)]
    assert not driving.done()
    hold.set()
    await driving
    (entry,) = [one for one in await root.entries() if one.kind == "tool_result"]
    assert entry.meta.outcome == "interrupted"
    assert engine.harness._core.services.threads.stuck() == []


@pytest.mark.spec("SC-26")
async def test_close_names_blocked_threads_and_leaves_them_behind(
    memory_engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    engine, hold = memory_engine, threading.Event()
    begun: list[int] = []

    @perdure.tool
    def block() -> str:
        """Block for ever."""
        begun.append(1)
        hold.wait()
        return "late"

    root = await engine.root([say(*(call("block") for _ in range(32)))], tools=[block])
    await root.accept("go")
    driving = engine.begin(root.drive())

    async def all_blocked() -> None:
        while len(begun) < 32:  # noqa: ASYNC110 - threads start by themselves
            await asyncio.sleep(0.001)

    await asyncio.wait_for(all_blocked(), 10)
    other = Engine("memory", tmp_path_factory.mktemp("other"))

    @perdure.tool
    def quick() -> str:
        """Be quick."""
        return "quick ran"

    other_root = await other.root([say(call("quick")), say("fine")], tools=[quick])
    assert (await other_root.prompt("go")).text == "fine"
    await other.aclose()
    began = asyncio.get_running_loop().time()
    report = await engine.harness.close(grace=0.05)
    assert asyncio.get_running_loop().time() - began < 3
    assert (await driving).outcome is DriveOutcome.CLOSED
    assert (len(report.abandoned), report.returned, report.cancelled) == (32, (), ())
    assert report.threads == ("block",) * 32
    hold.set()


@pytest.mark.spec("SC-28")
async def test_a_tool_that_holds_the_loop_is_named_once(engine: Engine) -> None:
    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        for _ in range(3):
            engine.clock.advance(1_500)  # a second and a half of computing, in one step
            await asyncio.sleep(0)
        ctx.out.write("computed")

    async def polite(args: Mapping[str, Any], ctx: ToolContext) -> None:
        for _ in range(5):
            engine.clock.advance(900)
            await asyncio.sleep(0)

    root = await engine.root(
        [say(call("slow"), call("polite")), say("done")],
        tools=[Probe("slow", body=body), Probe("polite", body=polite)],
    )
    assert (await root.prompt("go")).text == "done"
    (warning,) = engine.errors
    assert isinstance(warning, RuntimeWarning)
    assert "'slow'" in str(warning)
    assert "1500 ms" in str(warning)


@pytest.mark.spec("SC-28")
async def test_a_blocking_function_warns_nobody_and_stops_nobody(engine: Engine) -> None:
    hold, started = threading.Event(), threading.Event()

    @perdure.tool
    def block() -> str:
        """Block for a while."""
        engine.clock.advance(20_000)
        started.set()
        hold.wait(20)
        return "done blocking"

    root = await engine.root(
        lambda request: (
            say("quick")
            if len(request.messages) == 1 and _says(request, "quick")
            else (say("end") if len(request.messages) > 1 else say(call("block")))
        ),
        tools=[block],
    )
    other = await engine.harness.conversation(await new_conversation(engine))
    assert other is not None
    driving = engine.begin(root.prompt("slow"))
    await DaemonThreads().run("wait", lambda: started.wait(10))
    assert (await asyncio.wait_for(other.prompt("quick"), 0.5)).text == "quick"
    hold.set()
    assert (await driving).text == "end"
    assert engine.errors == []


def _says(request: Any, word: str) -> bool:
    return word in str(request.messages[-1])


@pytest.mark.spec("SC-24")
async def test_an_outside_call_is_joined_even_when_its_kind_fails(engine: Engine) -> None:
    ended: list[str] = []
    gate = Gate()

    async def outside() -> None:
        try:
            await gate()
        finally:
            await asyncio.sleep(0)
            ended.append("outside")

    async def body(task: Task, ctx: TaskContext) -> None:
        ctx.start(outside())
        await gate.reached.wait()
        ended.append("kind")
        await ctx.settle("done")

    await engine.open(kinds=[Chores(x=body)])
    await plan(engine, "x")
    await engine.harness.drive()
    assert ended == ["kind", "outside"]
    assert engine.harness._core.scheduler.running() == {}
