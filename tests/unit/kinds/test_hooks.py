"""Six points where a host's code edits, decides or observes, and what its faults mean (HK)."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

import perdure
from perdure.drive.context import TaskContext
from perdure.drive.signals import SignalOwner
from perdure.errors import Rejected
from perdure.harness.approvals import list_approvals
from perdure.harness.conversation import Conversation
from perdure.kinds.hook_points import before_collapse
from perdure.kinds.hooks import (
    POINTS,
    AfterTool,
    Allow,
    BeforeCollapse,
    BeforeRequest,
    BeforeTool,
    Block,
    Continue,
    Decline,
    Hold,
    Hooks,
    OnYield,
    Pass,
    ToolResultPatch,
)
from perdure.kinds.inputs import user_meta
from perdure.kinds.reader import ConversationView
from perdure.providers.script import call, say
from perdure.records.messages import TextPart, UserPayload, text_message
from perdure.records.models import ToolSpec
from perdure.records.seqs import Seq
from perdure.toolkits.define import Output
from tests.engine import Engine, Gate, Probe
from tests.unit.kinds.turns import (
    advance_until,
    answer_message,
    failing,
    generations,
    kinds,
    outcomes,
    result_message,
    result_text,
    results,
    tasks_of,
)

CALLS = [say(call("act", {"n": [1]})), say("end")]


def hooks(**handlers: Any) -> Hooks:
    """Register one handler, or several in order, at each named point."""
    made = Hooks()
    for point, given in handlers.items():
        for handler in given if isinstance(given, list) else [given]:
            register: Any = made.on
            register(point, handler)
    return made


def texts(request: Any) -> list[str]:
    parts = [part for message in request.messages for part in message.content]
    return [part.text for part in parts if isinstance(part, TextPart)]


async def called(engine: Engine, tool: Probe | None = None, **handlers: Any) -> Conversation:
    """Drive one turn with one call and these handlers."""
    root = await engine.root(CALLS, tools=[tool or Probe("act")], hooks=hooks(**handlers))
    await root.prompt("hi")
    return root


@pytest.mark.spec("HK-01")
def test_the_points_are_exactly_six() -> None:
    assert set(POINTS) == {
        "before_request", "after_response", "before_tool", "after_tool", "on_yield",
        "before_collapse",
    }  # fmt: skip
    register: Any = Hooks().on
    for point, handler in (("before_lunch", print), ("before_tool", 3)):
        with pytest.raises(Rejected) as refused:
            register(point, handler)
        assert repr(point if point == "before_lunch" else handler) in refused.value.message


@pytest.mark.spec("HK-02")
async def test_handlers_run_by_priority_until_they_are_unregistered(engine: Engine) -> None:
    ran: list[str] = []
    made = Hooks()
    made.on("before_tool", lambda _: ran.append("late"), priority=5)
    away = made.on("before_tool", lambda _: ran.append("first"), priority=-1)
    made.on("before_tool", lambda _: ran.append("one"))
    made.on("before_tool", lambda _: ran.append("two"))
    root = await engine.root([*CALLS, *CALLS], tools=[Probe("act")], hooks=made)
    await root.prompt("hi")
    assert ran == ["first", "one", "two", "late"]
    away()
    away()
    ran.clear()
    await root.prompt("again")
    assert ran == ["one", "two", "late"]


@pytest.mark.spec("HK-03", "HK-11", "TL-03")
async def test_request_edits_apply_in_order_for_this_attempt_only(engine: Engine) -> None:
    seen: list[BeforeRequest] = []

    def add(given: BeforeRequest) -> Any:
        seen.append(given)
        messages = [*given.request.messages, text_message(f"edit {len(seen)}")]
        return msgspec.structs.replace(given.request, messages=messages, system_prompt="be brief")

    async def cool(given: BeforeRequest) -> Any:
        assert given.request.system_prompt == "be brief"
        options = {**given.request.stream_options, "temperature": 0}
        return msgspec.structs.replace(given.request, stream_options=options, tools=())

    replies = [failing("overloaded"), say(call("act")), say("end")]
    root = await engine.root(replies, tools=[Probe("act")], hooks=hooks(before_request=[add, cool]))
    prompting = engine.begin(root.prompt("hi"))
    await advance_until(engine, prompting, step_ms=500)
    first, retried, last = engine.models.requests
    assert [texts(one)[-1] for one in (first, retried, last)] == ["edit 1", "edit 2", "edit 3"]
    assert texts(retried) == ["hi", "edit 2"]
    assert bytes(first.options) == b'{"temperature":0}'
    assert (first.system, first.tools) == ("be brief", ())
    assert [one.request.tools[0].name for one in seen] == ["act"] * 3
    assert (seen[0].generation.kind, seen[0].conv.id) == ("generation", root.id)
    assert await outcomes(root) == ["notStarted"]
    assert await kinds(root) == ["user", "assistant", "tool_result", "assistant"]


@pytest.mark.spec("HK-07", "HK-03")
@pytest.mark.parametrize("fault", ["raises", "not a request", "no message", "odd message", "odd"])
async def test_a_faulty_request_hook_fails_the_generation(engine: Engine, fault: str) -> None:
    def handler(given: BeforeRequest) -> Any:
        replaced: dict[str, Any] = {
            "no message": {"messages": []},
            "odd message": {"messages": ["hi"]},
            "odd": {"stream_options": {"x": object()}},
        }
        if fault == "raises":
            raise ValueError("no such luck")
        return (
            "x"
            if fault not in replaced
            else msgspec.structs.replace(given.request, **replaced[fault])
        )

    root = await engine.root(CALLS, hooks=hooks(before_request=handler))
    result = await root.prompt("hi")
    assert result.state == "failed"
    assert result.error
    assert result.error.code == "hook"
    assert engine.models.requests == []
    if fault == "raises":
        assert "no such luck" in result.error.message
        assert len(engine.errors) == 1


@pytest.mark.spec("HK-08", "HK-09")
async def test_what_a_request_hook_commits_is_in_the_next_request(engine: Engine) -> None:
    noted: list[int] = []

    async def note(given: BeforeRequest) -> None:
        if not noted:
            noted.append(1)
            message = text_message("noted", 1)
            payload = UserPayload(messages=(message,))
            meta = user_meta((message,), 1)
            await engine.harness.command(
                lambda tx: tx.insert_entry(given.conv.id, "user", meta, payload)
            )

    root = await engine.root([say("one"), say("two")], hooks=hooks(before_request=note))
    await root.prompt("hi")
    await root.prompt("more")
    first, second = engine.models.requests
    assert texts(first) == ["hi"]
    assert "noted" in texts(second)


@pytest.mark.spec("HK-06", "HK-07", "BB-52")
async def test_all_observers_hear_of_a_stored_reply_and_their_faults_change_nothing(
    engine: Engine,
) -> None:
    heard: list[Any] = []
    last = asyncio.Event()

    async def stored(given: Any) -> None:
        heard.append((given.generation.status, given.message.content[0].text))
        entries = await (await engine.harness.root()).entries()
        assert answer_message(entries[-1]).content == given.message.content

    async def fails(given: Any) -> None:
        raise RuntimeError("observer")

    async def also(given: Any) -> None:
        heard.append("also")
        last.set()

    root = await engine.root([say("end")], hooks=hooks(after_response=[stored, fails, also]))
    result = await root.prompt("hi")
    await last.wait()
    assert result.text == "end"
    assert heard == [("done", "end"), "also"]
    assert [str(error) for error in engine.errors] == ["observer"]


@pytest.mark.spec("HK-04", "TL-05", "HK-11")
async def test_the_first_block_wins_and_the_tool_never_runs(engine: Engine) -> None:
    seen: list[BeforeTool] = []
    probe = Probe("act")

    def allow(given: BeforeTool) -> Allow:
        seen.append(given)
        given.args["n"].append(2)
        return Allow()

    root = await called(
        engine,
        probe,
        before_tool=[allow, lambda _: Block("not on a Sunday"), lambda _: seen.append],
    )
    assert probe.runs == []
    (entry,) = await results(root)
    assert (entry.meta.outcome, result_text(entry)) == ("denied", "not on a Sunday")
    assert len(seen) == 1
    assert (seen[0].call.kind, seen[0].call.state["name"]) == ("tool", "act")


@pytest.mark.spec("HK-11")
async def test_a_handler_cannot_change_arguments(engine: Engine) -> None:
    probe = Probe("act")

    def change(given: BeforeTool) -> None:
        given.args["n"].append(2)

    await called(engine, probe, before_tool=change)
    assert probe.runs == [{"n": [1]}]


@pytest.mark.spec("HK-04", "TL-06", "AP-04")
async def test_a_hook_holds_with_its_own_prompt_and_is_not_asked_again(engine: Engine) -> None:
    probe = Probe("act")
    asked: list[int] = []

    def hold(_: BeforeTool) -> Hold:
        asked.append(1)
        return Hold("Really?")

    root = await engine.root(
        CALLS, tools=[probe], hooks=hooks(before_tool=[hold, lambda _: Block("later")])
    )
    await root.accept("hi")
    await root.drive()
    (view,) = await list_approvals(engine.storage.inner)
    assert (view.prompt, view.args_text) == ("Really?", '{"n":[1]}')
    await engine.harness.decide_approval(view.id, "grant")
    await root.drive()
    assert (len(asked), len(probe.runs)) == (1, 1)


@pytest.mark.spec("AQ-04", "BB-31")
async def test_nobody_is_asked_about_a_call_that_cannot_run(engine: Engine) -> None:
    @perdure.tool(approval="ask")
    def pay(amount: int) -> str:
        """Pay."""
        return str(amount)

    @perdure.tool(approval="deny")
    def never() -> str:
        """Never."""
        return ""

    def rules(given: BeforeTool) -> Any:
        return Block("too much") if given.args.get("amount") == 9 else Hold()

    calls = [
        call("pay", {"amount": "x"}), call("nobody"), call("pay", {"amount": 9}), call("never"),
        call("pay", args_text='{"amount":1}{'),
    ]  # fmt: skip
    root = await engine.root(
        [say(*calls), say("end")], tools=[pay, never], hooks=hooks(before_tool=rules)
    )
    await root.prompt("hi")
    assert await list_approvals(engine.storage.inner, waiting_only=False) == []
    assert await outcomes(root) == ["notStarted", "notStarted", "denied", "denied", "notStarted"]


@pytest.mark.spec("HK-07", "BB-52")
@pytest.mark.parametrize("fault", ["raises", "odd", "reenters"])
async def test_a_faulty_tool_hook_blocks_and_says_why(engine: Engine, fault: str) -> None:
    probe = Probe("act")

    async def handler(_: BeforeTool) -> Any:
        if fault == "reenters":
            await (await engine.harness.root()).prompt("from inside")
        if fault == "raises":
            raise KeyError("missing")
        return "yes"

    root = await called(engine, probe, before_tool=handler)
    (entry,) = await results(root)
    assert entry.meta.outcome == "denied"
    said = {"raises": "missing", "odd": "str means nothing", "reenters": "cannot wait for"}
    assert said[fault] in result_text(entry)
    assert probe.runs == []


@pytest.mark.spec("HK-07", "BB-52")
@pytest.mark.parametrize("point", ["before_request", "before_tool", "after_tool", "on_yield"])
async def test_a_hung_hook_is_left_after_its_time_limit(memory_engine: Engine, point: str) -> None:
    engine = memory_engine
    cancelled = asyncio.Event()
    hanging = asyncio.Event()

    async def hangs(_: Any) -> Any:
        hanging.set()
        try:
            await Gate()()
        except asyncio.CancelledError:
            cancelled.set()
            return Continue("ignored")

    probe = Probe("act")
    root = await engine.root(CALLS, tools=[probe], hooks=hooks(**{point: hangs}), hook_seconds=7)
    prompting = engine.begin(root.prompt("hi"))
    await hanging.wait()
    await engine.clock.until_asleep()
    engine.clock.advance(6_999)
    await asyncio.sleep(0)
    assert not cancelled.is_set()
    engine.clock.advance(1)
    result = await prompting
    await cancelled.wait()
    assert any("7 s" in str(error) for error in engine.errors)
    assert result.state == ("failed" if point == "before_request" else "answered")
    assert len(probe.runs) == (point in ("after_tool", "on_yield"))
    assert await outcomes(root) == {
        "before_request": [], "before_tool": ["denied"], "after_tool": ["finished"],
        "on_yield": ["finished"],
    }[point]  # fmt: skip


@pytest.mark.spec("HK-06", "HK-11")
async def test_result_patches_apply_in_order_and_change_no_control(engine: Engine) -> None:
    seen: list[AfterTool] = []

    async def body(args: Mapping[str, Any], ctx: Any) -> None:
        ctx.out.write("secret plans")
        ctx.out.details({"n": 1})
        ctx.out.terminate()

    def redact(given: AfterTool) -> ToolResultPatch:
        seen.append(given)
        return ToolResultPatch(content="plans", is_error=True)

    def more(given: AfterTool) -> ToolResultPatch:
        seen.append(given)
        return ToolResultPatch(details={"n": 2})

    root = await engine.root(
        CALLS, tools=[Probe("act", body=body)], hooks=hooks(after_tool=[redact, more])
    )
    result = await root.prompt("hi")
    assert result.state == "stopped"
    (entry,) = await results(root)
    message = result_message(entry)
    assert (result_text(entry), message.is_error, entry.meta.outcome) == ("plans", True, "finished")
    assert message.details is not UNSET
    assert msgspec.json.decode(message.details) == {"n": 2}
    assert [one.result.details for one in seen] == [{"n": 1}, {"n": 1}]
    assert seen[1].result.content == (TextPart(text="plans"),)
    (task,) = await tasks_of(root, "tool")
    assert task.state.get("terminate") is True
    assert "isError" not in task.state


@pytest.mark.spec("HK-06")
async def test_the_output_cap_holds_for_what_a_hook_writes(engine: Engine) -> None:
    root = await called(
        engine,
        Probe("act", output=Output(bytes_max=10)),
        after_tool=lambda _: ToolResultPatch(content="x" * 50),
    )
    (entry,) = await results(root)
    assert result_text(entry) == "x" * 10 + "\n[truncated: 50 bytes total]"
    cut = result_message(entry).cut
    assert cut
    assert cut.bytes == 50


@pytest.mark.spec("HK-07", "BB-52")
async def test_a_faulty_result_hook_leaves_the_true_result_and_no_second_run(
    engine: Engine,
) -> None:
    probe = Probe("act", replay="safe")

    def raises(_: AfterTool) -> ToolResultPatch:
        raise ValueError("oh")

    odd: Any = ToolResultPatch(content=[3])  # type: ignore[list-item]
    root = await called(engine, probe, after_tool=[raises, lambda _: odd])
    (entry,) = await results(root)
    assert (entry.meta.outcome, entry.meta.is_error) == ("finished", False)
    assert result_text(entry) == "act ran"
    await engine.close()
    root = await engine.root([say("x")], tools=[probe])
    await root.drive()
    assert len(probe.runs) == 1
    assert len(engine.errors) == 2


@pytest.mark.spec("HK-06", "AP-05")
async def test_result_hooks_hear_only_of_what_ran(engine: Engine) -> None:
    heard: list[AfterTool] = []
    root = await engine.root(
        [say(call("deny"), call("nobody")), say("end")],
        tools=[Probe("deny", approval="deny")],
        hooks=hooks(after_tool=heard.append),
    )
    await root.prompt("hi")
    assert heard == []


@pytest.mark.spec("HK-05", "GN-14", "HK-11")
async def test_the_first_continue_goes_on_with_the_same_input(engine: Engine) -> None:
    seen: list[OnYield] = []

    def once(given: OnYield) -> Any:
        seen.append(given)
        return Continue("and the tests?") if len(seen) == 1 else Pass()

    replies = [say("done"), say("tests too"), say("end at last")]
    root = await engine.root(
        replies,
        hooks=hooks(on_yield=[lambda _: None, once, lambda _: Continue("second")]),
        yields_max=2,
    )
    result = await root.prompt("hi")
    assert result.text == "end at last"
    first = seen[0]
    assert [part.text for part in first.message.content] == ["done"]  # type: ignore[union-attr]
    assert (first.conv.id, first.generation.kind) == (root.id, "generation")
    assert texts(engine.models.requests[1])[-1] == "and the tests?"
    states = [task.state for task in await generations(root)]
    assert [state.get("yields", 0) for state in states] == [0, 1, 2]
    assert all(state["inputs"] == [result.input_id] for state in states)
    entry = [one for one in await root.entries() if one.kind == "user"][1]
    assert entry.written_by == (await generations(root))[0].id
    assert entry.meta.mode is UNSET


@pytest.mark.spec("GN-14")
async def test_at_the_cap_on_yield_is_not_asked(engine: Engine) -> None:
    asked: list[int] = []

    def ever(_: OnYield) -> Continue:
        asked.append(1)
        return Continue("more")

    root = await engine.root([say("again")] * 4, hooks=hooks(on_yield=ever), yields_max=3)
    assert (await root.prompt("hi")).state == "answered"
    assert len(asked) == 3
    assert len(engine.models.requests) == 4


@pytest.mark.spec("GN-14", "HK-12")
async def test_on_yield_gives_way_to_what_is_queued(engine: Engine) -> None:
    gate = Gate()
    asked: list[int] = []

    async def slow(_: OnYield) -> Continue | Pass:
        asked.append(1)
        await gate()
        return Continue("stale") if len(asked) == 1 else Pass()

    root = await engine.root([say("one"), say("two")], hooks=hooks(on_yield=slow))
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    later = await root.follow_up("queued meanwhile")
    await root.append_message("only a note")
    gate.open()
    await driving
    assert "stale" not in [text for one in engine.models.requests for text in texts(one)]
    assert (await root.result(later.input_id)).state == "answered"
    assert [text for text in texts(engine.models.requests[1]) if text != "one"] == [
        "hi", "queued meanwhile", "only a note",
    ]  # fmt: skip
    assert [len(asked), len(engine.models.requests)] == [2, 2]


@pytest.mark.spec("HK-07")
async def test_a_faulty_yield_hook_passes(engine: Engine) -> None:
    def raises(_: OnYield) -> Pass:
        raise ValueError("oh")

    odd: Any = Continue([])
    root = await engine.root([say("end")], hooks=hooks(on_yield=[raises, lambda _: odd]))
    assert (await root.prompt("hi")).text == "end"
    assert len(engine.errors) == 2


@pytest.mark.spec("HK-05", "HK-07", "HK-11")
async def test_collapse_hooks_merge_their_metas_until_one_declines(memory_engine: Engine) -> None:
    engine = memory_engine
    seen: list[BeforeCollapse] = []

    def raises(_: BeforeCollapse) -> Allow:
        raise ValueError("oh")

    def meta(**facts: Any) -> Any:
        def handler(given: BeforeCollapse) -> Allow:
            seen.append(given)
            return Allow(meta=facts)

        return handler

    root = await engine.root([say("end")])
    await root.prompt("hi")
    (task,) = await generations(root)
    services = engine.harness._core.services
    for handlers, merged in (
        ([meta(a=1, b=1), lambda _: None, meta(b=2)], {"a": 1, "b": 2}),
        ([], {}),
        ([lambda _: Decline(), meta(a=1)], None),
        ([meta(a=1), raises], None),
        ([meta(a=object())], None),
    ):
        seen.clear()
        ctx = TaskContext(task, SignalOwner().signal, line=engine.line, clock=engine.clock)
        given = BeforeCollapse(
            conv=ConversationView(engine.line, root.id), through=Seq(3), prefix_version=0
        )
        having = msgspec.structs.replace(services, hooks=hooks(before_collapse=handlers))
        assert await before_collapse(ctx, having, given) == merged
        if merged is None and not isinstance(handlers[0](given), Allow):
            assert seen == []


@pytest.mark.spec("HK-10")
async def test_after_a_restart_only_hooks_registered_again_act(engine: Engine) -> None:
    root = await engine.root(CALLS, tools=[Probe("act")], hooks=hooks(before_tool=lambda _: Hold()))
    await root.accept("hi")
    await root.drive()
    (view,) = await list_approvals(engine.storage.inner)
    await engine.kill()
    probe = Probe("act")
    root = await engine.root([say("end"), *CALLS], tools=[probe])
    await engine.harness.decide_approval(view.id, "grant")
    await root.drive()
    await root.prompt("again")
    assert len(probe.runs) == 2


@pytest.mark.spec("HK-12")
async def test_a_decision_that_an_abort_overtook_is_not_committed(engine: Engine) -> None:
    gate = Gate()

    async def slow(_: BeforeTool) -> Block:
        await gate()
        return Block("stale")

    root = await engine.root(CALLS, tools=[Probe("act")], hooks=hooks(before_tool=slow))
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    gate.open()
    await driving
    (entry,) = await results(root)
    assert entry.meta.outcome == "notStarted"
    assert "stale" not in result_text(entry)


@pytest.mark.spec("HK-13", "LN-13")
async def test_a_listener_may_not_command(engine: Engine) -> None:
    refused: list[str] = []

    def listener(_: Any) -> None:
        try:
            engine.harness.command(lambda tx: None).send(None)
        except Rejected as error:
            refused.append(error.code)

    root = await engine.root([say("end")])
    engine.harness.on_commit(listener)
    assert (await root.prompt("hi")).text == "end"
    assert set(refused) <= {"nested_command"}


async def test_hooks_offer_what_a_tool_spec_says(engine: Engine) -> None:
    extra = ToolSpec(name="act", description="Do it well.", parameters={"type": "object"})

    def describe(given: BeforeRequest) -> Any:
        return msgspec.structs.replace(given.request, tools=(extra,))

    root = await called(engine, before_request=describe)
    assert engine.models.requests[0].tools == (extra,)
    assert await outcomes(root) == ["finished"]
