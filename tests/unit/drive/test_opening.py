"""Opening starts nothing, writes nothing, and refuses what it could not run (OP)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, get_args

import msgspec
import pytest
from msgspec import UNSET

from perdure.errors import Closed, Faulted, Rejected
from perdure.harness.overview import root_of
from perdure.kinds.content import ContentKind
from perdure.line.facts import ContentFacts
from perdure.providers.script import call, say
from perdure.records.addresses import ACTIVE_TOOLS, MODEL, THINKING
from perdure.records.codec import to_raw
from perdure.records.entries import EntryMeta, Outcome
from perdure.records.messages import Message, UserPayload, text_message
from perdure.records.models import parse_model
from perdure.records.seqs import Seq
from perdure.records.settings import ALL_TOOLS
from perdure.records.writes import (
    Commit,
    InsertConversation,
    InsertTask,
    SetValue,
    Write,
)
from tests.engine import Engine, Gate, Probe, writes
from tests.unit.drive.chores import FACTS, Chores, plan, statuses


async def stored(engine: Engine, make: Callable[[Seq, Seq], list[Write]]) -> None:
    """Commit writes to the closed session's storage, as another release might have."""
    storage = await engine.sessions.open("test", create=False)
    root = await root_of(storage)
    assert root is not None
    first = Seq(storage.last_seq + 1)
    made = make(root.id, first)
    await storage.commit(
        Commit(
            first_seq=first, last_seq=made[-1].seq, time_ms=2_000_000_000_000, writes=tuple(made)
        ),
        barrier=True,
    )
    await storage.close()


@pytest.mark.spec("OP-02", "VL-11")
async def test_an_empty_session_gets_its_root_in_one_command(engine: Engine) -> None:
    await engine.open()
    (commit,) = await engine.commits()
    assert [type(write) for write in commit.writes] == [InsertConversation, *[SetValue] * 3]
    root = await engine.harness.root()
    assert await root.get_value(MODEL, None) == {"provider": "scripted", "modelId": "test"}
    assert await root.get_value(THINKING, None) == "off"
    assert await root.get_value(ACTIVE_TOOLS, None) == [ALL_TOOLS]


@pytest.mark.spec("OP-01", "OP-23")
async def test_opening_again_writes_and_starts_nothing(engine: Engine) -> None:
    gate = Gate()
    pay = Probe("pay", gate=gate)
    root = await engine.root([say(call("pay"), call("pay"))], tools=[pay])
    first_id = root.id
    await root.accept("hi")
    engine.begin(root.drive())
    await gate.reached.wait()
    await engine.kill()
    head, runs = None, len(pay.runs)
    for _ in range(2):
        root = await engine.root(tools=[pay])
        assert root.id == first_id
        assert head in (None, engine.line.last_seq)
        head = engine.line.last_seq
        assert engine.storage.commits_made == []
        assert engine.models.requests == []
        assert engine.harness._core.scheduler.running() == {}
        await engine.close()
    assert len(pay.runs) == runs


@pytest.mark.spec("OP-03", "IV-03")
@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"kind": "unheard-of"}, "unknown kind 'unheard-of'"),
        ({"status": "hovering"}, "unknown status 'hovering'"),
        ({"state_json": to_raw({"v": 1, "extra": True})}, "does not fit"),
    ],
)
async def test_a_live_task_that_cannot_run_refuses_the_open(
    engine: Engine, task: dict[str, Any], words: str
) -> None:
    await engine.open(kinds=[Chores()])
    await engine.close()

    def make(root: Seq, first: Seq) -> list[Write]:
        base = InsertTask(
            seq=first, conv_id=root, kind="chore", status="planned", state_json=to_raw({"v": 1})
        )
        return [msgspec.structs.replace(base, **task)]

    await stored(engine, make)
    with pytest.raises(Rejected, match=words):
        await engine.open(kinds=[Chores()])
    storage = await engine.sessions.open("test", create=False)
    assert (await storage.commits(after=Seq(0), limit=10))[-1].time_ms == 2_000_000_000_000
    await storage.close()


@pytest.mark.spec("OP-03")
async def test_a_dependency_that_does_not_exist_refuses_the_open(engine: Engine) -> None:
    await engine.open(kinds=[Chores()])
    await engine.close()

    def make(root: Seq, first: Seq) -> list[Write]:
        return [
            InsertTask(
                seq=first,
                conv_id=root,
                kind="chore",
                status="planned",
                state_json=to_raw({"v": 1}),
                after=(Seq(2),),
            )
        ]

    await stored(engine, make)
    with pytest.raises(Rejected, match=r"depends on .*2"):
        await engine.open(kinds=[Chores()])


@pytest.mark.spec("OP-28")
async def test_terminal_tasks_of_unknown_kinds_do_not_matter(engine: Engine) -> None:
    await engine.open(kinds=[Chores()])
    await plan(engine, "x")
    await engine.harness.drive()
    await engine.close()
    await engine.open()
    assert engine.harness.inspect().start == ()


ENDS = ("done", "failed", "aborted")

RELEASED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "generation": frozenset(
            ("pending", "retry_wait", "deferred", "streaming", "polling", *ENDS)
        ),
        "tool": frozenset(
            ("planned", "truncated", "finishing", "running", "waiting", "done", "aborted")
        ),
        "post_tools": frozenset(("pending", "done", "aborted")),
    }
)
"""Statuses ever released, by kind; this table only grows."""


@pytest.mark.spec("FM-14")
async def test_kinds_statuses_and_outcomes_only_grow(engine: Engine) -> None:
    await engine.open()
    kinds = engine.harness._core.scheduler._kinds
    for name, words in RELEASED.items():
        assert words <= set(kinds[name].facts.roles)
    assert set(get_args(Outcome)) >= {"finished", "denied", "notStarted", "interrupted"}


@pytest.mark.spec("FM-14")
@pytest.mark.parametrize("lives", [True, False])
async def test_a_status_that_a_release_lacks_matters_only_while_it_lives(
    engine: Engine, *, lives: bool
) -> None:
    await engine.open(kinds=[Chores()])
    (chore,) = await plan(engine, "x", not_before=engine.clock.now_ms() + 60_000)
    if not lives:
        engine.clock.advance(60_000)
        await engine.harness.drive()
    await engine.close()
    roles = dict(FACTS.roles)
    moves = {status: to for status, to in FACTS.transitions.items() if status != "planned"}
    gone = "planned" if lives else "done"
    del roles[gone]
    later = Chores()
    later.facts = msgspec.structs.replace(
        FACTS,
        roles=roles,
        initials=FACTS.initials - {gone},
        transitions={
            status: to - {gone} for status, to in (moves if lives else FACTS.transitions).items()
        },
    )
    if lives:
        with pytest.raises(Rejected, match=rf"task {chore} has the unknown status 'planned'"):
            await engine.open(kinds=[later])
        return
    await engine.open(kinds=[later])
    assert await statuses(engine, chore) == ["done"], "a terminal one is never touched"


class Memo(msgspec.Struct, frozen=True):
    """A content kind of a plugin."""

    facts: ContentFacts = ContentFacts(
        name="memo", selects=True, meta=EntryMeta, payload=UserPayload
    )

    def project(self, meta: EntryMeta, payload: msgspec.Raw | None) -> tuple[Message, ...]:
        return ()


MEMO: ContentKind = Memo()


async def with_memo(engine: Engine) -> Seq:
    root = await engine.root([say("one")], contents=[MEMO])
    made: list[Seq] = []
    payload = UserPayload(messages=(text_message("noted", 1),))
    await root.command(
        lambda tx: made.append(tx.insert_entry(root.id, "memo", EntryMeta(timestamp=1), payload))
    )
    await root.accept("hi")
    await engine.close()
    return made[0]


@pytest.mark.spec("OP-28")
async def test_an_entry_of_an_unknown_kind_refuses_the_open(engine: Engine) -> None:
    memo = await with_memo(engine)
    storage = await engine.sessions.open("test", create=False)
    head = storage.last_seq
    await storage.close()
    with pytest.raises(Rejected, match=f"'memo'.*{memo}"):
        await engine.open()
    storage = await engine.sessions.open("test", create=False)
    assert storage.last_seq == head
    await storage.close()


@pytest.mark.spec("OP-28")
async def test_an_unknown_entry_may_be_skipped_and_is_said_once(engine: Engine) -> None:
    memo = await with_memo(engine)
    root = await engine.root([say("one"), say("two")], unknown_content="skip")
    await root.drive()
    assert (await root.prompt("ho")).text == "two"
    assert [len(request.messages) for request in engine.models.requests] == [1, 3]
    (report,) = engine.errors
    assert "'memo'" in str(report)
    assert str(memo) in str(report)


@pytest.mark.spec("OP-26")
async def test_configure_is_one_command_that_keeps_what_it_does_not_name(engine: Engine) -> None:
    root = await engine.root()
    before = engine.line.last_seq
    await root.configure(label="trip", steering_mode="one-at-a-time")
    await root.configure(follow_up_mode="one-at-a-time")
    state = await root.state()
    assert (state.label, state.steering_mode, state.follow_up_mode) == (
        "trip",
        "one-at-a-time",
        "one-at-a-time",
    )
    commits = (await engine.commits())[1:]
    assert [len(commit.writes) for commit in commits] == [1, 1]
    await root.configure(label=None)
    assert (await root.state()).label is UNSET
    assert (await root.state(as_of=before)).label is UNSET
    assert (await root.state(as_of=commits[0].last_seq)).label == "trip"
    assert (await root.state(as_of=commits[0].last_seq)).follow_up_mode != "one-at-a-time"
    with pytest.raises(Rejected, match="'sometimes'") as caught:
        await root.configure(steering_mode="sometimes")  # pyright: ignore[reportArgumentType]
    assert caught.value.code == "invariant"


@pytest.mark.spec("OP-29")
async def test_another_model_is_written_with_the_first_acceptance(engine: Engine) -> None:
    root = await engine.root([say("one")])
    await root.prompt("hi")
    await engine.close()
    other = parse_model("scripted:other")
    root = await engine.root(
        [say("two"), say("three")], settings={"model": other}, model_given=True
    )
    assert engine.storage.commits_made == []
    assert (await root.get_value(MODEL, {}))["modelId"] == "test"
    await root.accept("again")
    (acceptance,) = engine.storage.commits_made
    assert _sets_model(acceptance)
    await root.drive()
    assert engine.models.requests[-1].model == other
    await root.prompt("once more")
    models = [c for c in await engine.commits() if _sets_model(c)]
    assert len(models) == 2, "creation, and the one change"


@pytest.mark.spec("OP-29")
async def test_without_a_given_model_the_stored_one_stays(engine: Engine) -> None:
    root = await engine.root([say("one")])
    await root.prompt("hi")
    await engine.close()
    root = await engine.root([say("two")], settings={"model": parse_model("scripted:other")})
    await root.prompt("again")
    assert engine.models.requests[-1].model.model_id == "test"


def _sets_model(commit: Commit) -> bool:
    return any(
        isinstance(w, SetValue) and w.namespace == MODEL.namespace and w.key == MODEL.key
        for w in commit.writes
    )


@pytest.mark.spec("ER-01", "ER-02")
async def test_every_way_of_saying_no(engine: Engine) -> None:
    root = await engine.root([say("x")])
    head = engine.line.last_seq
    rejected: list[str] = []
    for attempt in (
        root.result(Seq(999)),
        root.set_value(THINKING, object()),
        root.reset_context(expect_prefix_version=7),
        root.accept(""),
    ):
        with pytest.raises(Rejected) as caught:
            await attempt
        rejected.append(caught.value.code)
    assert rejected == ["not_found", "invariant", "version_mismatch", "invariant"]
    assert engine.line.last_seq == head
    assert engine.line.fault is None, "a rejection never faults"
    engine.storage.fail(writes(SetValue), OSError("no space left"))
    with pytest.raises(Faulted, match="no space left"):
        await root.set_value(THINKING, "low")
    with pytest.raises(Faulted, match="no space left"):
        await root.accept("more")
    await engine.close()
    with pytest.raises((Closed, Faulted)):
        await root.accept("more")
