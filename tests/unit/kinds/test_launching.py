"""Calls whose work is one command: placed, launched, waited for, found again, stopped (TL-33)."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from perdure.errors import ToolFailed
from perdure.ports import ProcessHost, ToolContext
from perdure.providers.script import call, say
from perdure.records.budgets import Budget
from perdure.records.launches import Exited, LaunchRef, LaunchSpec, Lost, NeverRan, Running
from tests.engine import Engine, Gate, Probe, task_moves
from tests.unit.kinds.turns import (
    advance_until,
    outcomes,
    result_text,
    results,
    settlement,
    tasks_of,
    tool,
)

ENDED = Exited(code=3, ended_ms=9, bytes=4)


class Hosted:
    """A process host that only remembers; what became of a launch is what the test says."""

    adopts = True

    def __init__(self) -> None:
        self.story: list[str] = []
        self.found: NeverRan | Running | Exited | Lost = Running(pid=1, identity="v1:b:1:1:n")
        self.ends = Gate()
        self.error: OSError | None = None

    async def launch(self, spec: LaunchSpec) -> Running | Exited:
        self.story.append("launch")
        if self.error is not None:
            raise self.error
        return Running(pid=1, identity="v1:b:1:1:n")

    async def reconcile(self, ref: LaunchRef) -> NeverRan | Running | Exited | Lost:
        self.story.append("reconcile")
        return self.found

    async def wait(self, ref: LaunchRef) -> Exited | Lost:
        self.story.append("wait")
        await self.ends()
        return ENDED

    async def stop(self, ref: LaunchRef, *, grace_ms: int) -> Exited | Lost:
        self.story.append(f"stop {grace_ms}")
        self.found = Exited(signal="SIGTERM", ended_ms=9, bytes=4, stopped=True)
        return self.found

    async def log(self, ref: LaunchRef, *, offset: int, limit: int) -> bytes:
        return b"half"

    async def forget(self, ref: LaunchRef) -> None:
        self.story.append("forget")


class Commanding(Probe):
    """A launching tool."""

    def launch(self, args: Mapping[str, Any], ref: LaunchRef) -> LaunchSpec:
        if args.get("refused"):
            raise ToolFailed("outside the root")
        return LaunchSpec(ref=ref, argv=("x",), cwd="/", env={}, output_bytes_max=10)

    def timeout_ms(self, args: Mapping[str, Any]) -> int:
        return 60_000

    async def report(
        self,
        args: Mapping[str, Any],
        ctx: ToolContext,
        ended: Exited | Lost,
        *,
        timed_out: bool,
        host: ProcessHost,
        ref: LaunchRef,
    ) -> None:
        if args.get("broken"):
            raise ValueError("the report broke")
        code = ended.code if isinstance(ended, Exited) else None
        ctx.out.write(f"code {code} timed_out {timed_out}")
        if timed_out:
            ctx.out.error()


SHELL = Commanding("sh")


@pytest.mark.spec("TL-33", "TK-09", "BR-02")
async def test_the_place_is_committed_before_anything_starts(engine: Engine) -> None:
    host = Hosted()
    host.ends.open()
    root = await engine.root([say(call("sh")), say("end")], tools=[SHELL], processes=host)
    held = engine.storage.hold(task_moves("running"))
    prompting = engine.begin(root.prompt("hi"))
    await held.reached.wait()
    assert host.story == []
    held.open()
    await prompting
    assert host.story == ["launch", "wait", "forget"]
    (task,) = await tasks_of(root, "tool")
    ref = tool(task).launch
    assert ref
    assert ref.dir == f"{engine.harness.info.id}/{task.id}-{ref.nonce}"
    assert [c for c in engine.storage.barriers if task_moves("running")(c)]
    assert [result_text(entry) for entry in await results(root)] == ["code 3 timed_out False"]


async def killed_while_running(engine: Engine, host: Hosted, **args: Any) -> None:
    root = await engine.root([say(call("sh", args))], tools=[SHELL], processes=host)
    await root.accept("hi")
    engine.begin(root.drive())
    await host.ends.reached.wait()
    await engine.kill()
    host.story.clear()


@pytest.mark.spec("TL-33", "FM-07")
@pytest.mark.parametrize(
    ("found", "outcome", "story", "words"),
    [
        (ENDED, "finished", ["reconcile", "forget"], "code 3"),
        (NeverRan(), "notStarted", ["reconcile", "forget"], "never started"),
        (Lost(), "interrupted", ["reconcile", "forget"], "cut off"),
        (
            Running(pid=1, identity="i"),
            "interrupted",
            ["reconcile", "stop 5000", "forget"],
            "half",
        ),
        (
            Exited(signal="SIGTERM", ended_ms=9, bytes=4, stopped=True),
            "interrupted",
            ["reconcile", "forget"],
            "half",
        ),
    ],
)
async def test_recovery_tells_what_became_of_the_command(
    engine: Engine, found: Any, outcome: str, story: list[str], words: str
) -> None:
    host = Hosted()
    await killed_while_running(engine, host)
    host.found = found
    root = await engine.root([say("end")], tools=[SHELL], processes=host)
    assert host.story == [], "opening asks nothing of the host"
    settled: list[list[str]] = []
    real = engine.storage.commit

    async def watched(commit: Any, *, barrier: bool) -> None:
        if task_moves("done")(commit) and not settled:
            settled.append(list(host.story))
        await real(commit, barrier=barrier)

    engine.storage.commit = watched
    await root.drive()
    assert host.story == story
    assert settled == [story[:-1]], "stopped before its result is committed"
    assert await outcomes(root) == [outcome]
    (entry,) = await results(root)
    assert words in result_text(entry)


@pytest.mark.spec("TL-33")
async def test_without_a_host_an_interrupted_command_is_interrupted(engine: Engine) -> None:
    host = Hosted()
    await killed_while_running(engine, host)
    root = await engine.root([say("end")], tools=[SHELL], processes=None)
    await root.drive()
    assert await outcomes(root) == ["interrupted"]
    assert host.story == []


@pytest.mark.spec("TL-33", "TL-34")
async def test_a_command_without_a_host_or_refused_never_starts(engine: Engine) -> None:
    root = await engine.root([say(call("sh")), say("end")], tools=[SHELL])
    await root.prompt("hi")
    assert "starts no processes" in result_text((await results(root))[0])
    await engine.close()
    host = Hosted()
    root = await engine.root(
        [say(call("sh", {"refused": True})), say("end")], tools=[SHELL], processes=host
    )
    await root.prompt("again")
    assert "outside the root" in result_text((await results(root))[1])
    assert await outcomes(root) == ["notStarted", "notStarted"]
    assert "launch" not in host.story


@pytest.mark.spec("TL-33")
@pytest.mark.parametrize(
    ("found", "outcome"),
    [(NeverRan(), "notStarted"), (Running(pid=1, identity="i"), "interrupted")],
)
async def test_a_launch_that_fails_is_told_by_its_place(
    engine: Engine, found: Any, outcome: str
) -> None:
    host = Hosted()
    host.error, host.found = OSError("no space left"), found
    root = await engine.root([say(call("sh")), say("end")], tools=[SHELL], processes=host)
    assert (await root.prompt("hi")).text == "end"
    assert await outcomes(root) == [outcome]
    assert engine.line.fault is None


@pytest.mark.spec("TL-33", "KT-18")
async def test_the_time_limit_stops_the_group_and_the_call_is_finished(engine: Engine) -> None:
    host = Hosted()
    root = await engine.root([say(call("sh")), say("end")], tools=[SHELL], processes=host)
    result = await advance_until(engine, engine.begin(root.prompt("hi")), step_ms=60_000)
    assert result.text == "end"
    assert host.story == ["launch", "wait", "stop 5000", "forget"]
    (entry,) = await results(root)
    assert (entry.meta.outcome, entry.meta.is_error) == ("finished", True)
    assert "timed_out True" in result_text(entry)


@pytest.mark.spec("BG-09")
@pytest.mark.parametrize(("seconds", "by_budget"), [(10, True), (600, False)])
async def test_a_budgets_time_stops_the_group_within_a_second(
    engine: Engine, seconds: int, *, by_budget: bool
) -> None:
    host = Hosted()
    root = await engine.root([say(call("sh")), say("end")], tools=[SHELL], processes=host)
    await root.accept("hi", budget=Budget(seconds=seconds, on_limit="fail"))
    driving = engine.begin(root.drive())
    await host.ends.reached.wait()
    await engine.clock.until_asleep()
    engine.clock.advance(10_000 if by_budget else 60_000)
    await driving
    assert ("stop 500" if by_budget else "stop 5000") in host.story
    assert await outcomes(root) == ["finished"]
    (entry,) = await results(root)
    message = entry.payload["message"]
    assert message["isError"]
    assert ("the budget of input" in message["content"][0]["text"]) is by_budget
    assert "timed_out True" in str(message["content"])


@pytest.mark.spec("TL-33", "KT-18", "BB-21")
@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (Running(pid=1, identity="i"), "interrupted"),
        (NeverRan(), "notStarted"),
        (ENDED, "finished"),
    ],
)
async def test_an_abort_stops_the_group_before_the_result(
    engine: Engine, found: Any, outcome: str
) -> None:
    host = Hosted()
    host.found = found
    root = await engine.root([say(call("sh"))], tools=[SHELL], processes=host)
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await host.ends.reached.wait()
    await root.abort()
    await driving
    assert await outcomes(root) == [outcome]
    (task,) = await tasks_of(root, "tool")
    assert task.status == "aborted"
    assert ("stop 5000" in host.story) == (outcome == "interrupted")
    assert host.story[-1] == "forget"
    assert await settlement(engine, task.id)


class Slow(Hosted):
    """A host that stands still in a launch; until that is over, it looks as if none had begun."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = Gate()

    async def launch(self, spec: LaunchSpec) -> Running | Exited:
        running, self.found = self.found, NeverRan()
        await self.starts()
        self.found = running
        return await super().launch(spec)


@pytest.mark.spec("CN-11")
async def test_an_abort_waits_for_a_start_that_is_under_way(engine: Engine) -> None:
    host = Slow()
    root = await engine.root([say(call("sh"))], tools=[SHELL], processes=host)
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await host.starts.reached.wait()
    await root.abort()
    for _ in range(20):
        await asyncio.sleep(0)
    assert host.story == []
    host.starts.open()
    await driving
    assert host.story == ["launch", "reconcile", "stop 5000", "forget"]
    assert await outcomes(root) == ["interrupted"]


@pytest.mark.spec("KT-18", "OP-13")
async def test_close_stops_the_group_and_settles_nothing(engine: Engine) -> None:
    host = Hosted()
    root = await engine.root([say(call("sh"))], tools=[SHELL], processes=host)
    await root.accept("hi")
    engine.begin(root.drive())
    await host.ends.reached.wait()
    await engine.harness.close(grace=5)
    assert host.story == ["launch", "wait", "reconcile", "stop 5000"]
    root = await engine.root([say("end")], tools=[SHELL], processes=host)
    assert [task.status for task in engine.harness.inspect().inflight] == ["running"]
    await root.drive()
    assert await outcomes(root) == ["interrupted"]


@pytest.mark.spec("TL-09")
async def test_a_report_that_raises_is_the_result(engine: Engine) -> None:
    host = Hosted()
    host.ends.open()
    root = await engine.root(
        [say(call("sh", {"broken": True})), say("end")], tools=[SHELL], processes=host
    )
    assert (await root.prompt("hi")).text == "end"
    (entry,) = await results(root)
    assert (entry.meta.outcome, entry.meta.is_error) == ("finished", True)
    assert "the report broke" in result_text(entry)
