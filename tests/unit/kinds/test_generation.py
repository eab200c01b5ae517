"""One answer of a model: intent, request, outcome, each in the commit it belongs to (GN)."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from perdure.errors import Rejected
from perdure.kinds.generation import Generation
from perdure.line.command import Command
from perdure.providers.script import call, fail, say, think
from perdure.records.addresses import (
    ACTIVE_TOOLS,
    MODEL,
    RETRY,
    STREAM_OPTIONS,
    THINKING,
    TOOL_ORDER,
)
from perdure.records.codec import decode_json
from perdure.records.messages import UserMessage
from perdure.records.models import ModelRequest, parse_model
from perdure.records.tasks import Role
from perdure.records.writes import (
    AppendContext,
    AppendList,
    InsertEntry,
    InsertTask,
    RetireScope,
    SettleTask,
)
from tests.engine import Engine, Gate, Probe, task_moves
from tests.unit.drive.chores import mark
from tests.unit.kinds.turns import (
    USED,
    failing,
    generation,
    generations,
    kinds,
    outcomes,
    results,
    settlement,
    usage_of,
)

START, INFLIGHT, TERMINAL = Role.START, Role.INFLIGHT, Role.TERMINAL


@pytest.mark.spec("GN-02", "GN-03")
def test_statuses_and_moves_are_exactly_these() -> None:
    facts = Generation.facts
    assert dict(facts.roles) == {
        "pending": START,
        "retry_wait": START,
        "deferred": START,
        "streaming": INFLIGHT,
        "polling": INFLIGHT,
        "done": TERMINAL,
        "failed": TERMINAL,
        "aborted": TERMINAL,
    }
    ends = {"done", "failed", "aborted"}
    assert {status: set(moves) for status, moves in facts.transitions.items()} == {
        "pending": {"streaming", "failed", "aborted"},
        "retry_wait": {"streaming", "failed", "aborted"},
        "streaming": {"retry_wait", "deferred", *ends},
        "deferred": {"polling", "aborted"},
        "polling": {"deferred", "retry_wait", *ends},
    }


@pytest.mark.spec("GN-03")
async def test_any_other_move_is_refused(engine: Engine) -> None:
    root = await engine.root()
    await root.accept("hi")
    (task,) = await generations(root)
    for status in ("done", "deferred", "polling", "retry_wait"):

        async def build(tx: Command, status: str = status) -> None:
            live = await tx.task(task.id)
            if status == "done":
                tx.settle(live, status)
            else:
                tx.patch(live, status=status)

        with pytest.raises(Rejected):
            await engine.line.submit(build)


PATHS = (
    (),
    ("streaming",),
    ("streaming", "retry_wait"),
    ("streaming", "deferred"),
    ("streaming", "deferred", "polling"),
)
"""A way to every status that is not terminal."""


@pytest.mark.spec("GN-03")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[-1] if path else "pending")
async def test_every_status_refuses_the_moves_it_has_not(
    memory_engine: Engine, path: tuple[str, ...]
) -> None:
    engine = memory_engine
    root = await engine.root()
    await root.accept("hi")
    (task,) = await generations(root)

    async def move(tx: Command, status: str) -> None:
        live = await tx.task(task.id)
        if Generation.facts.roles[status] is TERMINAL:
            tx.settle(live, status)
        else:
            tx.patch(live, status=status)

    for status in path:
        await engine.line.submit(lambda tx, status=status: move(tx, status))
    now = path[-1] if path else "pending"
    legal = {now, *Generation.facts.transitions[now]}
    for status in set(Generation.facts.roles) - legal:
        with pytest.raises(Rejected):
            await engine.line.submit(lambda tx, status=status: move(tx, status))
    (task,) = await generations(root)
    assert task.status == now


@pytest.mark.spec("GN-01", "GN-15")
async def test_settings_are_captured_when_the_generation_is_created(engine: Engine) -> None:
    gate = Gate()
    tools = [Probe("a"), Probe("b")]
    root = await engine.root([say("one", gates={0: gate}), say("two"), say("three")], tools=tools)
    await root.accept("first")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.set_value(MODEL, parse_model("scripted:second"))
    await root.set_value(THINKING, "high")
    await root.set_value(ACTIVE_TOOLS, ["b"])
    await root.set_value(STREAM_OPTIONS, {"temperature": 0})
    await root.set_value(TOOL_ORDER, "sequential")
    await root.set_value(RETRY, {"maxAttempts": 1, "baseDelayMs": 1, "maxDelayMs": 1})
    await root.follow_up("second")
    gate.open()
    await driving
    one, two = engine.models.requests
    assert (one.model.model_id, one.thinking, [spec.name for spec in one.tools]) == (
        "test",
        "off",
        ["a", "b"],
    )
    assert bytes(one.options) == b"{}"
    assert (two.model.model_id, two.thinking, [spec.name for spec in two.tools]) == (
        "second",
        "high",
        ["b"],
    )
    assert bytes(two.options) == b'{"temperature":0}'
    first, second = await generations(root)
    assert generation(first).settings != generation(second).settings


@pytest.mark.spec("GN-01")
async def test_captured_settings_survive_a_restart(engine: Engine) -> None:
    root = await engine.root(settings={"thinking": "low"})
    await root.accept("hi")
    await engine.kill()
    root = await engine.root([say("x")], settings={"thinking": "high"}, tools=[Probe("new")])
    await root.drive()
    (request,) = engine.models.requests
    assert (request.thinking, request.tools) == ("low", ())


@pytest.mark.spec("GN-05", "GN-37", "IV-19")
async def test_generations_come_from_acceptance_settlement_and_join_only(engine: Engine) -> None:
    root = await engine.root(
        [say(call("t")), say("one"), say("two")],
        tools=[Probe("t")],
    )
    await root.accept("first")
    await root.follow_up("second")
    await root.drive()
    causes = [
        {type(w).__name__ for w in commit.writes if isinstance(w, InsertEntry | SettleTask)}
        for commit in await engine.commits()
        if any(isinstance(w, InsertTask) and w.kind == "generation" for w in commit.writes)
    ]
    assert causes == [{"InsertEntry"}, {"SettleTask"}, {"InsertEntry", "SettleTask"}]


@pytest.mark.spec("GN-37", "IV-20")
async def test_a_live_generation_or_join_stands_for_an_open_input_at_every_boundary(
    engine: Engine,
) -> None:
    root = await engine.root([say(call("t")), say(call("t")), say("end")], tools=[Probe("t")])
    accepted = await root.accept("hi")
    await root.drive()
    owed: list[int] = []
    for commit in (await engine.commits())[1:-1]:
        live = await root.tasks(live=True, as_of=commit.last_seq)
        owners = [task for task in live if task.kind in ("generation", "post_tools")]
        owed.append(
            sum(accepted.input_id in decode_json(task.state_json)["inputs"] for task in owners)
        )
    assert set(owed) == {1}


@pytest.mark.spec("GN-06", "GN-07", "GN-39", "TK-09", "IV-02")
async def test_the_intent_names_the_main_boundary_before_the_provider_is_asked(
    engine: Engine,
) -> None:
    gate = Gate()
    root = await engine.root(
        [say("x", gates={0: gate})],
        system_prompt="be brief",
        tools=[Probe("t")],
        settings={"thinking": "low"},
    )
    await root.accept("hi")
    (boundary,) = [c.last_seq for c in (await engine.commits())[1:]]
    held = engine.storage.hold(task_moves("streaming"))
    driving = engine.begin(root.drive())
    await held.reached.wait()
    assert engine.models.requests == []
    held.open()
    await gate.reached.wait()
    (task,) = await generations(root)
    assert (task.status, generation(task).request_as_of) == ("streaming", boundary)
    (request,) = engine.models.requests
    assert request == ModelRequest(
        model=parse_model("scripted:test"),
        system="be brief",
        messages=request.messages,
        tools=request.tools,
        thinking="low",
        cache_key=f"{engine.harness.info.id}-{root.id}",
        task_id=task.id,
        attempt=1,
    )
    (message,) = request.messages
    assert isinstance(message, UserMessage)
    gate.open()
    await driving
    (answer,) = [entry for entry in await root.entries() if entry.kind == "assistant"]
    assert answer.meta.request_as_of == boundary


@pytest.mark.spec("GN-08")
@pytest.mark.parametrize("what", ["abort", "close"])
async def test_a_mark_or_close_before_the_call_means_no_call(engine: Engine, what: str) -> None:
    gate = Gate()

    async def prompt() -> str:
        await gate()
        return "late"

    root = await engine.root([say("never")], system_prompt=prompt)
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    if what == "abort":
        await root.abort()
    else:
        engine.begin(engine.harness.close(grace=1))
        for _ in range(20):
            await asyncio.sleep(0)
    gate.open()
    await driving
    assert engine.models.requests == []


@pytest.mark.spec("GN-08", "GN-35")
async def test_a_mark_that_lands_in_the_last_moment_means_no_call(engine: Engine) -> None:
    async def prompt() -> str:
        await mark(engine, *[task.id for task in await root.tasks(live=True)])
        return "nobody signalled yet"

    root = await engine.root([say("never")], system_prompt=prompt)
    await root.accept("hi")
    await root.drive()
    (task,) = await generations(root)
    assert task.status == "aborted"
    assert engine.models.requests == []
    assert await kinds(root) == ["user"]


@pytest.mark.spec("GN-08", "CN-06")
async def test_a_mark_that_nobody_signals_still_means_no_call(engine: Engine) -> None:
    gate = Gate()

    async def prompt() -> str:
        await gate()
        return "the driver is gone"

    root = await engine.root([say("never")], system_prompt=prompt)
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)
    await root.abort()
    gate.open()
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.models.requests == []
    await root.drive()
    (task,) = await generations(root)
    assert (task.status, engine.models.requests) == ("aborted", [])


@pytest.mark.spec("GN-11", "TK-10", "IV-20", "PT-01", "US-01")
async def test_a_response_with_calls_settles_in_one_command(engine: Engine) -> None:
    root = await engine.root(
        [say("let me see", call("a"), call("b"), call("nobody"), usage=USED), say("done")],
        tools=[Probe("a"), Probe("b")],
    )
    await root.prompt("hi")
    first, second = await generations(root)
    commit = await settlement(engine, first.id)
    assert [type(w) for w in commit.writes] == [
        InsertEntry,
        AppendContext,
        InsertTask,
        InsertTask,
        InsertTask,
        InsertTask,
        AppendList,
        SettleTask,
        RetireScope,
    ]
    entry = commit.writes[0]
    assert isinstance(entry, InsertEntry)
    made = [w for w in commit.writes if isinstance(w, InsertTask)]
    assert [w.kind for w in made] == ["tool", "tool", "tool", "post_tools"]
    assert {(w.spawned_by, w.at_entry) for w in made} == {(first.id, entry.seq)}
    assert [w.after for w in made] == [(), (), (), tuple(w.seq for w in made[:3])]
    states = [msgspec.json.decode(w.state_json) for w in made[:3]]
    assert [(s["callIndex"], s["name"], s.get("offered", True)) for s in states] == [
        (0, "a", True),
        (1, "b", True),
        (2, "nobody", False),
    ]
    state = generation(first)
    assert (state.produced, state.calls, state.post_tools) == (
        entry.seq,
        tuple(w.seq for w in made[:3]),
        made[3].seq,
    )
    assert second.status == "done"


@pytest.mark.spec("GN-12", "TL-19")
async def test_calls_of_a_reply_that_was_cut_short_never_run(engine: Engine) -> None:
    tools = [Probe("a"), Probe("b")]
    root = await engine.root([say(call("a"), call("b"), stop="length"), say("sorry")], tools=tools)
    result = await root.prompt("hi")
    assert result.text == "sorry"
    assert [len(one.runs) for one in tools] == [0, 0]
    assert await outcomes(root) == ["notStarted", "notStarted"]
    assert [entry.meta.is_error for entry in await results(root)] == [True, True]


@pytest.mark.spec("GN-13", "GN-15", "TK-10")
async def test_a_final_answer_settles_with_what_follows_in_one_command(engine: Engine) -> None:
    root = await engine.root([say("one", usage=USED), say("two")])
    first_input = await root.accept("first")
    second_input = await root.follow_up("second")
    await root.drive()
    first, second = await generations(root)
    commit = await settlement(engine, first.id)
    names = [type(w).__name__ for w in commit.writes]
    assert names.count("SettleTask") == names.count("InsertTask") == 1
    assert names.count("InsertEntry") == 2, "the answer, and the follow-up placed"
    assert "AppendList" in names
    assert "RetireScope" in names
    assert "PatchConversation" in names
    assert generation(second).inputs == (second_input.input_id,)
    last = await settlement(engine, second.id)
    assert [w for w in last.writes if isinstance(w, InsertTask)] == []
    for accepted, text in ((first_input, "one"), (second_input, "two")):
        assert (await root.result(accepted.input_id)).text == text


@pytest.mark.spec("GN-24", "GN-42")
async def test_an_overflow_that_nothing_can_shrink_fails_with_its_usage(engine: Engine) -> None:
    root = await engine.root([failing("overflow", usage=USED)])
    result = await root.prompt("hi")
    assert result.error is not None
    assert (result.state, result.error.code) == ("failed", "overflow")
    (task,) = await generations(root)
    commit = await settlement(engine, task.id)
    assert [w for w in commit.writes if isinstance(w, AppendList)]
    assert len(await usage_of(engine)) == 1


@pytest.mark.spec("GN-42")
async def test_a_failure_places_writes_and_leaves_the_rest_queued(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([failing("auth", "par", gates={0: gate})])
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    follow = await root.follow_up("and then?")
    await root.append_message("by the way")
    gate.open()
    await driving
    assert (await root.result(follow.input_id)).state == "queued"
    state = await root.state()
    assert [item.kind for item in state.inbox] == ["followUp"]
    assert (await kinds(root))[-1] == "user", "the write is on the transcript"
    assert len(await generations(root)) == 1


@pytest.mark.spec("GN-41")
@pytest.mark.parametrize("how", ["text", "function", "async"])
async def test_the_system_prompt_is_resolved_for_each_request(engine: Engine, how: str) -> None:
    asked: list[int] = []

    def plain() -> str:
        asked.append(1)
        return f"prompt {len(asked)}"

    async def later() -> str:
        await asyncio.sleep(0)
        return plain()

    prompts: dict[str, Any] = {"text": "prompt 1", "function": plain, "async": later}
    root = await engine.root(
        [say(call("t")), say("done")], tools=[Probe("t")], system_prompt=prompts[how]
    )
    await root.prompt("hi")
    seen = [request.system for request in engine.models.requests]
    assert seen == (["prompt 1"] * 2 if how == "text" else ["prompt 1", "prompt 2"])
    stored = b"".join(msgspec.json.encode(c) for c in await engine.commits())
    assert b"prompt 1" not in stored


@pytest.mark.spec("GN-43")
async def test_no_request_starts_while_a_call_is_unresolved(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root(
        [say(call("a"), call("b")), say("done")], tools=[Probe("a"), Probe("b", gate=gate)]
    )
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.follow_up("quick")
    await engine.storage.until(task_moves("done"))
    assert len(engine.models.requests) == 1
    assert len(await generations(root)) == 1
    gate.open()
    await driving


@pytest.mark.spec("GN-10")
async def test_a_close_leaves_the_generation_as_it_is(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("x", gates={0: gate})])
    await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    await engine.harness.close(grace=1)
    root = await engine.root([])
    (task,) = await generations(root)
    assert (task.status, task.abort_requested) == ("streaming", UNSET)


@pytest.mark.spec("GN-45")
async def test_a_failure_with_content_keeps_one_entry_and_answers_its_calls(
    engine: Engine,
) -> None:
    root = await engine.root(
        [fail("auth", "half", think("hm"), call("done"), at=10), say("never")],
        tools=[Probe("done")],
    )
    result = await root.prompt("hi")
    assert result.state == "failed"
    assert result.partial is not None
    assert result.partial.stop == "error"
    entries = await root.entries()
    assert [entry.kind for entry in entries] == ["user", "assistant", "tool_result"]
    assert (entries[1].meta.stop, entries[2].meta.outcome) == ("error", "notStarted")
    assert entries[1].commit_end == entries[2].commit_end


@pytest.mark.spec("GN-45")
async def test_a_failure_without_content_leaves_no_entry(engine: Engine) -> None:
    root = await engine.root([fail("auth")])
    assert (await root.prompt("hi")).state == "failed"
    assert await kinds(root) == ["user"]


@pytest.mark.spec("GN-46")
async def test_stream_options_are_strict_json_and_the_cache_key_is_the_conversation(
    engine: Engine,
) -> None:
    root = await engine.root([say("one")])
    with pytest.raises(Rejected) as caught:
        await root.set_value(STREAM_OPTIONS, {"temperature": float("nan")})
    assert caught.value.code == "invariant"
    await root.prompt("hi")
    key = engine.models.requests[0].cache_key
    await engine.close()
    root = await engine.root([say("two"), say("three")])
    await root.prompt("again")
    await root.prompt("and again")
    assert {request.cache_key for request in engine.models.requests} == {key}
    assert key == f"{engine.harness.info.id}-{root.id}"


async def test_with_an_empty_context_nobody_is_asked(engine: Engine) -> None:
    root = await engine.root([say("first"), say("second")])
    accepted = await root.accept("lost")
    await root.reset_context(())
    await root.drive()
    result = await root.result(accepted.input_id)
    assert (result.state, engine.models.requests) == ("failed", [])
    assert result.error is not None
    assert "the context is empty" in result.error.message
    assert (await root.prompt("next")).text == "first"
