"""A session of an earlier release is read, driven and written by this one (FM-12, FM-14)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import pytest
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.drive.context import TaskContext
from perdure.drive.kind import NO_HOLD, EndsBy, Hold, Slot
from perdure.errors import Rejected
from perdure.line.command import Command
from perdure.line.facts import ContentFacts, KindTable, TaskFacts
from perdure.providers.script import say
from perdure.records.codec import decode, decode_json, encode
from perdure.records.entries import EntryMeta
from perdure.records.messages import Message, text_message
from perdure.records.tasks import Role, Task
from perdure.records.versions import Step, raised
from perdure.records.writes import PatchTask, SettleTask
from tests.engine import Engine


class FirstErrand(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    v: Literal[1] = 1
    where: str
    urgent: bool = False
    note: str | UnsetType = UNSET


class Errand(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    v: Literal[3] = 3
    place: str
    priority: int
    note: str | UnsetType = UNSET


class FirstNote(Struct, frozen=True, kw_only=True):
    v: Literal[1] = 1
    words: tuple[str, ...]


class Note(Struct, frozen=True, kw_only=True):
    v: Literal[2] = 2
    text: str


def to_place(old: Mapping[str, Any]) -> Mapping[str, Any]:
    kept = {name: value for name, value in old.items() if name != "where"}
    return {**kept, "place": old["where"]}


def to_priority(old: Mapping[str, Any]) -> Mapping[str, Any]:
    kept = {name: value for name, value in old.items() if name != "urgent"}
    return {**kept, "priority": 9 if old["urgent"] else 1}


ERRAND_STEPS = (
    Step(
        from_version=1,
        change=to_place,
        example=b'{"v":1,"where":"shop","urgent":true}',
        becomes=b'{"v":2,"place":"shop","urgent":true}',
    ),
    Step(
        from_version=2,
        change=to_priority,
        example=b'{"v":2,"place":"shop","urgent":true}',
        becomes=b'{"v":3,"place":"shop","priority":9}',
    ),
)
NOTE_STEPS = (
    Step(
        from_version=1,
        change=lambda old: {"text": " ".join(old["words"])},
        example=b'{"v":1,"words":["a","b"]}',
        becomes=b'{"v":2,"text":"a b"}',
    ),
)


def errand_facts(state: type[Struct], **more: Any) -> TaskFacts:
    first = "asked" if state is FirstErrand else "planned"
    return TaskFacts(
        name="errand",
        roles={first: Role.START, "running": Role.INFLIGHT, "done": Role.TERMINAL},
        initials=frozenset({first}),
        transitions={first: frozenset({"running", "done"}), "running": frozenset({"done"})},
        state=state,
        **more,
    )


class Errands:
    """Runs nothing but a note of what it saw."""

    slots: Mapping[str, Slot] = MappingProxyType({})
    ends_by: Mapping[str, EndsBy] = MappingProxyType({})

    def __init__(self, facts: TaskFacts) -> None:
        self.facts = facts
        self.seen: list[object] = []

    def hold(self, task: Task) -> Hold:
        return NO_HOLD

    async def effect(self, task: Task, ctx: TaskContext) -> None:
        self.seen.append(decode(task.state_json, self.facts.state))
        await ctx.patch(status="running", note="on the way")
        await ctx.settle("done", note="home")

    async def recover(self, task: Task, ctx: TaskContext) -> None:
        await ctx.settle("done", note="late")

    async def abort(self, task: Task, ctx: TaskContext) -> None: ...


class Notes(Struct, frozen=True):
    facts: ContentFacts

    def project(self, meta: EntryMeta, payload: Raw | None) -> Sequence[Message]:
        assert payload is not None
        return (text_message(decode(payload, Note).text),)


def new_kinds() -> dict[str, Any]:
    facts = errand_facts(Errand, steps=ERRAND_STEPS, mapped={"asked": "planned"})
    note = ContentFacts(name="note", selects=True, meta=EntryMeta, payload=Note, steps=NOTE_STEPS)
    return {"kinds": [Errands(facts)], "contents": [Notes(note)]}


async def written_by_the_first_release(engine: Engine) -> None:
    note = ContentFacts(name="note", selects=True, meta=EntryMeta, payload=FirstNote)
    root = await engine.root(kinds=[Errands(errand_facts(FirstErrand))], contents=[Notes(note)])

    def build(tx: Command) -> None:
        tx.insert_entry(root.id, "note", EntryMeta(), FirstNote(words=("mind", "the", "gap")))
        for where in ("shop", "post"):
            tx.insert_task(
                root.id, "errand", FirstErrand(where=where, urgent=where == "post"), status="asked"
            )

    await engine.line.submit(build)
    await engine.close()


async def history(engine: Engine) -> list[bytes]:
    return [encode(commit) for commit in await engine.commits()]


@pytest.mark.spec("FM-12")
async def test_older_records_are_raised_step_by_step_and_stay_as_they_are_stored(
    engine: Engine,
) -> None:
    await written_by_the_first_release(engine)
    options = new_kinds()
    root = await engine.root([say("noted")], **options)
    before = await history(engine)
    tasks = list(await root.tasks())
    assert [decode(task.state_json, Errand) for task in tasks] == [
        Errand(place="shop", priority=1),
        Errand(place="post", priority=9),
    ]
    (note,) = await root.entries()
    assert note.payload == {"v": 2, "text": "mind the gap"}
    assert await history(engine) == before
    assert b'"v":1,"words":["mind","the","gap"]' in b"".join(before)
    await root.prompt("go")
    (message, _) = engine.models.requests[0].messages
    assert message.content == text_message("mind the gap").content
    await engine.harness.drive()
    assert (await history(engine))[: len(before)] == before
    await engine.close()
    root = await engine.root(**new_kinds())
    settled = [task for task in await root.tasks() if task.kind == "errand"]
    assert [decode_json(task.state_json) for task in settled] == [
        {"v": 3, "place": "shop", "priority": 1, "note": "home"},
        {"v": 3, "place": "post", "priority": 9, "note": "home"},
    ]


@pytest.mark.spec("FM-12")
async def test_what_is_written_is_of_the_newest_version(engine: Engine) -> None:
    await written_by_the_first_release(engine)
    await engine.open(**new_kinds())
    start = engine.storage.last_seq
    await engine.harness.drive()
    written = [
        (write.task_id, decode_json(write.state_json).get("v"))
        for commit in await engine.harness.commits(after=start)
        for write in commit.writes
        if isinstance(write, PatchTask | SettleTask) and write.state_json is not UNSET
    ]
    # The first patch says everything anew, the settlement only what it changes.
    written.sort(key=lambda pair: pair[0])
    assert [version for _, version in written] == [3, None, 3, None]
    ids = [task.id for task in await (await engine.harness.root()).tasks()]
    stored = await engine.storage.inner.tasks(ids)
    assert {decode(stored[one].state_json, Errand).note for one in ids} == {"home"}


@pytest.mark.spec("FM-14")
async def test_a_live_task_of_a_status_that_is_gone_is_mapped_or_named(engine: Engine) -> None:
    await written_by_the_first_release(engine)
    unmapped = errand_facts(Errand, steps=ERRAND_STEPS)
    with pytest.raises(Rejected, match=r"errand task \d+ has the unknown status 'asked'"):
        await engine.open(**{**new_kinds(), "kinds": [Errands(unmapped)]})
    harness = await engine.open(**new_kinds())
    before = await history(engine)
    assert {task.status for task in await (await harness.root()).tasks()} == {"planned"}
    await harness.drive()
    after = await history(engine)
    assert after[: len(before)] == before
    await engine.close()
    # What has settled is never touched, whatever its status is called now.
    gone = msgspec.structs.replace(
        errand_facts(Errand, steps=ERRAND_STEPS),
        roles={"planned": Role.START, "over": Role.TERMINAL},
        transitions={"planned": frozenset({"over"})},
    )
    root = await engine.root(**{**new_kinds(), "kinds": [Errands(gone)]})
    assert {task.status for task in await root.tasks()} == {"done"}
    assert await history(engine) == after


@pytest.mark.spec("FM-12")
@pytest.mark.parametrize(
    ("steps", "fault"),
    [
        (ERRAND_STEPS[:1], r"steps from \[1\] do not lead to version 3"),
        (ERRAND_STEPS[::-1], r"steps from \[2, 1\]"),
        (
            (msgspec.structs.replace(ERRAND_STEPS[0], becomes=b'{"v":2}'), ERRAND_STEPS[1]),
            "the step from version 1 makes",
        ),
        (
            (
                msgspec.structs.replace(ERRAND_STEPS[0], example=b'{"v":2,"place":"x"}'),
                ERRAND_STEPS[1],
            ),
            "the step from version 1 makes",
        ),
    ],
)
def test_a_kind_whose_steps_do_not_fit_is_refused(steps: tuple[Step, ...], fault: str) -> None:
    with pytest.raises(Rejected, match=fault):
        KindTable([errand_facts(Errand, steps=steps)], [])


def test_a_record_of_the_newest_version_keeps_its_bytes() -> None:
    newest = Raw(b'{"v":3, "place":"x","priority":1}')
    assert raised(newest, ERRAND_STEPS) is newest


def test_a_status_is_mapped_to_a_living_one_of_this_release() -> None:
    for old, status in (("planned", "running"), ("asked", "done"), ("asked", "nowhere")):
        with pytest.raises(Rejected, match="of an earlier release is mapped to"):
            KindTable([errand_facts(Errand, steps=ERRAND_STEPS, mapped={old: status})], [])
