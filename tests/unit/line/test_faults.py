"""Faults: what stops a session, what does not, and what is stored afterwards (seed 7.3, FT)."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import Raw, Struct

from perdure.errors import Faulted, Rejected
from perdure.line.command import Command
from perdure.line.line import Delivery
from perdure.ports import ToolContext
from perdure.providers.script import END, Reply, call, fail, say
from perdure.records.addresses import ConversationValue, SessionValue, task_scope
from perdure.records.messages import Usage
from perdure.records.seqs import Seq
from perdure.records.writes import AppendList, RetireScope, SettleTask, SetValue
from tests.engine import Engine, Gate, Probe, is_main, task_moves, writes

NOTE = SessionValue[object]("test.note")
PLAN = ConversationValue[object]("test.plan")
DISK = OSError("the disk is gone")


@pytest.mark.spec("FT-01", "FT-03", "ER-01")
async def test_a_failed_commit_stops_the_session_with_its_reason(engine: Engine) -> None:
    root = await engine.root()
    engine.storage.fail(is_main, DISK)
    with pytest.raises(Faulted, match="the disk is gone"):
        await root.set_value(PLAN, 1)
    head, made = engine.storage.last_seq, len(engine.storage.commits_made)
    for later in (
        root.set_value(PLAN, 2),
        root.accept("hello"),
        root.abort(),
        root.drive(),
        root.prompt("hello"),
        engine.harness.command(lambda tx: _end(tx.set_value(NOTE, 1))),
        engine.harness.working_command(task_scope(Seq(1)), lambda _: None),
        engine.harness.drive(),
    ):
        with pytest.raises(Faulted, match="the disk is gone"):
            await later
    assert engine.storage.last_seq == head
    assert len(engine.storage.commits_made) == made


@pytest.mark.spec("FT-01")
async def test_a_defect_after_the_commit_stops_the_session(
    memory_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What memory holds may no longer be what the journal says, so nothing goes on."""
    root = await memory_engine.root()
    await root.set_value(PLAN, 1)
    held = memory_engine.line.residency

    def broken(*_: object) -> None:
        raise ZeroDivisionError("adoption")

    monkeypatch.setattr(held, "adopt_conversation", broken)
    with pytest.raises(Faulted, match="adoption"):
        await root.set_value(PLAN, 2)
    with pytest.raises(Faulted, match="adoption"):
        await root.set_value(PLAN, 3)


@pytest.mark.spec("FT-02")
async def test_a_rejection_is_no_fault(engine: Engine) -> None:
    root = await engine.root([say("hi")])

    def wrong(tx: Command) -> None:
        tx.set_value(PLAN.bind(Seq(999)), 1)

    for _ in range(3):
        with pytest.raises(Rejected):
            await engine.harness.command(wrong)
        with pytest.raises(Rejected):
            await root.set_value(PLAN, {"not", "json"})
    assert engine.line.fault is None
    await root.set_value(PLAN, 1)
    assert (await root.prompt("hello")).text == "hi"


@pytest.mark.spec("FT-02")
async def test_a_value_of_any_type_that_is_no_json_is_rejected(engine: Engine) -> None:
    """A record a host made, or raw bytes, pass the same door as plain values (VD-17)."""
    root = await engine.root()
    usage = Usage(input=1, output=1)

    class Mine(Struct):
        text: str = "a\x00b"
        number: float = float("nan")

    for value in (Mine(), Mine(text="ok"), Mine(number=1.0), Raw(b"{half")):
        with pytest.raises(Rejected):
            await root.set_value(PLAN, value)
    await root.set_value(PLAN, usage)
    assert (await root.get_value(PLAN, {}))["input"] == 1
    assert engine.line.fault is None


@pytest.mark.spec("FT-03")
async def test_a_faulted_session_cannot_even_cancel(engine: Engine) -> None:
    gate = Gate()
    tool = Probe("wait", gate=gate)
    root = await engine.root([say(call("wait"))], tools=[tool])
    await root.accept("hello")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    engine.storage.fail(is_main, DISK)
    with pytest.raises(Faulted):
        await root.set_value(PLAN, 1)
    with pytest.raises(Faulted):
        await root.abort()
    with pytest.raises(Faulted):
        await driving
    made = len(engine.storage.commits_made)
    await engine.close()
    assert len(engine.storage.commits_made) == made


@pytest.mark.spec("FT-04")
@pytest.mark.parametrize("status", ["running", "done"])
async def test_a_storage_failure_in_a_tool_is_no_tool_error(engine: Engine, status: str) -> None:
    tool = Probe("pay")
    root = await engine.root([say(call("pay")), say("done")], tools=[tool])
    accepted = await root.accept("hello")
    if status == "done":
        engine.storage.fail(lambda _: len(tool.runs) == 1, DISK)
    else:
        engine.storage.fail(task_moves("running"), DISK)
    with pytest.raises(Faulted, match="the disk is gone"):
        await root.drive()
    assert len(tool.runs) == (1 if status == "done" else 0)
    await engine.kill()
    root = await engine.root([say("done")], tools=[tool])
    assert [entry.kind for entry in await root.entries()] == ["user", "assistant"]
    await root.drive()
    assert (await root.result(accepted.input_id)).text == "done"
    results = [entry for entry in await root.entries() if entry.kind == "tool_result"]
    wanted = "interrupted" if status == "done" else "finished"
    assert [entry.meta.outcome for entry in results] == [wanted]


@pytest.mark.spec("FT-04", "FT-03")
async def test_a_tool_that_swallows_a_storage_failure_settles_nothing(engine: Engine) -> None:
    """Its checkpoint is lost, and whatever it then returns or raises is no result."""
    swallowed: list[BaseException] = []

    async def stubborn(_: Mapping[str, Any], ctx: ToolContext) -> object:
        try:
            await ctx.out.progress({"step": 1})
        except Faulted as error:
            swallowed.append(error)
        ctx.out.write("all is well")
        return None

    tool = Probe("work", body=stubborn)
    root = await engine.root([say(call("work"))], tools=[tool])
    accepted = await root.accept("hello")
    engine.storage.fail(lambda commit: not is_main(commit), DISK)
    with pytest.raises(Faulted, match="the disk is gone"):
        await root.drive()
    await engine.kill()
    assert swallowed
    root = await engine.root([say("done")], tools=[tool])
    live = {task.kind: task.status for task in await root.tasks(live=True)}
    assert live["tool"] == "running"
    await root.drive()
    assert (await root.result(accepted.input_id)).text == "done"
    results = [entry for entry in await root.entries() if entry.kind == "tool_result"]
    assert [entry.meta.outcome for entry in results] == ["interrupted"]


@pytest.mark.spec("FT-04")
async def test_a_storage_failure_in_a_stream_is_no_provider_error(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("x" * 10_000, chunk=1_000, gates={END: gate})])
    accepted = await root.accept("hello")
    engine.storage.fail(_frames, DISK)
    with pytest.raises(Faulted, match="the disk is gone"):
        await root.drive()
    await engine.kill()
    root = await engine.root([say("again")])
    assert (await root.result(accepted.input_id)).state == "open"
    driving = engine.begin(root.drive())
    await engine.clock.until_asleep()
    engine.clock.advance(60_000)
    await driving
    assert (await root.result(accepted.input_id)).text == "again"


@pytest.mark.spec("FT-05", "FT-08", "IV-17")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_uncertain_settlement_is_whole_or_absent(engine: Engine, when: Any) -> None:
    """Output, usage, successors and retirement come together, whatever the caller was told."""
    usage = Usage(input=10, output=5)
    root = await engine.root([say(call("look"), usage=usage)], tools=[Probe("look")])
    accepted = await root.accept("hello")
    engine.storage.fail(writes(SettleTask, status="done"), DISK, when=when)
    with pytest.raises(Faulted):
        await root.drive()
    await engine.kill()
    root = await engine.root([say(call("look"), usage=usage), say("done")], tools=[Probe("look")])
    kinds = [entry.kind for entry in await root.entries()]
    live = sorted(task.kind for task in engine.line.residency.live_tasks())
    last = (await engine.commits())[-1]
    kept = {type(write) for write in last.writes}
    assert (await root.result(accepted.input_id)).state == "open"
    if when == "before":
        assert kinds == ["user"]
        assert live == ["generation"]
        assert not kept & {SettleTask, RetireScope, AppendList}
    else:
        assert kinds == ["user", "assistant"]
        assert live == ["post_tools", "tool"]
        assert {SettleTask, RetireScope, AppendList} <= kept
    driving = engine.begin(root.drive())
    if when == "before":
        await engine.clock.until_asleep()
        engine.clock.advance(60_000)
    else:
        engine.models._first = 1
    await driving
    assert (await root.result(accepted.input_id)).text == "done"


async def test_running_drives_and_waits_end_with_the_fault(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say(call("wait"))], tools=[Probe("wait", gate=gate)])
    accepted = await root.accept("hello")
    waits = [
        engine.begin(root.drive()),
        engine.begin(engine.harness.drive()),
        engine.begin(root.wait(accepted.input_id)),
        engine.begin(root.wait_for_idle()),
    ]
    await gate.reached.wait()
    engine.storage.fail(is_main, DISK)
    with pytest.raises(Faulted):
        await root.set_value(PLAN, 1)
    for waiting in waits:
        with pytest.raises(Faulted, match="the disk is gone"):
            await waiting


@pytest.mark.spec("FT-07", "ER-06")
async def test_what_providers_tools_and_listeners_raise_is_no_fault(engine: Engine) -> None:
    async def broken(_: Mapping[str, Any], ctx: ToolContext) -> object:
        raise ZeroDivisionError("inside the tool")

    def listener(_: Delivery) -> None:
        raise LookupError("listener")

    root = await engine.root(
        [
            say(call("bad")),
            say("went on"),
            fail("auth", message="no key"),
            Reply(raises={END: RuntimeError("client bug")}),
            say("still here"),
        ],
        tools=[Probe("bad", body=broken)],
    )
    engine.line.listen(listener)
    assert (await root.prompt("one")).text == "went on"
    second = await root.prompt("two")
    assert (second.state, second.error and second.error.code) == ("failed", "auth")
    assert (await root.prompt("three")).state == "failed"
    assert (await root.prompt("four")).text == "still here"
    assert engine.line.fault is None
    assert {type(error) for error in engine.errors} == {LookupError}


@pytest.mark.spec("FT-08")
async def test_a_fault_settles_nothing_and_retires_nothing(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say(call("wait"))], tools=[Probe("wait", gate=gate)])
    await root.accept("hello")
    engine.begin(root.drive())
    await gate.reached.wait()
    before = [(task.id, task.status) for task in engine.line.residency.live_tasks()]
    engine.storage.fail(is_main, DISK)
    with pytest.raises(Faulted):
        await root.set_value(PLAN, 1)
    gate.open()
    await engine.harness.close()
    engine._opened = False
    await engine.open(tools=[Probe("wait")])
    after = [(task.id, task.status) for task in engine.line.residency.live_tasks()]
    assert after == before
    last = (await engine.commits())[-1]
    assert not any(isinstance(write, SettleTask | RetireScope) for write in last.writes)


def _frames(commit: Any) -> bool:
    return not is_main(commit) and any(
        isinstance(write, AppendList | SetValue) for write in commit.writes
    )


def _end(_: object) -> None:
    """Turn a call with an answer into a step of a command."""
