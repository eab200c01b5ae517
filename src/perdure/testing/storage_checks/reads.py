"""Checks of reads: multi-gets, scans, history, and random histories against a naive reference."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec import UNSET, Raw

from perdure.errors import Rejected
from perdure.records.codec import decode_json
from perdure.records.context_list import has_legal_shape
from perdure.records.conversations import ConversationState, InboxItem, ParentLink
from perdure.records.entries import Entry
from perdure.records.seqs import Seq
from perdure.records.sessions import ConversationScan, EntryScan, ListPage, TaskScan
from perdure.records.tasks import Task
from perdure.records.writes import (
    AppendContext,
    Commit,
    DeleteConversation,
    InsertEntry,
    PatchConversation,
    PatchTask,
    ReplaceContext,
    ResetContext,
    SettleTask,
)
from perdure.storage.memory import replay
from perdure.testing.storage_history import KEYS, NAMESPACE, History, list_at, value_at
from perdure.testing.storage_lab import Lab, fails, journal, raw
from perdure.testing.storage_model import ReferenceModel

HISTORY_COMMITS = 120
"""Commits of a random history in one check: enough for forks of forks, quick enough for all."""


async def absent_ids_are_missing(lab: Lab) -> None:
    """ST-12: a multi-get answers what exists, and is no error for the rest."""
    conv_id = await lab.root()
    batch = lab.main()
    entry_id, task_id = batch.entry(conv_id), batch.task(conv_id)
    await batch.commit()
    many = [entry_id, task_id, conv_id, Seq(0), Seq(-1), Seq(999)]
    assert list(await lab.storage.entries(many)) == [entry_id]
    assert list(await lab.storage.tasks(many)) == [task_id]
    assert list(await lab.storage.conversations(many)) == [conv_id]


async def scan_bounds_are_exclusive_and_limits_required(lab: Lab) -> None:
    """ST-13: after and before exclude, ascending by default, 1 to 10,000, filters first."""
    conv_id = await lab.root()
    batch = lab.main()
    ids = [
        batch.entry(conv_id, select=False, kind="odd" if number % 2 else "even")
        for number in range(10)
    ]
    await batch.commit()

    async def scan(**fields: Any) -> list[Seq]:
        found = await lab.storage.scan_entries(EntryScan(conv_id=conv_id, **fields))
        return [entry.id for entry in found]

    assert await scan(limit=100) == ids
    assert await scan(limit=100, after=ids[2]) == ids[3:]
    assert await scan(limit=100, before=ids[2]) == ids[:2]
    assert await scan(limit=100, after=ids[2], before=ids[4]) == ids[3:4]
    assert await scan(limit=100, order="desc") == ids[::-1]
    assert await scan(limit=3, order="desc", before=ids[5]) == ids[4:1:-1]
    assert await scan(limit=3) == ids[:3]
    assert await scan(limit=3, kind="odd") == ids[1:6:2]
    assert await scan(limit=10_000) == ids
    for limit in (0, -1, 10_001, True, 1.5):
        for refused in (
            lab.storage.scan_entries(EntryScan(limit=cast("int", limit))),
            lab.storage.scan_tasks(TaskScan(limit=cast("int", limit))),
            lab.storage.scan_conversations(ConversationScan(limit=cast("int", limit))),
            lab.storage.elements(value_free_list(conv_id), ListPage(limit=cast("int", limit))),
            lab.storage.scan_values(value_at(conv_id, ""), after=None, limit=cast("int", limit)),
        ):
            await fails(refused, Rejected, "invariant")


def value_free_list(conv_id: Seq) -> Any:
    """Answer the address of a list that nothing was appended to."""
    return list_at(conv_id, "empty")


async def filters_work_as_named(lab: Lab) -> None:
    """ST-14: parent and owner; conv, kind and key; conv, kind and live."""
    root = await lab.root()
    batch = lab.main()
    link = ParentLink(conv_id=root, as_of=Seq(1), inherit_values=True)
    fork = batch.conversation(parent=link)
    owner = batch.task(root, "subagent")
    owned = batch.conversation(parent=link, owner=owner)
    keyed = batch.entry(fork, key="k", select=False)
    batch.entry(fork, key="other", select=False)
    batch.entry(root, key="k", select=False)
    done = batch.task(fork, "tool")
    batch.add(SettleTask, task_id=done, status="done")
    live = batch.task(fork, "tool")
    await batch.commit()

    async def conversations(**fields: Any) -> list[Seq]:
        found = await lab.storage.scan_conversations(ConversationScan(limit=9, **fields))
        return [one.id for one in found]

    async def tasks(**fields: Any) -> list[Seq]:
        return [one.id for one in await lab.storage.scan_tasks(TaskScan(limit=9, **fields))]

    assert await conversations() == [root, fork, owned]
    assert await conversations(parent=root) == [fork, owned]
    assert await conversations(owner=owner) == [owned]
    assert await conversations(parent=fork) == []
    assert await conversations(order="desc", after=root) == [owned, fork]
    found = await lab.storage.scan_entries(EntryScan(limit=9, conv_id=fork, key="k"))
    assert [entry.id for entry in found] == [keyed]
    assert await tasks() == [owner, done, live]
    assert await tasks(conv_id=fork) == [done, live]
    assert await tasks(conv_id=fork, kind="tool", live=True) == [live]
    assert await tasks(live=False) == [done]
    assert await tasks(live=True) == [owner, live]
    assert await tasks(live=True, kind="subagent") == [owner]


async def entries_are_scanned_over_the_whole_session(lab: Lab) -> None:
    """ST-13, ST-14: without a conversation the order is that of the session."""
    first = await lab.root()
    second = await lab.root()
    ids: list[Seq] = []
    for number in range(6):
        batch = lab.main()
        conv_id = second if number % 2 == 0 else first
        ids.append(batch.entry(conv_id, kind="even" if number % 2 == 0 else "odd"))
        batch.set("between", number)
        ids.append(batch.entry(conv_id, key="k", select=False))
        await batch.commit()

    async def scan(**fields: Any) -> list[Seq]:
        return [entry.id for entry in await lab.storage.scan_entries(EntryScan(**fields))]

    assert await scan(limit=99) == ids
    assert await scan(limit=4, order="desc") == ids[:-5:-1]
    assert await scan(limit=4, after=ids[3]) == ids[4:8]
    assert await scan(limit=4, before=ids[3], order="desc") == ids[2::-1]
    assert await scan(limit=2, kind="odd") == ids[2:7:4]
    assert await scan(limit=9, key="k") == ids[1::2]


async def a_boundary_is_the_end_of_a_main_commit(lab: Lab) -> None:
    """ST-15, CX-16, TI-02: 0 is empty; inside a commit and working ends are refused."""
    conv_id = await lab.root()
    batch = lab.main()
    entry_id, task_id = batch.entry(conv_id), batch.task(conv_id)
    end = await batch.commit()
    working = lab.working()
    working.set("n", 1, working_scope="a")
    working_end = await working.commit()
    storage = lab.storage
    assert await storage.conversations([conv_id], as_of=Seq(0)) == {}
    assert await storage.tasks([task_id], as_of=Seq(0)) == {}
    assert list(await storage.conversations([conv_id], as_of=end)) == [conv_id]
    for bad in (entry_id, working_end, Seq(end + 50), Seq(-1)):
        for call in (
            storage.conversations([conv_id], as_of=bad),
            storage.tasks([task_id], as_of=bad),
            storage.scan_conversations(ConversationScan(limit=1, as_of=bad)),
            storage.scan_entries(EntryScan(limit=1, as_of=bad)),
            storage.scan_tasks(TaskScan(limit=1, as_of=bad)),
            storage.value(value_at(conv_id, ""), as_of=bad),
            storage.elements(list_at(conv_id, ""), ListPage(limit=1, as_of=bad)),
        ):
            await fails(call, Rejected, "invariant")


async def an_entry_carries_all_its_fields(lab: Lab) -> None:
    """ST-19: payload, optional fields, and the last seq of the commit that made it."""
    conv_id = await lab.root()
    batch = lab.main()
    task_id = batch.task(conv_id)
    full = batch.entry(
        conv_id,
        "all",
        kind="tool_result",
        written_by=task_id,
        call_index=3,
        through=Seq(1),
        key="k",
        meta_json=raw({"timestamp": 5, "of a plugin": [1]}),
    )
    bare = batch.entry(conv_id, select=False, kind="note", payload_json=UNSET)
    end = await batch.commit()
    await lab.reopen()
    found = await lab.storage.entries([full, bare])
    entry = found[full]
    assert (entry.conv_id, entry.kind, entry.written_by) == (conv_id, "tool_result", task_id)
    assert (entry.call_index, entry.through, entry.key) == (3, 1, "k")
    assert entry.payload == {"text": "all"}
    assert decode_json(entry.meta_json) == {"timestamp": 5, "of a plugin": [1]}
    assert entry.commit_end == found[bare].commit_end == end
    assert found[bare].payload_json is UNSET
    assert found[bare].written_by is UNSET


async def a_placed_entry_reads_the_payload_it_refers_to(lab: Lab) -> None:
    """D03: `ref` answers the payload of the input entry, and needs one to refer to."""
    conv_id = await lab.root()
    batch = lab.main()
    waiting = batch.entry(conv_id, "queued", select=False, kind="input")
    await batch.commit()
    batch = lab.main()
    placed = batch.entry(conv_id, kind="user", ref=waiting)
    await batch.commit()
    await lab.reopen()
    entry = (await lab.storage.entries([placed]))[placed]
    assert entry.payload == {"text": "queued"}
    assert entry.ref == waiting
    batch = lab.main()
    batch.entry(conv_id, kind="user", ref=Seq(conv_id))
    await lab.refuses(batch.build())
    batch = lab.main()
    batch.add(
        InsertEntry,
        conv_id=conv_id,
        kind="user",
        ref=waiting,
        meta_json=raw({}),
        payload_json=raw({}),
    )
    await lab.refuses(batch.build())


async def conversation_state_moves_with_its_own_writes_only(lab: Lab) -> None:
    """ST-20, ST-32, ST-34: commitEnd, inbox, label and modes, now and at every boundary."""
    conv_id = await lab.root()
    other = await lab.root()
    item = InboxItem(id=Seq(9), kind="followUp", entry=Seq(9))
    steps: Sequence[Callable[[Any], object]] = (
        lambda batch: batch.add(PatchConversation, conv_id=conv_id, inbox=(item,), label="one"),
        lambda batch: batch.add(PatchConversation, conv_id=conv_id, steering_mode="one-at-a-time"),
        lambda batch: batch.add(PatchConversation, conv_id=conv_id, label=None),
        lambda batch: batch.entry(conv_id),
        lambda batch: batch.task(conv_id),
        lambda batch: batch.set("v", 1, conv_id=conv_id),
        lambda batch: batch.append("l", 1, conv_id=conv_id),
        lambda batch: batch.add(PatchConversation, conv_id=conv_id, follow_up_mode="one-at-a-time"),
        lambda batch: batch.add(DeleteConversation, conv_id=conv_id),
    )
    seen: dict[Seq, ConversationState] = {}
    for step in steps:
        batch = lab.main()
        step(batch)
        end = await batch.commit()
        state = (await lab.storage.conversations([conv_id]))[conv_id]
        assert state.commit_end == end
        seen[end] = state
        batch = lab.main()
        batch.entry(other)
        batch.set("session", 1)
        await batch.commit()
        working = lab.working()
        working.set("n", 1, working_scope=str(conv_id))
        await working.commit()
        assert (await lab.storage.conversations([conv_id]))[conv_id] == state
    await lab.reopen()
    for end, state in seen.items():
        assert (await lab.storage.conversations([conv_id], as_of=end))[conv_id] == state
    states = list(seen.values())
    assert (states[0].inbox, states[0].label) == ((item,), "one")
    assert (states[1].steering_mode, states[1].label) == ("one-at-a-time", "one")
    assert states[2].label is UNSET
    assert states[2].inbox == (item,)
    assert states[-2].follow_up_mode == "one-at-a-time"
    assert [one.deleted for one in states[-2:]] == [False, True]


async def a_replacement_keeps_the_suffix(lab: Lab) -> None:
    """CX-15, CX-18: u1 a1 u2 a2, replaced through a1, is summary u2 a2."""
    conv_id = await lab.root()
    batch = lab.main()
    u1, a1, u2, a2 = (batch.entry(conv_id, name) for name in ("u1", "a1", "u2", "a2"))
    before = await batch.commit()
    batch = lab.main()
    summary = batch.entry(conv_id, "summary", select=False, kind="summary", through=a1)
    batch.add(ReplaceContext, conv_id=conv_id, through=a1, head=summary, expect_prefix_version=0)
    replaced = await batch.commit()
    batch = lab.main()
    u3 = batch.entry(conv_id, "u3")
    await batch.commit()
    await lab.reopen()

    async def at(as_of: Seq | None) -> tuple[list[Seq], int]:
        state = (await lab.storage.conversations([conv_id], as_of=as_of))[conv_id]
        return list(state.context), state.prefix_version

    assert await at(None) == ([summary, u2, a2, u3], 1)
    assert await at(replaced) == ([summary, u2, a2], 1)
    assert await at(before) == ([u1, a1, u2, a2], 0)
    assert has_legal_shape((await at(None))[0])
    batch = lab.main()
    batch.add(ReplaceContext, conv_id=conv_id, through=u2, head=u3, expect_prefix_version=0)
    await lab.refuses(batch.build())
    batch = lab.main()
    batch.add(ReplaceContext, conv_id=conv_id, through=u1, head=u3, expect_prefix_version=1)
    await lab.refuses(batch.build())
    batch = lab.main()
    batch.add(ResetContext, conv_id=conv_id, ids=(u3,))
    batch.add(AppendContext, conv_id=conv_id, ids=(u1,))
    await batch.commit()
    assert await at(None) == ([u3, u1], 2)


async def a_task_is_read_as_it_was(lab: Lab) -> None:
    """TI-02: status, state, dependencies, ownership and abort mark at each boundary."""
    conv_id = await lab.root()
    batch = lab.main()
    task_id = batch.task(conv_id, state_json=raw({"v": 1, "kept": 1, "gone": 2}))
    ends = [await batch.commit()]
    patches: Sequence[dict[str, Any]] = (
        {"status": "running", "state_json": raw({"n": 1})},
        {"after": (Seq(1),), "owns": conv_id},
        {"abort_requested": True, "unset": ("gone",)},
    )
    for patch in patches:
        batch = lab.main()
        batch.add(PatchTask, task_id=task_id, **patch)
        ends.append(await batch.commit())
    batch = lab.main()
    batch.add(SettleTask, task_id=task_id, status="done", state_json=raw({"n": 2}))
    ends.append(await batch.commit())
    await lab.reopen()
    found = [(await lab.storage.tasks([task_id], as_of=end))[task_id] for end in ends]
    assert [task.status for task in found] == ["pending", *["running"] * 3, "done"]
    assert [dict(task.state) for task in found] == [
        {"v": 1, "kept": 1, "gone": 2},
        {"v": 1, "kept": 1, "gone": 2, "n": 1},
        {"v": 1, "kept": 1, "gone": 2, "n": 1},
        {"v": 1, "kept": 1, "n": 1},
        {"v": 1, "kept": 1, "n": 2},
    ]
    assert [task.after for task in found] == [(), (), (1,), (1,), (1,)]
    assert [task.abort_requested is True for task in found] == [False, False, False, True, True]
    assert found[2].owns == conv_id
    assert (await lab.storage.tasks([task_id]))[task_id] == found[-1]
    assert await lab.storage.tasks([task_id], as_of=Seq(1)) == {}


async def random_histories_equal_the_reference(lab: Lab) -> None:
    """CX-17, ST-21, ST-29, ST-34, TI-02, TI-03, VL-13, VL-19: every boundary, every answer."""
    history = History(lab, seed=1)
    await history.run(HISTORY_COMMITS)
    await lab.reopen()
    model = ReferenceModel(await journal(lab.storage))
    for as_of in history.boundaries[:: max(1, HISTORY_COMMITS // 30)]:
        await compare_entities(lab, model, as_of)
        await compare_values(lab, model, history.conversations, as_of)
    await compare_entities(lab, model, history.boundaries[-1])
    await compare_current(lab, model, history.boundaries[-1])


async def compare_entities(lab: Lab, model: ReferenceModel, as_of: Seq) -> None:
    """Compare conversations, entries and tasks at a boundary with the reference."""
    states = await lab.storage.scan_conversations(ConversationScan(limit=10_000, as_of=as_of))
    assert {state.id: facts_of(state) for state in states} == model.conversations(as_of)
    entries = await lab.storage.scan_entries(EntryScan(limit=10_000, as_of=as_of))
    assert [entry.id for entry in entries] == sorted(model.entries(as_of))
    wanted = model.tasks(as_of)
    tasks = await lab.storage.scan_tasks(TaskScan(limit=10_000, as_of=as_of))
    assert {task.id: task_facts(task) for task in tasks} == {
        task_id: {name: value for name, value in facts.items() if name != "live"}
        for task_id, facts in wanted.items()
    }
    for live in (True, False):
        found = await lab.storage.scan_tasks(TaskScan(limit=10_000, as_of=as_of, live=live))
        assert [task.id for task in found] == sorted(
            task_id for task_id, facts in wanted.items() if facts["live"] == live
        )


def facts_of(state: ConversationState) -> dict[str, Any]:
    """Answer a conversation's state as the reference has it."""
    return {
        "parent": state.parent,
        "owner": state.owner,
        "context": list(state.context),
        "prefix_version": state.prefix_version,
        "inbox": state.inbox,
        "label": state.label,
        "steering_mode": state.steering_mode,
        "follow_up_mode": state.follow_up_mode,
        "deleted": state.deleted,
        "commit_end": state.commit_end,
    }


def task_facts(task: Task) -> dict[str, Any]:
    """Answer a task as the reference has it."""
    return {
        "conv_id": task.conv_id,
        "kind": task.kind,
        "after": task.after,
        "status": task.status,
        "state": task.state,
        "owns": task.owns,
        "abort_requested": task.abort_requested,
    }


async def compare_values(
    lab: Lab, model: ReferenceModel, conversations: Sequence[Seq], as_of: Seq
) -> None:
    """Compare values and lists of every conversation at a boundary with the reference."""
    for conv_id in conversations:
        for key in KEYS:
            found = await lab.storage.value(value_at(conv_id, key), as_of=as_of)
            wanted = model.value(conv_id, NAMESPACE, key, as_of)
            assert (UNSET if found is None else decode_json(found.value_json)) == wanted
        for key in KEYS[:2]:
            page = ListPage(limit=10_000, as_of=as_of)
            elements = await lab.storage.elements(list_at(conv_id, key), page)
            assert [element.seq for element in elements] == [
                write.seq for write in model.elements(conv_id, NAMESPACE, key, as_of)
            ]


async def compare_current(lab: Lab, model: ReferenceModel, last: Seq) -> None:
    """Compare what has no history: session values and lists, and payloads of entries."""
    addresses = {key: value_at(Seq(1), key) for key in KEYS}
    for key, bound in addresses.items():
        address = type(bound)(kind="value", namespace=bound.namespace, key=key)
        found = await lab.storage.value(address)
        wanted = model.session_values().get((NAMESPACE, key), UNSET)
        assert (UNSET if found is None else decode_json(found.value_json)) == wanted
        listed = type(bound)(kind="list", namespace=bound.namespace, key=key)
        elements = await lab.storage.elements(listed, ListPage(limit=10_000))
        assert [one.seq for one in elements] == model.session_list(NAMESPACE, key)
    writes = model.entries(last)
    for entry in (await lab.storage.entries(list(writes))).values():
        assert same_payload(entry, writes)


def same_payload(entry: Entry, writes: dict[Seq, InsertEntry]) -> bool:
    """Say whether an entry has the bytes of its write, or of the write it refers to."""
    write = writes[entry.id]
    source = write if write.ref is UNSET else writes[write.ref]
    return bytes(cast("Raw", entry.payload_json)) == bytes(cast("Raw", source.payload_json))


async def a_replay_answers_like_the_store(lab: Lab) -> None:
    """BR-11, D04: main commits replayed into memory give every answer; disorder is refused."""
    history = History(lab, seed=2)
    await history.run(HISTORY_COMMITS)
    commits = await journal(lab.storage)
    copy = replay(commits)
    for as_of in (*history.boundaries[::9], None):
        scan = ConversationScan(limit=10_000, as_of=as_of)
        assert await copy.scan_conversations(scan) == await lab.storage.scan_conversations(scan)
        tasks = TaskScan(limit=10_000, as_of=as_of)
        assert await copy.scan_tasks(tasks) == await lab.storage.scan_tasks(tasks)
        entries = EntryScan(limit=10_000, as_of=as_of)
        assert await copy.scan_entries(entries) == await lab.storage.scan_entries(entries)
        for conv_id in history.conversations:
            for key in KEYS:
                address = value_at(conv_id, key)
                assert await copy.value(address, as_of=as_of) == await lab.storage.value(
                    address, as_of=as_of
                )
                page = ListPage(limit=10_000, as_of=as_of)
                lists = list_at(conv_id, key)
                assert await copy.elements(lists, page) == await lab.storage.elements(lists, page)
    assert await journal(copy) == commits
    await fails(replay_later([*commits[3:], commits[2]]), Rejected, "invariant")


async def replay_later(commits: Sequence[Commit]) -> None:
    """Replay when awaited."""
    replay(commits)


async def one_read_sees_one_state(lab: Lab) -> None:
    """ST-17: a scan beside commits sees a prefix of commits, never a part of one."""
    conv_id = await lab.root()

    async def write() -> None:
        for _ in range(15):
            batch = lab.main()
            batch.entry(conv_id)
            batch.task(conv_id)
            batch.entry(conv_id)
            await batch.commit()

    async def read() -> None:
        for _ in range(15):
            state = (await lab.storage.conversations([conv_id]))[conv_id]
            assert len(state.context) % 2 == 0
            scan = EntryScan(limit=10_000, conv_id=conv_id)
            assert len(await lab.storage.scan_entries(scan)) % 2 == 0

    await asyncio.gather(write(), read(), read())
