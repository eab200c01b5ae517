"""A call: refused, run, settled, recovered, aborted; one of four true outcomes (TL)."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

import perdure
from perdure.errors import Closed, Faulted, Interrupted, InvalidArguments, Rejected, ToolFailed
from perdure.kinds.permissions import Permissions
from perdure.kinds.tool import ToolCall
from perdure.ports import ToolContext
from perdure.providers.script import call, say
from perdure.records.addresses import ACTIVE_TOOLS
from perdure.records.images import image_part
from perdure.records.messages import ImagePart, TextPart, ToolResultMessage, UserMessage
from perdure.records.tasks import Role
from perdure.records.writes import (
    AppendContext,
    AppendList,
    InsertEntry,
    PatchTask,
    RetireScope,
    SettleTask,
)
from perdure.toolkits.define import Output
from tests.engine import Engine, Gate, Probe, task_moves
from tests.unit.kinds.turns import (
    USED,
    outcomes,
    result_message,
    result_text,
    results,
    settlement,
    tasks_of,
    tool,
    usage_of,
)

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c6360f8ffff3f0005fe02fe0def46b80000000049454e44ae426082"
)


@pytest.mark.spec("TL-01")
def test_statuses_and_moves_are_exactly_these() -> None:
    facts = ToolCall.facts
    assert {status: role.value for status, role in facts.roles.items()} == {
        "planned": "start",
        "truncated": "start",
        "finishing": "start",
        "running": "inflight",
        "waiting": "waiting",
        "done": "terminal",
        "aborted": "terminal",
    }
    ends = {"done", "aborted"}
    assert {status: set(moves) for status, moves in facts.transitions.items()} == {
        "planned": {"waiting", "running", *ends},
        "truncated": ends,
        "running": {"finishing", "planned", *ends},
        "waiting": {"planned", *ends},
        "finishing": ends,
    }
    assert facts.initials == {"planned", "truncated"}
    assert Role.WAITING in facts.roles.values()


@pytest.mark.spec("TL-02", "TL-03")
async def test_unknown_and_unoffered_tools_get_their_own_error_result(engine: Engine) -> None:
    hidden = Probe("hidden")
    root = await engine.root(
        [say(call("nobody"), call("hidden"), call("open")), say("end")],
        tools=[hidden, Probe("open")],
        settings={"active_tools": ("open",)},
    )
    await root.set_value(ACTIVE_TOOLS, ["open"])
    await root.prompt("hi")
    assert await outcomes(root) == ["notStarted", "notStarted", "finished"]
    texts = {entry.call_index: result_text(entry) for entry in await results(root)}
    assert "'nobody' not found" in texts[0]
    assert "hidden" in texts[0], "it says what there is"
    assert "'hidden' was not offered" in texts[1]
    assert hidden.runs == []


@pytest.mark.spec("TL-04", "PV-09", "FM-06")
async def test_arguments_are_checked_before_anything_runs(engine: Engine) -> None:
    ran: list[int] = []

    @perdure.tool
    async def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    root = await engine.root(
        [
            say(
                call("pay", {"amount": "lots"}),
                call("pay", {"amount": "7"}),
                call("pay", args_text='{"amount": 7'),
            ),
            say("end"),
        ],
        tools=[pay],
    )
    await root.prompt("hi")
    assert ran == [7]
    assert await outcomes(root) == ["notStarted", "finished", "notStarted"]
    bad, _, half = sorted(await results(root), key=lambda one: one.call_index or 0)
    assert "amount" in result_text(bad)
    assert "'lots'" in result_text(bad)
    assert '"type"' in result_text(bad), "the schema is shown"
    assert "not a complete JSON object" in result_text(half)
    assert bad.meta.is_error is half.meta.is_error is True


@pytest.mark.spec("TL-07", "TL-28", "TK-09", "IV-02", "BR-02")
async def test_intent_is_committed_before_execute_with_what_will_run(engine: Engine) -> None:
    order: list[str] = []

    class Coerced(Probe):
        def check(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
            return {**args, "n": 1}

        async def execute(self, args: Mapping[str, Any], ctx: ToolContext) -> object:
            order.append("execute")
            return await super().execute(args, ctx)

    never, safe = Coerced("never"), Probe("safe", replay="safe")
    root = await engine.root(
        [say(call("never", {"a": 1}), call("safe")), say("end")], tools=[never, safe]
    )
    held = engine.storage.hold(task_moves("running"))
    prompting = engine.begin(root.prompt("hi"))
    await held.reached.wait()
    assert order == []
    held.open()
    await prompting
    states = [tool(task) for task in await tasks_of(root, "tool")]
    assert [(state.replay, state.args) for state in states] == [
        ("never", {"a": 1, "n": 1}),
        ("safe", UNSET),
    ]
    assert never.runs == [{"a": 1, "n": 1}]
    barriers = [c for c in engine.storage.barriers if task_moves("running")(c)]
    assert len(barriers) == 1, "the intent of a safe call is none"
    (patch,) = [w for w in barriers[0].writes if isinstance(w, PatchTask)]
    assert patch.task_id == (await tasks_of(root, "tool"))[0].id
    assert Probe("x").replay == "never"


@pytest.mark.spec("TL-08", "TL-26", "TL-27", "TK-10")
async def test_a_call_settles_in_one_command(engine: Engine) -> None:
    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        ctx.out.write("text")
        ctx.out.usage(USED)
        ctx.out.add_tools(["b", "nobody"])
        before.append(len(await usage_of(engine)))

    before: list[int] = []
    root = await engine.root(
        [say(call("a")), say("end")], tools=[Probe("a", body=body), Probe("b"), Probe("c")]
    )
    await root.set_value(ACTIVE_TOOLS, ["a"])
    await root.prompt("hi")
    (task,) = await tasks_of(root, "tool")
    commit = await settlement(engine, task.id)
    names = [type(w).__name__ for w in commit.writes]
    assert names == [
        InsertEntry.__name__,
        AppendContext.__name__,
        AppendList.__name__,
        "SetValue",
        SettleTask.__name__,
        RetireScope.__name__,
    ]
    assert before == [0], "usage is never stored before the outcome"
    (entry,) = await results(root)
    assert (entry.call_index, entry.meta.is_error, entry.meta.outcome) == (0, False, "finished")
    assert entry.meta.bytes > 0
    (record,) = await usage_of(engine)
    assert (record.task, record.input) == (task.id, 100)


@pytest.mark.spec("TL-22")
async def test_added_tools_are_offered_next_and_unknown_names_dropped(engine: Engine) -> None:
    def adding(name: str) -> Any:
        async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
            ctx.out.add_tools([name, "nobody"])

        return body

    root = await engine.root(
        [say(call("a"), call("b")), say("end")],
        tools=[
            Probe("a", body=adding("c")),
            Probe("b", body=adding("d")),
            Probe("c"),
            Probe("d"),
        ],
    )
    await root.set_value(ACTIVE_TOOLS, ["a", "b"])
    await root.prompt("hi")
    first, second = ([spec.name for spec in r.tools] for r in engine.models.requests)
    assert first == ["a", "b"]
    assert second[:2] == ["a", "b"]
    assert set(second) == {"a", "b", "c", "d"}, "neither overwrote the other (X40)"
    assert set(await root.get_value(ACTIVE_TOOLS, [])) == set(second)


class _Unsayable(Exception):
    """An error whose text cannot be asked for."""

    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.spec("TL-09", "SC-27")
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ToolFailed("the shop is closed"), "the shop is closed"),
        (ValueError("odd"), "ValueError: odd"),
        (InvalidArguments("no such city"), "no such city"),
        (TimeoutError(), "TimeoutError"),
        (Rejected("invariant", "a nested refusal"), "a nested refusal"),
        (_Unsayable(), "_Unsayable: (its text raised ZeroDivisionError)"),
        (Interrupted("abort"), "interrupted: abort"),
        (SystemExit(3), "it raised SystemExit: 3"),
        (GeneratorExit(), "it raised GeneratorExit"),
    ],
)
async def test_whatever_a_tool_raises_is_its_result(
    engine: Engine, error: BaseException, words: str
) -> None:
    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        ctx.out.write("so far")
        raise error

    root = await engine.root([say(call("t")), say("end")], tools=[Probe("t", body=body)])
    assert (await root.prompt("hi")).text == "end"
    (entry,) = await results(root)
    assert (entry.meta.outcome, entry.meta.is_error) == ("finished", True)
    assert words in result_text(entry)
    assert "so far" in result_text(entry)


@pytest.mark.spec("TL-09")
async def test_a_storage_failure_while_settling_faults(engine: Engine) -> None:
    root = await engine.root([say(call("t")), say("end")], tools=[Probe("t")])
    engine.storage.fail(
        lambda commit: any(
            isinstance(w, InsertEntry) and w.kind == "tool_result" for w in commit.writes
        ),
        OSError("disk full"),
    )
    with pytest.raises(Faulted, match="disk full"):
        await root.prompt("hi")


@pytest.mark.spec("TL-10", "TL-18", "BB-02", "CN-12")
async def test_an_exception_after_the_signal_is_an_interrupted_result(engine: Engine) -> None:
    started = asyncio.Event()

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        ctx.out.write("step 1\n")
        await ctx.out.progress({"step": 1})
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise ValueError("cleanup failed") from None

    never_run = Probe("second")
    root = await engine.root(
        [say(call("t"), call("second"))],
        tools=[Probe("t", body=body), never_run],
        settings={"tool_order": "sequential"},
    )
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await started.wait()
    await root.abort()
    await driving
    first, second = sorted(await results(root), key=lambda one: one.call_index or 0)
    assert (first.meta.outcome, second.meta.outcome) == ("interrupted", "notStarted")
    assert "may have had effects" in result_text(first)
    assert "step 1" in result_text(first)
    assert '{"step":1}' in result_text(first)
    assert "not executed" in result_text(second)
    assert "denied" not in result_text(first) + result_text(second)
    assert never_run.runs == []
    assert {task.status for task in await tasks_of(root, "tool")} == {"aborted"}
    assert engine.line.fault is None


@pytest.mark.spec("TL-11", "TL-23")
async def test_control_words_do_nothing_inside_the_tool(engine: Engine) -> None:
    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        ctx.out.terminate()
        ctx.out.handoff("start over")
        ctx.out.write("said")

    gate = Gate()
    root = await engine.root(
        [say(call("t"), call("slow"))],
        tools=[Probe("t", body=body), Probe("slow", gate=gate)],
    )
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await engine.storage.until(lambda c: task_moves("done")(c) and _has_result(c))
    await gate.reached.wait()
    state = await root.state()
    assert len(state.context) == 3, "nothing was reset"
    assert len(await tasks_of(root, "generation")) == 1
    gate.open()
    await driving
    assert len(list((await root.state()).context)) == 1, "the join reset it"


def _has_result(commit: Any) -> bool:
    return any(isinstance(w, InsertEntry) and w.kind == "tool_result" for w in commit.writes)


@pytest.mark.spec("TL-15", "TL-30")
@pytest.mark.parametrize(
    ("stored", "current", "again"),
    [("safe", "safe", True), ("safe", "never", False), ("never", "safe", False)],
)
async def test_recovery_runs_again_only_when_safe_twice_over(
    engine: Engine, stored: Any, current: Any, again: bool
) -> None:
    gate = Gate()
    seen: list[tuple[int, str, Any]] = []

    async def note(args: Mapping[str, Any], ctx: ToolContext) -> None:
        seen.append((ctx.invocation_id, ctx.call_id, await ctx.out.memo.get("paid")))
        await ctx.out.memo.set("paid", {"yes": True})
        ctx.out.write("ran")
        if len(seen) == 1:
            await gate()

    first = Probe("t", replay=stored, body=note)
    root = await engine.root([say(call("t", {"n": 1}, call_id="c1"))], tools=[first])
    await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    await engine.kill()
    second = Probe("t", replay=current, body=note)
    root = await engine.root([say("end")], tools=[second])
    await root.drive()
    (task,) = await tasks_of(root, "tool")
    assert seen[0] == (task.id, "c1", None)
    if again:
        assert seen[1:] == [(task.id, "c1", {"yes": True})], "same id, arguments and memos"
        assert second.runs == first.runs == [{"n": 1}]
        assert tool(task).attempt == 2
    else:
        assert seen[1:] == []
    assert await outcomes(root) == ["finished" if again else "interrupted"]


@pytest.mark.spec("TL-16", "BB-01", "BB-02")
async def test_an_interrupted_call_shows_its_checkpoint_and_drops_control(engine: Engine) -> None:
    gate = Gate()

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        ctx.out.write("line 1\n")
        ctx.out.add_tools(["b"])
        ctx.out.terminate()
        ctx.out.handoff("x")
        await ctx.out.progress({"rows": 1})
        await ctx.out.progress({"rows": 2})
        await gate()

    root = await engine.root([say(call("a"))], tools=[Probe("a", body=body), Probe("b")])
    await root.set_value(ACTIVE_TOOLS, ["a"])
    await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    await engine.kill()
    root = await engine.root([say("end")], tools=[Probe("a"), Probe("b")])
    await root.drive()
    (entry,) = await results(root)
    message = result_message(entry)
    assert (entry.meta.outcome, message.is_error) == ("interrupted", True)
    assert message.checkpoint is not UNSET
    assert msgspec.json.decode(message.checkpoint) == {"rows": 2}
    assert '{"rows":2}' in result_text(entry)
    (task,) = await tasks_of(root, "tool")
    state = tool(task)
    assert (state.terminate, state.handoff) == (False, UNSET)
    assert await root.get_value(ACTIVE_TOOLS, []) == ["a"]
    assert len(engine.models.requests) == 1, "the run goes on"


@pytest.mark.spec("BB-01", "FM-07")
async def test_a_kill_in_the_middle_of_an_exchange_leaves_a_valid_request(engine: Engine) -> None:
    gate, third = Gate(), Probe("c")
    tools = [Probe("a"), Probe("b", gate=gate), third]
    root = await engine.root(
        [say(call("a"), call("b"), call("c"))], tools=tools, settings={"tool_order": "sequential"}
    )
    await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    await engine.kill()
    root = await engine.root([say("one"), say("two")], tools=tools)
    await root.accept("go on")
    assert third.runs == [], "nothing runs before somebody drives"
    await root.drive()
    assert await outcomes(root) == ["finished", "interrupted", "finished"]
    assert [len(one.runs) for one in tools] == [1, 1, 1]
    sent = engine.models.requests[0].messages
    names = [message.tool_name for message in sent if isinstance(message, ToolResultMessage)]
    assert names == ["a", "b", "c"]


@pytest.mark.spec("TL-20")
@pytest.mark.parametrize("retain", ["head", "tail"])
async def test_output_is_capped_at_one_end_and_says_so(engine: Engine, retain: Any) -> None:
    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        for at in range(100):
            ctx.out.write(f"{at:03} é\n")

    root = await engine.root(
        [say(call("t")), say("end")],
        tools=[Probe("t", body=body, output=Output(retain=retain, bytes_max=100))],
    )
    await root.prompt("hi")
    (entry,) = await results(root)
    text = result_text(entry)
    assert text.endswith("\n[truncated: 700 bytes total]")
    kept = text.removesuffix("\n[truncated: 700 bytes total]")
    assert len(kept.encode()) <= 100
    assert ("000" in kept) == (retain == "head")
    assert ("099" in kept) == (retain == "tail")
    cut = result_message(entry).cut
    assert cut is not UNSET
    assert (cut.bytes, cut.kept) == (700, retain)
    assert Output().bytes_max == 64 * 1024
    assert Output().retain == "tail"


@pytest.mark.spec("TL-21", "PV-20")
async def test_details_are_replaced_and_images_are_judged(engine: Engine) -> None:
    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        ctx.out.details({"n": 1})
        ctx.out.details({"n": 2, "bad": float("nan")})
        ctx.out.image(image_part(PIXEL))
        ctx.out.image(ImagePart(mime="image/png", sha256="0", data="bm8gaW1hZ2U="))

    root = await engine.root([say(call("t")), say("end")], tools=[Probe("t", body=body)])
    await root.prompt("hi")
    (entry,) = await results(root)
    message = result_message(entry)
    assert message.details is not UNSET
    assert msgspec.json.decode(message.details) == {"n": 2, "bad": "NaN"}
    _, good, bad = message.content
    assert isinstance(good, ImagePart)
    assert isinstance(bad, TextPart)
    assert "left out" in bad.text


@pytest.mark.spec("PV-20")
async def test_images_of_an_input_are_judged_before_they_are_stored(engine: Engine) -> None:
    root = await engine.root([say("seen")])
    bad = ImagePart(mime="image/png", sha256="0", data="bm8gaW1hZ2U=")
    message = UserMessage(content=(TextPart(text="look"), image_part(PIXEL), bad))
    await root.prompt(message)
    (sent,) = engine.models.requests[0].messages
    look, good, note = sent.content
    assert isinstance(look, TextPart)
    assert isinstance(good, ImagePart)
    assert isinstance(note, TextPart)
    assert "left out" in note.text


@pytest.mark.spec("VD-16", "PV-08", "FM-02")
async def test_what_tools_and_models_say_is_repaired_and_counted(engine: Engine) -> None:
    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        ctx.out.write("a\ud800b\x00")
        ctx.out.details({"k\x00": "\udc00"})
        raise ValueError("\ud800")

    root = await engine.root(
        [say("x\ud800\x00", call("t", {"a\x00": "b"})), say("end\ud800")],
        tools=[Probe("t", body=body)],
    )
    result = await root.prompt("hi\ud800")
    assert result.text == "end\ufffd"
    counts = [
        (entry.kind, entry.meta.repaired)
        for entry in await root.entries()
        if entry.meta.repaired is not UNSET
    ]
    assert [(kind, one.surrogates, one.nul) for kind, one in counts if one is not UNSET] == [
        ("user", 1, 0),
        ("assistant", 1, 2),
        ("tool_result", 3, 2),
        ("assistant", 1, 0),
    ]


@pytest.mark.spec("TL-24", "TL-25")
async def test_progress_and_memos_are_durable_and_end_with_the_task(engine: Engine) -> None:
    previews: list[object] = []
    stored: list[int] = []

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        before = engine.storage.last_seq
        await ctx.out.progress({"at": 1})
        stored.append(engine.storage.inner.last_seq - before)
        await ctx.out.memo.set("k", [1])
        assert await ctx.out.memo.get("k") == [1]
        assert await ctx.out.memo.get("other") is None
        with pytest.raises(Rejected):
            await ctx.out.memo.set("k", float("nan"))

    root = await engine.root(
        [say(call("t"), call("t")), say("end")],
        tools=[Probe("t", body=body)],
        settings={"tool_order": "sequential"},
    )
    engine.harness.on_preview(lambda preview: previews.append((preview.kind, preview.payload)))
    await root.prompt("hi")
    assert stored == [1, 1]
    assert previews.count(("progress", {"at": 1})) == 2
    assert await outcomes(root) == ["finished", "finished"]


@pytest.mark.spec("TL-29")
async def test_calls_are_parallel_unless_captured_order_is_sequential(engine: Engine) -> None:
    gates = [Gate(), Gate()]
    tools = [Probe("a", gate=gates[0]), Probe("b", gate=gates[1])]
    root = await engine.root([say(call("a"), call("b")), say("end")], tools=tools)
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gates[1].reached.wait()
    assert len(tools[0].runs) == 1
    for gate in gates:
        gate.open()
    await driving
    calls = await tasks_of(root, "tool")
    (join,) = await tasks_of(root, "post_tools")
    assert [task.after for task in calls] == [(), ()]
    assert join.after == tuple(task.id for task in calls)


@pytest.mark.spec("TL-29")
async def test_a_held_predecessor_keeps_its_successors_back(engine: Engine) -> None:
    gate = Gate()
    tools = [Probe("a", gate=gate), Probe("b")]
    root = await engine.root(
        [say(call("a"), call("b"), call("b")), say("end")],
        tools=tools,
        settings={"tool_order": "sequential"},
    )
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    calls = await tasks_of(root, "tool")
    assert [task.after for task in calls] == [(), (calls[0].id,), (calls[1].id,)]
    for _ in range(50):
        await asyncio.sleep(0)
    assert tools[1].runs == []
    gate.open()
    await driving
    assert len(tools[1].runs) == 2


@pytest.mark.spec("TL-31")
async def test_a_sink_takes_nothing_after_the_call_settled(engine: Engine) -> None:
    probe = Probe("t")
    root = await engine.root([say(call("t")), say("end")], tools=[probe])
    previews: list[object] = []
    await root.prompt("hi")
    engine.harness.on_preview(previews.append)
    (context,) = probe.contexts
    head = engine.line.last_seq
    out = context.out
    for late in (
        lambda: out.write("late"),
        lambda: out.details({}),
        lambda: out.image(image_part(PIXEL)),
        out.error,
        lambda: out.usage(USED),
        lambda: out.handoff("x"),
        lambda: out.add_tools(["t"]),
        out.terminate,
    ):
        with pytest.raises(Closed):
            late()
    with pytest.raises(Closed):
        await out.progress({})
    with pytest.raises(Closed):
        await out.memo.set("k", 1)
    assert engine.line.last_seq == head
    assert previews == []


@pytest.mark.spec("TL-32")
async def test_a_raw_tool_that_answers_something_is_an_error_result(engine: Engine) -> None:
    async def body(args: Mapping[str, Any], ctx: ToolContext) -> object:
        return {"unexpected": 1}

    root = await engine.root([say(call("t")), say("end")], tools=[Probe("t", body=body)])
    await root.prompt("hi")
    (entry,) = await results(root)
    assert entry.meta.is_error is True
    assert "dict" in result_text(entry)


@pytest.mark.spec("TL-34")
async def test_resources_reach_tools_as_they_are_and_are_never_stored(engine: Engine) -> None:
    class Secret:
        def __repr__(self) -> str:
            return "hunter2-in-repr"

    secret, seen = Secret(), []

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        seen.append(ctx.resources["vault"])
        with pytest.raises(TypeError):
            ctx.resources["vault"] = 1  # pyright: ignore[reportIndexIssue]
        ctx.out.write(str(ctx.resources["missing"]))

    root = await engine.root(
        [say(call("t")), say("end")],
        tools=[Probe("t", body=body)],
        resources={"vault": secret},
    )
    await root.prompt("hi")
    assert seen == [secret]
    (entry,) = await results(root)
    assert entry.meta.is_error is True
    assert "missing" in result_text(entry)
    everything = b"".join(msgspec.json.encode(commit) for commit in await engine.commits())
    assert b"hunter2" not in everything
    assert "hunter2" not in repr(engine.harness)


@pytest.mark.spec("AQ-09")
async def test_flags_let_a_call_run_that_would_ask_and_never_one_that_is_denied(
    engine: Engine,
) -> None:
    asks, denies = Probe("asks", approval="ask"), Probe("denies", approval="deny")
    replies = [say(call("asks"), call("denies")), say("end")]
    flags = Permissions(yes=True, subject="cli:somebody")
    root = await engine.root(replies, tools=[asks, denies], permissions=flags)
    await root.prompt("hi")
    assert [len(asks.runs), len(denies.runs)] == [1, 0]
    decided = [task.state.get("allowedBy") for task in await tasks_of(root, "tool")]
    assert decided == ["cli:somebody --yes", None]


@pytest.mark.spec("IV-20", "TL-11")
async def test_a_tool_settles_only_itself(engine: Engine) -> None:
    root = await engine.root(
        [say(call("a"), call("b")), say("end")], tools=[Probe("a"), Probe("b")]
    )
    await root.prompt("hi")
    for task in await tasks_of(root, "tool"):
        commit = await settlement(engine, task.id)
        touched = {w.task_id for w in commit.writes if isinstance(w, SettleTask | PatchTask)}
        assert touched == {task.id}
        assert not any(type(w).__name__ in ("InsertTask", "ResetContext") for w in commit.writes)
