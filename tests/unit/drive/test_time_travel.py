"""Any boundary can be read again, and equal runs make equal journals (TI, IV)."""

from typing import Any

import msgspec
import pytest

from perdure.errors import Rejected
from perdure.harness.conversation import Conversation
from perdure.kinds.states import GenerationState
from perdure.providers.script import Reply, call, fail, say
from perdure.records.addresses import THINKING, ConversationValue
from perdure.records.codec import decode, merge_object
from perdure.records.seqs import NO_SEQ, Seq
from perdure.records.tasks import Task
from perdure.records.writes import Commit, InsertTask, PatchTask, SettleTask
from tests.engine import Engine, Gate, Probe, is_main

TERMINAL = ("done", "failed", "aborted")

NOTE: ConversationValue[str] = ConversationValue("app", "note")


async def a_history(engine: Engine, *, clock: bool = True) -> Conversation:
    """Make turns with calls, a retry, an abort, values and queue changes."""
    gate = Gate()
    replies: list[Reply] = [
        say("let me see", call("a"), call("b")),
        say("first answer"),
        fail("server"),
        say("second answer"),
        say("cut", "off", gates={4: gate}),
        say("after the abort"),
    ]
    root = await engine.root(replies, tools=[Probe("a"), Probe("b", replay="safe")])

    def tick() -> None:
        if clock:
            engine.clock.advance(1_000)

    await root.prompt("one", request_id="k1")
    tick()
    await root.set_value(NOTE, "first note")
    await root.configure(label="trip")
    tick()
    await root.accept("two", request_id="k2")
    await root.drive(wait_timers=False)
    engine.clock.advance(60_000)
    await root.drive()
    await root.set_value(NOTE, "second note")
    await root.set_value(THINKING, "low")
    tick()
    await root.accept("three")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.follow_up("queued")
    await root.abort()
    await driving
    tick()
    await root.prompt("four")
    return root


def replayed(commits: list[Commit]) -> dict[Seq, Task]:
    """Build every task from the journal alone."""
    tasks: dict[Seq, Task] = {}
    for commit in commits:
        for write in commit.writes:
            if isinstance(write, InsertTask):
                tasks[write.seq] = Task(
                    id=write.seq,
                    conv_id=write.conv_id,
                    kind=write.kind,
                    at_entry=write.at_entry,
                    spawned_by=write.spawned_by,
                    after=write.after,
                    status=write.status,
                    state_json=write.state_json,
                )
            elif isinstance(write, PatchTask | SettleTask):
                tasks[write.task_id] = _changed(tasks[write.task_id], write)
    return tasks


def _changed(task: Task, write: PatchTask | SettleTask) -> Task:
    facts: dict[str, Any] = {}
    if write.status:
        facts["status"] = write.status
    if write.state_json or write.unset:
        patch = write.state_json or msgspec.Raw(b"{}")
        facts["state_json"] = merge_object(task.state_json, patch, write.unset)
    if isinstance(write, PatchTask):
        for name in ("after", "owns", "abort_requested"):
            if getattr(write, name) is not msgspec.UNSET:
                facts[name] = getattr(write, name)
    return msgspec.structs.replace(task, **facts)


def _plain(task: Task | None) -> Any:
    return (
        None
        if task is None
        else (msgspec.structs.replace(task, state_json=msgspec.Raw(b"")), task.state)
    )


@pytest.mark.spec("TI-02")
async def test_every_task_at_every_boundary_equals_a_replay(engine: Engine) -> None:
    root = await a_history(engine)
    commits = list(await engine.commits())
    ids = [task.id for task in await root.tasks(limit=1000)]
    for at, commit in enumerate(commits):
        expected = replayed(commits[: at + 1])
        for task_id in ids:
            then = await root.task(task_id, as_of=commit.last_seq)
            assert _plain(then) == _plain(expected.get(task_id))
    inside = next(c for c in commits if c.last_seq > c.first_seq)
    with pytest.raises(Rejected):
        await root.task(ids[0], as_of=Seq(inside.last_seq - 1))


@pytest.mark.spec("TI-03")
async def test_lists_queues_labels_and_values_agree_at_a_boundary(engine: Engine) -> None:
    root = await a_history(engine)
    commits = list(await engine.commits())
    labels: list[Any] = []
    notes: list[Any] = []
    queues: list[int] = []
    for at, commit in enumerate(commits):
        as_of = commit.last_seq
        expected = replayed(commits[: at + 1])
        live = await root.tasks(live=True, as_of=as_of)
        assert [task.id for task in live] == [
            task.id for task in expected.values() if task.status not in TERMINAL
        ]
        assert [conv.id for conv in await engine.harness.conversations(as_of=as_of)] == [root.id]
        state = await root.state(as_of=as_of)
        labels.append(state.label or None)
        queues.append(len(state.inbox))
        notes.append(await root.get_value(NOTE, None, as_of=as_of))
        known = {entry.id for entry in await root.entries(as_of=as_of, limit=1000)}
        assert set(state.context) <= known
    assert list(dict.fromkeys(labels)) == [None, "trip"]
    assert list(dict.fromkeys(notes)) == [None, "first note", "second note"]
    assert max(queues) == 1
    assert queues[-1] == 0
    assert await engine.harness.conversations(as_of=NO_SEQ) == []


@pytest.mark.spec("TI-01", "TI-04")
async def test_a_wall_time_names_the_newest_boundary_before_it(engine: Engine) -> None:
    await a_history(engine)
    commits = list(await engine.commits())
    times = [commit.time_ms for commit in commits]
    assert times == sorted(times)
    for time_ms in sorted({0, times[0] - 1, *times, times[-1] + 5}):
        expected = max((c.last_seq for c in commits if c.time_ms <= time_ms), default=NO_SEQ)
        assert await engine.harness.boundary_at(time_ms) == expected
    assert all(commit.time_ms == 0 for commit in engine.storage.commits_made if not is_main(commit))


@pytest.mark.spec("TI-01")
async def test_a_clock_set_back_repeats_the_last_time(engine: Engine) -> None:
    root = await engine.root()
    await root.set_value(NOTE, "a")
    last = (await engine.commits())[-1].time_ms
    engine.clock.set_now_ms(last - 3_600_000)
    await root.set_value(NOTE, "b")
    await engine.close()
    root = await engine.root()
    await root.set_value(NOTE, "c")
    assert [c.time_ms for c in (await engine.commits())[-3:]] == [last] * 3


@pytest.mark.spec("TI-05")
async def test_reading_the_past_changes_nothing_and_needs_no_model(engine: Engine) -> None:
    root = await a_history(engine)
    boundary = (await engine.commits())[4].last_seq
    before = (await root.state(as_of=boundary), await root.tasks(as_of=boundary))
    await root.reset_context()
    await engine.close()
    root = await engine.root([])
    head = engine.storage.inner.last_seq
    assert (await root.state(as_of=boundary), await root.tasks(as_of=boundary)) == before
    assert engine.storage.inner.last_seq == head
    assert engine.models.requests == []


@pytest.mark.spec("ST-35", "IV-02")
async def test_equal_runs_make_equal_journals(tmp_path_factory: pytest.TempPathFactory) -> None:
    runs: list[Any] = []
    for _ in range(2):
        engine = Engine("memory", tmp_path_factory.mktemp("run"))
        await a_history(engine)
        runs.append([msgspec.json.encode(commit) for commit in await engine.commits()])
        runs.append([request.cache_key for request in engine.models.requests])
        await engine.aclose()
    assert runs[:2] == runs[2:]


@pytest.mark.spec("IV-02", "IV-22", "IV-24", "TK-09")
async def test_a_trace_shows_intent_before_effect_and_outcome_in_one_commit(
    engine: Engine,
) -> None:
    root = await a_history(engine)
    inflight = {"generation": "streaming", "tool": "running"}
    seen: dict[Seq, list[str]] = {}
    kinds: dict[Seq, str] = {}
    for commit in await engine.commits():
        for write in commit.writes:
            if isinstance(write, InsertTask):
                seen[write.seq] = [write.status]
                kinds[write.seq] = write.kind
            elif isinstance(write, PatchTask | SettleTask) and write.status:
                seen[write.task_id].append(write.status)
    for task_id, statuses in seen.items():
        if kinds[task_id] in inflight and statuses[-1] == "done":
            assert inflight[kinds[task_id]] in statuses[:-1]
    for task in await root.tasks(limit=1000):
        if task.kind == "generation":
            state = decode(task.state_json, GenerationState)
            assert (state.request_as_of in {c.last_seq for c in await engine.commits()}) or (
                task.status == "aborted"
            )


@pytest.mark.spec("IV-03")
async def test_the_driver_has_something_to_do_for_every_live_status(engine: Engine) -> None:
    await engine.open()
    for kind in engine.harness._core.scheduler._kinds.values():
        for status, role in kind.facts.roles.items():
            moves = kind.facts.transitions.get(status, frozenset())
            if role.value == "terminal":
                assert not moves
            else:
                assert moves
                assert role.value != "waiting" or status in kind.ends_by
