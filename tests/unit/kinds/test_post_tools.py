"""The join: one exchange ends, and exactly one thing follows, in one command (PT, D10, D11)."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import UNSET

from perdure.drive.outcomes import DriveOutcome
from perdure.kinds.post_tools import PostTools
from perdure.ports import ToolContext
from perdure.providers.script import call, say
from perdure.records.entries import Entry
from perdure.records.messages import UserPayload, read_payload
from perdure.records.seqs import Seq
from perdure.records.tasks import Role
from perdure.records.writes import InsertTask, PatchConversation, SettleTask
from tests.engine import Engine, Gate, Probe
from tests.unit.kinds.turns import generations, join, kinds, outcomes, settlement, tasks_of


def tool(name: str, *, fails: bool = False, gate: Gate | None = None, **asks: Any) -> Probe:
    """Make a tool that asks for a handoff or the end of the run."""

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        if "handoff" in asks:
            ctx.out.handoff(asks["handoff"])
        if asks.get("ends"):
            ctx.out.terminate()
        if fails:
            ctx.out.error()
        ctx.out.write(name)

    return Probe(name, body=body, gate=gate)


def words(entry: Entry | None) -> str:
    """Join what an input or handoff entry says."""
    assert entry is not None
    assert entry.payload_json
    messages = read_payload(entry.payload_json, UserPayload).messages
    return " ".join(getattr(part, "text", "") for one in messages for part in one.content)


@pytest.mark.spec("PT-15", "TK-12")
async def test_a_join_is_pending_then_done_or_aborted(engine: Engine) -> None:
    facts = PostTools.facts
    assert dict(facts.roles) == {
        "pending": Role.START,
        "done": Role.TERMINAL,
        "aborted": Role.TERMINAL,
    }
    assert dict(facts.transitions) == {"pending": frozenset({"done", "aborted"})}
    root = await engine.root([say(call("t")), say("end")], tools=[tool("t")])
    await root.prompt("hi")
    (task,) = await tasks_of(root, "post_tools")
    (first, _) = await generations(root)
    state = join(task)
    assert (state.generation, state.handoff) == (first.id, UNSET)
    assert set(task.state) == {"v", "generation", "inputs"}
    assert len(task.state_json) < 100


@pytest.mark.spec("PT-01", "PT-02", "PT-04", "PT-16", "IV-20")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_it_runs_once_after_all_calls_in_any_order(
    memory_engine: Engine, order: tuple[int, ...]
) -> None:
    engine = memory_engine
    gates = [Gate() for _ in range(3)]
    root = await engine.root(
        [say(*(call(f"t{n}") for n in range(3))), say("end")],
        tools=[tool(f"t{n}", gate=gate) for n, gate in enumerate(gates)],
    )
    accepted = await root.accept("hi")
    driving = engine.begin(root.drive())
    await asyncio.gather(*(gate.reached.wait() for gate in gates))
    calls = await tasks_of(root, "tool")
    for at in order:
        assert len(await generations(root)) == 1
        gates[at].open()
        await engine.storage.until(
            lambda commit, at=at: any(
                isinstance(w, SettleTask) and w.task_id == calls[at].id for w in commit.writes
            )
        )
    await driving
    (task,) = await tasks_of(root, "post_tools")
    commit = await settlement(engine, task.id)
    made = [w for w in commit.writes if isinstance(w, InsertTask)]
    assert [w.kind for w in made] == ["generation"]
    assert len(await generations(root)) == 2
    assert (await root.result(accepted.input_id)).text == "end"
    sent = [getattr(m, "tool_name", "") for m in engine.models.requests[1].messages]
    assert [name for name in sent if name] == ["t0", "t1", "t2"]


@pytest.mark.spec("PT-04", "PT-05")
async def test_writes_and_steering_are_placed_and_follow_ups_stay(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say(call("t")), say("one"), say("two")], tools=[tool("t", gate=gate)])
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.append_message("a note")
    follow = await root.follow_up("later")
    await root.steer("turn left")
    gate.open()
    await engine.storage.until(_joins)
    await driving
    (task,) = await tasks_of(root, "post_tools")
    commit = await settlement(engine, task.id)
    (patch,) = [w for w in commit.writes if isinstance(w, PatchConversation)]
    assert patch.inbox is not UNSET
    assert [item.id for item in patch.inbox] == [follow.input_id]
    users = [words(entry) for entry in await root.entries() if entry.kind == "user"]
    assert users == ["hi", "a note", "turn left", "later"]
    assert (await root.result(follow.input_id)).text == "two"


def _joins(commit: Any) -> bool:
    return any(isinstance(w, InsertTask) and w.kind == "generation" for w in commit.writes)


@pytest.mark.spec("PT-06", "PT-10")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_handoff_of_the_last_call_resets_the_context(
    memory_engine: Engine, order: tuple[int, int]
) -> None:
    engine = memory_engine
    gates = [Gate(), Gate(), Gate()]
    gates[2].open()
    root = await engine.root(
        [say(call("a"), call("b"), call("c")), say("fresh")],
        tools=[
            tool("a", handoff="from a", gate=gates[0]),
            tool("b", handoff="from b", gate=gates[1]),
            tool("c", handoff="from c", fails=True, gate=gates[2]),
        ],
    )
    accepted = await root.accept("hi")
    driving = engine.begin(root.drive())
    await asyncio.gather(*(gate.reached.wait() for gate in gates))
    await root.steer("and this")
    for at in order:
        gates[at].open()
        await asyncio.sleep(0)
    await driving
    request = engine.models.requests[1]
    said = [getattr(part, "text", "") for m in request.messages for part in m.content]
    assert said == ["from b", "and this"], "reset first, then what was steered (X01)"
    (task,) = await tasks_of(root, "post_tools")
    calls = await tasks_of(root, "tool")
    chosen = join(task).handoff
    assert chosen is not UNSET
    assert (chosen.tool, chosen.superseded) == (calls[1].id, (calls[0].id,))
    (entry,) = [e for e in await root.entries() if e.meta.handoff is True]
    assert entry.written_by == task.id
    assert (await root.result(accepted.input_id)).text == "fresh"
    assert (await kinds(root)).count("tool_result") == 3, "the transcript keeps everything"


@pytest.mark.spec("PT-07", "PT-08")
async def test_one_call_that_asks_stops_the_run_and_keeps_every_result(engine: Engine) -> None:
    root = await engine.root(
        [say(call("end"), call("other"))], tools=[tool("end", ends=True), tool("other")]
    )
    accepted = await root.accept("hi")
    await root.follow_up("later")
    assert (await root.drive()).outcome is DriveOutcome.IDLE
    assert await outcomes(root) == ["finished", "finished"]
    assert len(await generations(root)) == 1
    result = await root.result(accepted.input_id)
    assert result.state == "stopped"
    assert result.message is not None
    assert [item.kind for item in (await root.state()).inbox] == ["followUp"]
    assert engine.harness.inspect().start == ()


@pytest.mark.spec("PT-08")
@pytest.mark.parametrize(
    ("policy", "asks", "stops"),
    [
        ("any", ["end", "no"], True),
        ("any", ["fail", "no"], False),
        ("all", ["end", "end"], True),
        ("all", ["end", "no"], False),
        ("all", ["end", "fail"], False),
    ],
)
async def test_termination_follows_the_captured_policy(
    memory_engine: Engine, policy: str, asks: list[str], *, stops: bool
) -> None:
    engine = memory_engine
    tools = [tool("end", ends=True), tool("no"), tool("fail", ends=True, fails=True)]
    root = await engine.root(
        [say(*(call(name) for name in asks)), say("went on")],
        tools=tools,
        settings={"termination": policy},
    )
    result = await root.prompt("hi")
    assert result.state == ("stopped" if stops else "answered")
    assert len(engine.models.requests) == (1 if stops else 2)


@pytest.mark.spec("PT-06", "PT-07")
async def test_handoff_and_end_together_reset_and_stop(engine: Engine) -> None:
    root = await engine.root(
        [say(call("both")), say("next")], tools=[tool("both", handoff="start here", ends=True)]
    )
    assert (await root.prompt("hi")).state == "stopped"
    assert (await root.prompt("again")).text == "next"
    said = [
        getattr(part, "text", "") for m in engine.models.requests[1].messages for part in m.content
    ]
    assert said == ["start here", "again"]


@pytest.mark.spec("PT-07")
async def test_a_stopped_run_places_writes_only(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say(call("end"))], tools=[tool("end", ends=True, gate=gate)])
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.append_message("noted")
    await root.steer("left")
    gate.open()
    assert (await driving).outcome is DriveOutcome.IDLE
    users = [words(entry) for entry in await root.entries() if entry.kind == "user"]
    assert users == ["hi", "noted"]
    assert [item.kind for item in (await root.state()).inbox] == ["steer"]


@pytest.mark.spec("PT-09")
async def test_a_call_that_merely_failed_stops_nothing(engine: Engine) -> None:
    root = await engine.root(
        [say(call("bad"), call("good")), say("went on")],
        tools=[tool("bad", fails=True), tool("good")],
    )
    assert (await root.prompt("hi")).text == "went on"


@pytest.mark.spec("PT-03", "PT-13", "CN-14", "CN-02")
async def test_a_marked_join_settles_aborted_and_changes_nothing_else(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say(call("t"))], tools=[tool("t", gate=gate)])
    accepted = await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.append_message("noted")
    await root.next_run("for the next run")
    await root.abort()
    await driving
    (task,) = await tasks_of(root, "post_tools")
    assert task.status == "aborted"
    assert [item.kind for item in (await root.state()).inbox] == ["write", "nextRun"]
    assert len(await generations(root)) == 1
    assert (await root.result(accepted.input_id)).state == "aborted"
    assert len(list((await root.state()).context)) == 3


@pytest.mark.spec("PT-11", "PT-16")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_kill_around_its_commit_leaves_it_pending_or_succeeded(
    engine: Engine, when: Any
) -> None:
    root = await engine.root([say(call("t"))], tools=[tool("t")])
    accepted = await root.accept("hi")
    held = engine.storage.hold(
        lambda commit: _joins(commit) and any(isinstance(w, SettleTask) for w in commit.writes),
        when=when,
    )
    engine.begin(root.drive())
    await held.reached.wait()
    await engine.kill()
    root = await engine.root([say("end")], tools=[tool("t")])
    (task,) = await tasks_of(root, "post_tools")
    assert task.status == ("pending" if when == "before" else "done")
    assert len(await generations(root)) == (1 if when == "before" else 2)
    await root.drive()
    assert len(await generations(root)) == 2
    assert (await root.result(accepted.input_id)).text == "end"


@pytest.mark.spec("PT-14")
async def test_no_other_kind_reads_the_outcome_of_a_sibling(engine: Engine) -> None:
    reads: list[Seq] = []
    root = await engine.root(
        [say(call("a"), call("b")), say("end")],
        tools=[tool("a"), tool("b")],
        settings={"tool_order": "sequential"},
    )
    await root.accept("hi")
    real = engine.line.task

    async def watched(task_id: Seq) -> Any:
        reads.append(task_id)
        return await real(task_id)

    engine.line.task = watched
    joins: list[Seq] = []
    readers: dict[Seq, set[Seq]] = {}
    for kind in engine.harness._core.scheduler._kinds.values():
        for method in ("effect", "recover", "abort"):
            inner = getattr(kind, method)

            async def run(task: Any, ctx: Any, inner: Any = inner) -> None:
                reads.clear()
                if task.kind == "post_tools":
                    joins.append(task.id)
                await inner(task, ctx)
                readers.setdefault(task.id, set()).update(reads)

            setattr(kind, method, run)
    await root.drive()
    calls = {task.id for task in await tasks_of(root, "tool")}
    for reader in set(readers) & calls:
        assert not (readers[reader] & calls) - {reader}
    assert calls <= readers[joins[0]]
