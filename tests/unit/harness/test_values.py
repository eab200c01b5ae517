"""Values, lists and working scopes as a host meets them (seed 5, VL, WS)."""

from typing import Any

import pytest
from msgspec import Raw

from perdure.errors import PerdureError, Rejected
from perdure.harness.conversation import Conversation
from perdure.kinds import streaming
from perdure.line.command import Command, WorkingCommand
from perdure.providers.script import END, call, fail, say
from perdure.records import addresses
from perdure.records.addresses import (
    ACTIVE_TOOLS,
    MODEL,
    RETRY,
    SESSION_NAME,
    STREAM_OPTIONS,
    THINKING,
    TOOL_ORDER,
    USAGE,
    Address,
    ConversationList,
    ConversationValue,
    SessionList,
    SessionValue,
    WorkingScope,
    entry_label,
    input_record,
    observed_window,
    refused_part,
    request_input,
    task_scope,
)
from perdure.records.conversations import ParentLink
from perdure.records.models import parse_model
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage
from perdure.records.settings import RetryPolicy
from perdure.records.writes import AppendContext, AppendList, InsertTask, SetValue
from tests.engine import Engine, Gate, Probe

NOTE = SessionValue[object]("test.note")
LOG = SessionList[object]("test.log")
PLAN = ConversationValue[object]("test.plan")
STEPS = ConversationList[object]("test.steps")
SCOPE = WorkingScope("upload-preview")
PAGE = ListPage(limit=100)


async def fork_of(engine: Engine, conv: Conversation, *, as_of: Seq | None = None) -> Conversation:
    boundary = (await conv.state()).commit_end if as_of is None else as_of
    made: list[Seq] = []
    link = ParentLink(conv_id=conv.id, as_of=boundary, inherit_values=True)
    await engine.line.submit(lambda tx: made.append(tx.insert_conversation(parent=link)))
    found = await engine.harness.conversation(made[0])
    assert found is not None
    return found


async def refused(engine: Engine, work: Any) -> None:
    head = engine.storage.last_seq
    with pytest.raises(Rejected) as caught:
        await work
    assert caught.value.code == "invariant"
    assert engine.storage.last_seq == head


@pytest.mark.spec("VL-04")
async def test_the_wrong_scope_kind_or_conversation_is_refused(engine: Engine) -> None:
    root = await engine.root()
    other = await fork_of(engine, root)
    harness: Any = engine.harness
    conv: Any = root
    for work in (
        conv.set_value(NOTE, 1), conv.get_value(NOTE, 1), conv.delete_value(NOTE),
        conv.set_value(STEPS, 1), conv.get_value(STEPS, 1), conv.append_list(PLAN, 1),
        conv.read_list(PLAN, PAGE), conv.append_list(LOG, 1), conv.read_list(LOG, PAGE),
        harness.set_value(PLAN, 1), harness.get_value(PLAN, 1), harness.delete_value(PLAN),
        harness.set_value(LOG, 1), harness.get_value(LOG, 1), harness.append_list(NOTE, 1),
        harness.read_list(NOTE, PAGE), harness.read_list(STEPS, PAGE),
        root.command(lambda tx: _end(tx.set_value(PLAN.bind(other.id), 1))),
        root.command(lambda tx: _end(tx.append_list(STEPS.bind(other.id), 1))),
    ):  # fmt: skip
        await refused(engine, work)


@pytest.mark.spec("VL-06", "VL-07", "IV-14")
async def test_session_data_knows_no_forks(engine: Engine) -> None:
    root = await engine.root()
    harness = engine.harness
    await harness.set_value(NOTE, "first")
    await harness.append_list(LOG, 1, tag="t")
    boundary = engine.storage.last_seq
    await harness.set_value(NOTE, "second")
    await harness.append_list(LOG, 2)
    await fork_of(engine, root)
    assert boundary < engine.storage.last_seq
    for _ in range(2):
        assert await harness.get_value(NOTE, None) == "second"
        page = await harness.read_list(LOG, PAGE)
        assert [(one.value_json, one.tag) for one in page] == [(Raw(b"1"), "t"), (Raw(b"2"), None)]
        await engine.kill()
        harness = await engine.open()
    await harness.delete_value(NOTE)
    assert await harness.get_value(NOTE, "absent") == "absent"
    await harness.command(lambda tx: tx.delete_list(LOG))
    assert not await harness.read_list(LOG, PAGE)


@pytest.mark.spec("VL-05", "VL-08", "VL-09")
async def test_each_set_is_a_version_and_a_deletion_masks(engine: Engine) -> None:
    root = await engine.root()
    assert await root.get_value(PLAN, "default") == "default"
    boundaries: list[Seq] = []
    for value in (1, None, {"a": [1]}, False):
        await root.set_value(PLAN, value)
        boundaries.append((await root.state()).commit_end)
    await root.delete_value(PLAN)
    assert await root.get_value(PLAN, "default") == "default"
    past = [await root.get_value(PLAN, "default", as_of=one) for one in boundaries]
    assert past == [1, None, {"a": [1]}, False]
    fork = await fork_of(engine, root, as_of=boundaries[0])
    assert await fork.get_value(PLAN, "default") == 1
    await fork.delete_value(PLAN)
    assert await fork.get_value(PLAN, "default") == "default"
    await fork.set_value(PLAN, "own")
    assert await fork.get_value(PLAN, "default") == "own"
    assert await root.get_value(PLAN, "default") == "default"
    names = {name for name in dir(Conversation) if "list" in name and not name.startswith("_")}
    assert names == {"append_list", "read_list"}


@pytest.mark.spec("VL-11", "OP-02")
async def test_the_root_is_created_with_its_settings_in_one_commit(engine: Engine) -> None:
    root = await engine.root(settings={"thinking": "high"}, tools=[Probe("one")])
    first = (await engine.commits())[0]
    values = {write.namespace for write in first.writes if isinstance(write, SetValue)}
    assert {"perdure.model", "perdure.thinking", "perdure.active-tools"} <= values
    assert await root.get_value(ACTIVE_TOOLS, None) == ["*"]
    assert await root.get_value(THINKING, None) == "high"
    assert await root.get_value(MODEL, None) == {"provider": "scripted", "modelId": "test"}
    assert len(await engine.commits()) == 1


@pytest.mark.spec("VL-11")
async def test_a_star_offers_every_tool_registered_at_that_time(engine: Engine) -> None:
    root = await engine.root([say("ok")], tools=[Probe("one")])
    await root.prompt("hello")
    offered = [[tool.name for tool in one.tools] for one in engine.models.requests]
    await engine.kill()
    root = await engine.root([say("ok"), say("ok")], tools=[Probe("one"), Probe("two")])
    await root.prompt("hello")
    await root.set_value(ACTIVE_TOOLS, ["two"])
    await root.prompt("hello")
    offered += [[tool.name for tool in one.tools] for one in engine.models.requests]
    assert offered == [["one"], ["one", "two"], ["two"]]


@pytest.mark.spec("VL-12", "IV-21")
async def test_values_and_lists_select_nothing_and_start_nothing(engine: Engine) -> None:
    root = await engine.root([say("ok")])
    await root.prompt("hello")
    before = await root.state()
    start = len(await engine.commits())

    def build(tx: Command) -> None:
        tx.set_value(PLAN, "x")
        tx.append_list(STEPS, "y")
        tx.set_value(NOTE, "z")
        tx.append_list(LOG, "w")
        tx.set_value(MODEL, {"provider": "scripted", "modelId": "other"})

    await root.command(build)
    assert (await root.drive()).outcome == "idle"
    made = [write for commit in (await engine.commits())[start:] for write in commit.writes]
    assert not any(isinstance(write, AppendContext | InsertTask) for write in made)
    after = await root.state()
    assert (after.context, after.prefix_version) == (before.context, before.prefix_version)
    assert len(await root.tasks()) == 1


@pytest.mark.spec("VL-18", "VL-17", "VL-27")
async def test_pages_of_a_fixed_boundary_stay_the_same(engine: Engine) -> None:
    root = await engine.root()
    for number in range(4):
        await root.append_list(STEPS, number)
    boundary = (await root.state()).commit_end
    first = await root.read_list(STEPS, ListPage(limit=2, as_of=boundary))
    await root.append_list(STEPS, 4)
    await engine.kill()
    root = await engine.root()
    rest = await root.read_list(STEPS, ListPage(limit=9, as_of=boundary, after=first[-1].seq))
    newest = await root.read_list(STEPS, ListPage(limit=9, after=first[-1].seq))
    assert [one.value_json for one in (*first, *rest)] == [Raw(b"%d" % n) for n in range(4)]
    assert len(newest) == 3
    for limit in (0, -1, 10_001):
        with pytest.raises(Rejected):
            await root.read_list(STEPS, ListPage(limit=limit))


@pytest.mark.spec("VL-28", "IV-14")
async def test_names_of_sessions_and_entries_are_session_values(engine: Engine) -> None:
    root = await engine.root([say("ok")])
    await root.prompt("hello")
    entry_id = (await root.entries())[0].id
    named: list[tuple[str, str]] = [
        (MODEL.namespace, MODEL.key),
        (THINKING.namespace, THINKING.key),
        (ACTIVE_TOOLS.namespace, ACTIVE_TOOLS.key),
        (SESSION_NAME.namespace, SESSION_NAME.key),
        (entry_label(entry_id).namespace, entry_label(entry_id).key),
        (request_input("k").namespace, request_input("k").key),
    ]
    assert named == [
        ("perdure.model", ""), ("perdure.thinking", ""), ("perdure.active-tools", ""),
        ("perdure.session.name", ""), ("perdure.entry.label", str(entry_id)),
        ("perdure.request-input", "k"),
    ]  # fmt: skip
    await engine.harness.set_value(SESSION_NAME, "a title")
    await engine.harness.set_value(entry_label(entry_id), "before migration")
    await fork_of(engine, root)
    await engine.kill()
    await engine.open()
    assert await engine.harness.get_value(SESSION_NAME, None) == "a title"
    assert await engine.harness.get_value(entry_label(entry_id), None) == "before migration"
    assert engine.harness.info.name == "test"


@pytest.mark.spec("VL-29")
async def test_eight_settings_are_copied_when_a_generation_is_created(engine: Engine) -> None:
    """Neither a later write nor other options at a reopening change what was captured."""
    policy = RetryPolicy(max_attempts=2, base_delay_ms=10, max_delay_ms=10)
    root = await engine.root(
        settings={
            "thinking": "low",
            "tool_order": "sequential",
            "stream_options": Raw(b'{"seed":1}'),
            "retry": policy,
            "interrupted": "publish",
            "termination": "all",
        },
        tools=[Probe("one"), Probe("two")],
    )
    await root.set_value(THINKING, "high")
    accepted = await root.accept("hello")
    await root.set_value(MODEL, {"provider": "scripted", "modelId": "later"})
    for address, value in (
        (THINKING, "max"), (ACTIVE_TOOLS, ["two"]), (TOOL_ORDER, "parallel"),
        (STREAM_OPTIONS, {"seed": 2}), (RETRY, {"maxAttempts": 9}),
    ):  # fmt: skip
        await root.set_value(address, value)
    await engine.kill()
    root = await engine.root(
        [fail("overloaded"), fail("overloaded"), say("unreached")],
        settings={"thinking": "off", "retry": RetryPolicy(max_attempts=7)},
        tools=[Probe("one"), Probe("two")],
    )
    driving = engine.begin(root.drive())
    await engine.clock.until_asleep()
    assert engine.clock.next_due_ms() == 10 or (engine.clock.next_due_ms() or 99) <= 15
    engine.clock.advance(20)
    await driving
    assert (await root.result(accepted.input_id)).state == "failed"
    request = engine.models.requests[0]
    assert (str(request.model), request.thinking) == ("scripted:test", "high")
    assert [tool.name for tool in request.tools] == ["one", "two"]
    assert bytes(request.options) == b'{"seed":1}'
    assert len(engine.models.requests) == 2
    settings = [
        write.value_json
        for commit in await engine.commits()
        for write in commit.writes
        if isinstance(write, SetValue) and write.namespace == "perdure.settings"
    ]
    assert len(settings) == 1
    assert b'"interrupted":"publish"' in bytes(settings[0])
    assert b'"termination":"all"' in bytes(settings[0])
    assert b'"toolOrder":"sequential"' in bytes(settings[0])


@pytest.mark.spec("OP-29")
@pytest.mark.parametrize("busy", [False, True])
async def test_the_model_chosen_at_open_comes_with_the_first_acceptance(
    engine: Engine, *, busy: bool
) -> None:
    """Not at open, not with an acceptance that is refused, and not lost with it."""
    root = await engine.root([say("one")])
    await root.accept("before")
    if not busy:
        await root.drive()
    await engine.kill()
    chosen = parse_model("scripted:chosen")
    root = await engine.root([say("one"), say("two")], settings={"model": chosen}, model_given=True)
    old = {"provider": "scripted", "modelId": "test"}
    assert await root.get_value(MODEL, None) == old
    with pytest.raises(Rejected):
        await root.accept("")
    with pytest.raises(Rejected):
        await engine.line.submit(_wrong)
    assert await root.get_value(MODEL, None) == old
    await root.accept("after")
    assert await root.get_value(MODEL, None) == {"provider": "scripted", "modelId": "chosen"}
    await root.drive()
    models = [one.model.model_id for one in engine.models.requests]
    assert models == (["test", "chosen"] if busy else ["chosen"])
    await root.accept("again")
    last = (await engine.commits())[-1]
    assert MODEL.namespace not in {getattr(write, "namespace", "") for write in last.writes}


@pytest.mark.spec("VL-29")
async def test_an_unset_value_falls_back_to_the_initial_setting(engine: Engine) -> None:
    root = await engine.root([say("ok"), say("ok")], settings={"thinking": "low"})
    await root.prompt("hello")
    await root.delete_value(THINKING)
    await engine.kill()
    root = await engine.root([say("ok")], settings={"thinking": "minimal"})
    await root.prompt("hello")
    assert engine.models.requests[0].thinking == "minimal"


@pytest.mark.spec("GN-46")
async def test_stream_options_are_strict_json_and_the_cache_id_is_stable(engine: Engine) -> None:
    root = await engine.root([say("ok"), say("ok")])
    for wrong in (float("nan"), {"a": float("inf")}, {"a": "\ud800"}, {1: 2}, b"x", {"a": b"x"}):
        await refused(engine, root.set_value(STREAM_OPTIONS, wrong))
    await root.set_value(STREAM_OPTIONS, {"temperature": 0, "big": 2**64})
    await root.prompt("hello")
    fork = await fork_of(engine, root)
    await fork.prompt("hello")
    requests = list(engine.models.requests)
    await engine.kill()
    root = await engine.root([say("ok")])
    await root.prompt("again")
    requests += engine.models.requests
    assert bytes(requests[0].options) == b'{"temperature":0,"big":18446744073709551616}'
    keys = [one.cache_key for one in requests]
    assert keys[0] == keys[2] != keys[1]
    session = engine.harness.info.id
    assert keys[:2] == [f"{session}-{root.id}", f"{session}-{fork.id}"]


@pytest.mark.spec("VL-30")
async def test_every_reserved_name_of_a_used_session_is_ours(engine: Engine) -> None:
    async def chat(_: Any, ctx: Any) -> object:
        await ctx.out.progress({"a": 1})
        await ctx.out.memo.set("k", 1)
        return None

    root = await engine.root(
        [say(call("chat")), say("ok " * 3_000, chunk=500)], tools=[Probe("chat", body=chat)]
    )
    await root.prompt("hello", request_id="k")
    await engine.harness.set_value(SESSION_NAME, "x")
    names = {
        getattr(write, "namespace", "perdure")
        for commit in engine.storage.commits_made
        for write in commit.writes
    }
    assert names
    assert all(name == "perdure" or name.startswith("perdure.") for name in names)
    for token in (SessionValue, SessionList, ConversationValue, ConversationList):
        for reserved in ("perdure", "perdure.x"):
            with pytest.raises(Rejected):
                token(reserved)
        for free in ("perdurex", "my.perdure", "pi.x"):
            assert token(free).namespace == free


@pytest.mark.spec("VL-32", "VL-03")
async def test_hosts_write_eight_core_addresses_and_no_other(engine: Engine) -> None:
    root = await engine.root()
    assert len(addresses.WRITABLE_NAMESPACES) == 8
    accepted = await root.follow_up("hello", request_id="k")
    writable: list[tuple[Any, object]] = [
        (MODEL, {"provider": "scripted", "modelId": "x"}), (THINKING, "low"),
        (ACTIVE_TOOLS, []), (TOOL_ORDER, "sequential"), (STREAM_OPTIONS, {}),
        (RETRY, {"maxAttempts": 1}),
    ]  # fmt: skip
    for address, value in writable:
        await root.set_value(address, value)
        await root.delete_value(address)
    for address in (SESSION_NAME, entry_label(accepted.input_id)):
        await engine.harness.set_value(address, "x")
        await engine.harness.delete_value(address)
    model = parse_model("scripted:x")
    protected = [
        input_record(accepted.input_id), request_input("k"), refused_part(accepted.input_id, 0),
        observed_window(model), addresses.settings_record("0" * 64),
        Address(kind="value", namespace="perdure.grants"),
        Address(kind="value", namespace="perdure.job-series"),
        Address(kind="value", namespace="perdure.unheard"),
    ]  # fmt: skip
    for address in protected:
        await refused(engine, engine.harness.command(lambda tx, at=address: _set(tx, at)))
        await refused(engine, engine.harness.command(lambda tx, at=address: tx.delete_value(at)))
        await refused(engine, root.command(lambda tx, at=address: _set(tx, at)))
        await engine.harness.get_value(address, None)
    await refused(engine, engine.harness.append_list(USAGE, {}))
    await refused(engine, engine.harness.command(lambda tx: tx.delete_list(USAGE)))
    scope = task_scope(Seq(7))
    for namespace in (addresses.FRAMES, addresses.MEMO, addresses.OUTPUT, addresses.PROGRESS):
        value, items = scope.value(namespace), scope.list(namespace)
        for write in (
            lambda tx, at=value: _end(tx.set_value(at, 1)),
            lambda tx, at=value: tx.delete_value(at),
            lambda tx, at=items: _end(tx.append_list(at, 1)),
            lambda tx, at=items: tx.delete_list(at),
        ):
            await refused(engine, engine.harness.working_command(scope, write))


@pytest.mark.spec("VL-32")
async def test_a_setting_no_generation_could_use_is_refused(engine: Engine) -> None:
    root = await engine.root([say("ok")])
    wrong: list[tuple[Any, object]] = [
        (MODEL, "scripted:test"), (MODEL, {"provider": 1}), (THINKING, "loud"),
        (ACTIVE_TOOLS, "all"), (ACTIVE_TOOLS, [1]), (TOOL_ORDER, "random"),
        (STREAM_OPTIONS, []), (RETRY, {"maxAttempts": "many"}),
    ]  # fmt: skip
    for address, value in wrong:
        await refused(engine, root.set_value(address, value))
    await refused(engine, engine.harness.set_value(SESSION_NAME, 7))
    assert (await root.prompt("hello")).text == "ok"


@pytest.mark.spec("WS-01", "WS-06", "WS-05")
async def test_a_working_scope_lives_until_it_is_retired(engine: Engine) -> None:
    harness = await engine.open()
    value, items = SCOPE.value("test.note", "k"), SCOPE.list("test.items")

    def fill(tx: WorkingCommand) -> None:
        tx.set_value(value, "old")
        tx.append_list(items, "old")

    await harness.working_command(SCOPE, fill)
    for _ in range(2):
        assert await harness.get_value(value, None) == "old"
        assert len(await harness.read_list(items, PAGE)) == 1
        await engine.kill()
        harness = await engine.open()
    retired = await harness.command(lambda tx: _end(tx.retire_scope(SCOPE)))
    assert retired
    assert await harness.get_value(value, "absent") == "absent"
    assert not await harness.read_list(items, PAGE)
    await harness.working_command(SCOPE, lambda tx: _end(tx.append_list(items, "new")))
    for _ in range(2):
        assert await harness.get_value(value, "absent") == "absent"
        page = await harness.read_list(items, PAGE)
        assert [one.value_json for one in page] == [Raw(b'"new"')]
        await engine.kill()
        harness = await engine.open()


@pytest.mark.spec("WS-02", "WS-15")
async def test_working_data_is_in_no_conversation(engine: Engine) -> None:
    root = await engine.root()
    value = SCOPE.value("test.note")
    mixed = Address(kind="value", namespace="test.note", working_scope=SCOPE.id, conv_id=root.id)
    await refused(
        engine, engine.harness.working_command(SCOPE, lambda tx: _end(tx.set_value(mixed, 1)))
    )
    await refused(engine, engine.harness.command(lambda tx: _set(tx, mixed)))
    await refused(engine, engine.harness.get_value(mixed, None))
    await engine.harness.working_command(SCOPE, lambda tx: _end(tx.set_value(value, 1)))
    before = await root.state()
    await engine.harness.working_command(SCOPE, lambda tx: _end(tx.set_value(value, 2)))
    assert await root.state() == before
    fork = await fork_of(engine, root)
    same = ConversationValue[object]("test.note")
    assert await fork.get_value(same, "absent") == "absent"
    assert await engine.harness.get_value(SessionValue[object]("test.note"), "absent") == "absent"


@pytest.mark.spec("WS-03", "WS-04", "WS-14", "IV-23")
async def test_a_working_commit_is_of_one_scope_and_leaves_a_gap_in_main(
    engine: Engine,
) -> None:
    harness = await engine.open()
    other = WorkingScope("other").value("test.note")

    async def two(tx: WorkingCommand) -> None:
        tx.set_value(SCOPE.value("test.note"), 1)
        tx.set_value(other, 2)

    await refused(engine, harness.working_command(SCOPE, two))
    assert await harness.get_value(SCOPE.value("test.note"), "absent") == "absent"
    await harness.set_value(NOTE, 1)
    await harness.working_command(SCOPE, lambda tx: _end(tx.set_value(SCOPE.value("test.note"), 1)))
    await harness.set_value(NOTE, 2)
    before, after = (await engine.commits())[-2:]
    assert after.first_seq == before.last_seq + 2
    for commit in engine.storage.commits_made:
        scopes = {getattr(write, "working_scope", None) or None for write in commit.writes}
        assert len(scopes) == 1


@pytest.mark.spec("WS-07", "WS-08", "WS-11", "WS-13", "WS-09")
async def test_frames_are_stored_before_they_show_and_go_with_the_settlement(
    engine: Engine,
) -> None:
    gate = Gate()
    root = await engine.root([say("x" * 9_000, chunk=1_000, gates={END: gate})])
    shown: list[Seq] = []
    engine.harness.on_preview(lambda _: shown.append(engine.storage.last_seq))
    await root.accept("hello")
    task = (await root.tasks())[0]
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await engine.storage.until(lambda commit: commit.time_ms == 0)
    frames = addresses.frames_of(task.id, 1, 0)
    assert frames.working_scope == str(task.id)
    assert await engine.harness.read_list(frames, PAGE)
    working = [one.last_seq for one in engine.storage.commits_made if one.time_ms == 0]
    assert all(any(seq <= head for seq in working) for head in shown)
    gate.open()
    await driving
    assert shown
    assert not await engine.harness.read_list(frames, PAGE)
    settled = next(
        commit
        for commit in await engine.commits()
        if any(type(write).__name__ == "RetireScope" for write in commit.writes)
    )
    assert {"SettleTask", "InsertEntry"} <= {type(write).__name__ for write in settled.writes}
    late = [one for one in engine.storage.commits_made if one.first_seq > settled.last_seq]
    assert not [one for one in late if one.time_ms == 0]


@pytest.mark.spec("WS-10", "IV-23")
async def test_a_late_producer_cannot_write_into_a_later_lifetime(engine: Engine) -> None:
    tool = Probe("chat")
    root = await engine.root([say(call("chat")), say("ok")], tools=[tool])
    await root.prompt("hello")
    out = tool.contexts[0].out
    head = engine.storage.last_seq
    for late in (out.progress({"late": 1}), out.memo.set("k", 1)):
        with pytest.raises(PerdureError):
            await late
    with pytest.raises(PerdureError):
        out.write("late")
    assert engine.storage.last_seq == head
    # The scope's name itself stays usable: fencing is by invocation, not by name.
    task = next(one for one in await root.tasks() if one.kind == "tool")
    scope = task_scope(task.id)
    value = scope.value("test.note")
    assert await engine.harness.working_command(scope, lambda tx: _end(tx.set_value(value, 1)))
    assert await engine.harness.get_value(value, None) == 1


@pytest.mark.spec("WS-11")
async def test_recovery_reads_the_current_attempt_alone(engine: Engine) -> None:
    first, second = Gate(), Gate()
    root = await engine.root(
        [
            say("old " * 2_000, chunk=1_000, gates={END: first}),
            say("new " * 2_000, chunk=1_000, gates={END: second}),
        ],
        settings={"interrupted": "publish", "retry": RetryPolicy(base_delay_ms=1)},
    )
    accepted = await root.accept("hello")
    task = (await root.tasks())[0]
    await engine.line.submit_working(
        task_scope(task.id),
        lambda tx: _end(tx.append_list(addresses.frames_of(task.id, 7, 0), {"frames": []})),
    )
    engine.begin(root.drive())
    await first.reached.wait()
    await engine.storage.until(lambda commit: commit.time_ms == 0 and len(commit.writes) == 1)
    await engine.storage.until(_frames_of_attempt_one)
    await engine.kill()
    root = await engine.root(settings={"interrupted": "publish"})
    await root.drive()
    result = await root.result(accepted.input_id)
    assert result.state == "failed"
    assert result.partial is not None
    assert set(result.partial.text.split()) == {"old"}


@pytest.mark.spec("WS-12")
async def test_stored_output_is_read_in_bounded_pages(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "FRAMES_PAGE", 2)
    gate = Gate()
    root = await engine.root(
        [say("x" * 40_000, chunk=5_000, gates={END: gate})], settings={"interrupted": "publish"}
    )
    accepted = await root.accept("hello")
    engine.begin(root.drive())
    await gate.reached.wait()
    await engine.storage.until(lambda _: _stored(engine) > 40_000)
    await engine.kill()
    root = await engine.root(settings={"interrupted": "publish"})
    await root.drive()
    partial = (await root.result(accepted.input_id)).partial
    assert partial is not None
    assert len(partial.text) == 40_000


def _stored(engine: Engine) -> int:
    return sum(
        len(write.value_json)
        for commit in engine.storage.commits_made
        for write in commit.writes
        if isinstance(write, AppendList)
    )


def _frames_of_attempt_one(commit: Any) -> bool:
    return any(getattr(write, "key", None) == "1.0" for write in commit.writes)


def _wrong(tx: Command) -> None:
    tx.set_value(PLAN.bind(Seq(999)), 1)


def _set(tx: Command, address: Address | SessionValue[Any]) -> None:
    tx.set_value(address, 1)


def _end(_: object) -> None:
    """Turn a call with an answer into a step of a command."""
