"""Checks of commits: seqs, atomicity, lifetimes, vocabulary, strict JSON, the journal."""

import asyncio
from typing import Final, cast

from msgspec import Raw, Struct, structs

from perdure.errors import Closed, Rejected
from perdure.records.addresses import Address
from perdure.records.codec import EMPTY_OBJECT, decode_json
from perdure.records.seqs import SEQ_MAX, Seq
from perdure.records.sessions import EntryScan, ListPage, TaskScan
from perdure.records.writes import (
    AppendList,
    Commit,
    InsertEntry,
    PatchTask,
    RetireScope,
    SettleTask,
    SetValue,
    Write,
)
from perdure.testing.storage_lab import Lab, fails, raw, with_seqs


async def ids_are_the_seqs_of_their_writes(lab: Lab) -> None:
    """ST-01: what a write creates is found under its seq."""
    batch = lab.main()
    conv_id = batch.conversation()
    entry_id, task_id = batch.entry(conv_id), batch.task(conv_id)
    await batch.commit()
    assert (await lab.storage.conversations([conv_id]))[conv_id].id == conv_id == 1
    assert (await lab.storage.entries([entry_id]))[entry_id].id == entry_id
    assert (await lab.storage.tasks([task_id]))[task_id].id == task_id


async def one_counter_serves_main_and_every_scope(lab: Lab) -> None:
    """ST-02, ST-05, WS-14: working commits move the last seq and leave gaps in main."""
    await lab.root()
    for scope in ("a", "b"):
        batch = lab.working()
        batch.set("n", 1, working_scope=scope)
        await batch.commit()
    assert lab.storage.last_seq == 3
    batch = lab.main()
    batch.set("n", 1)
    assert await batch.commit() == 4
    commits = await lab.storage.commits(after=Seq(0), limit=10)
    assert [(one.first_seq, one.last_seq) for one in commits] == [(1, 1), (4, 4)]


async def seqs_that_do_not_follow_are_refused(lab: Lab) -> None:
    """ST-03: gap, repeat, zero, negative, fractional, oversized; the whole batch goes."""
    await lab.root()
    batch = lab.main()
    batch.set("n", 1)
    batch.set("n", 2)
    good = batch.build()
    for first in (0, -1, 1, 3, SEQ_MAX, SEQ_MAX + 1):
        await lab.refuses(with_seqs(good, first))
    for seqs in ([2, 4], [2, 2], [2, 3.0], [2.0, 3], [True, 3], [2, SEQ_MAX + 1]):
        await lab.refuses(with_seqs(good, seqs[0], seqs))
    await lab.refuses(structs.replace(good, last_seq=Seq(4)))
    await lab.refuses(structs.replace(good, writes=()))
    await lab.storage.commit(good, barrier=False)


async def payloads_that_look_like_references_come_back_unchanged(lab: Lab) -> None:
    """ST-04: storage renumbers nothing and reads nothing into content."""
    conv_id = await lab.root()
    payload = {"ref": 0, "s": 1, "id": 7, "blob": True, "$": [{"ref": conv_id}]}
    batch = lab.main()
    entry_id = batch.entry(conv_id, payload_json=raw(payload))
    await batch.commit()
    entry = (await lab.storage.entries([entry_id]))[entry_id]
    assert entry.payload == payload
    assert bytes(cast("Raw", entry.payload_json)) == bytes(raw(payload))


async def a_refused_batch_leaves_nothing(lab: Lab) -> None:
    """ST-06: a bad last write undoes the good ones before it, and no seq is used."""
    conv_id = await lab.root()
    batch = lab.main()
    entry_id = batch.entry(conv_id)
    batch.set("n", 1)
    batch.add(PatchTask, task_id=Seq(999), status="running")
    await lab.refuses(batch.build())
    assert await lab.storage.entries([entry_id]) == {}
    assert await lab.storage.scan_entries(EntryScan(limit=5, conv_id=conv_id)) == []
    assert not (await lab.storage.conversations([conv_id]))[conv_id].context
    batch = lab.main()
    assert batch.set("n", 2) == 2
    await batch.commit()


async def writes_about_nothing_are_refused(lab: Lab) -> None:
    """ST-06, TK-19: an unknown conversation or task, and a task that has settled."""
    conv_id = await lab.root()
    batch = lab.main()
    task_id = batch.task(conv_id)
    batch.add(SettleTask, task_id=task_id, status="done")
    await batch.commit()
    for kind in (PatchTask, SettleTask):
        batch = lab.main()
        batch.add(kind, task_id=task_id, status="again")
        await lab.refuses(batch.build())
    batch = lab.main()
    batch.entry(Seq(77), select=False)
    await lab.refuses(batch.build())
    batch = lab.main()
    batch.set("n", 1, conv_id=Seq(77))
    await lab.refuses(batch.build())


async def an_unknown_write_is_refused(lab: Lab) -> None:
    """ST-31: the vocabulary is closed."""

    class Sixteenth(Struct, frozen=True, kw_only=True, tag="sixteenth", tag_field="k"):
        seq: Seq

    odd = cast("Write", Sixteenth(seq=Seq(1)))
    await lab.refuses(Commit(first_seq=Seq(1), last_seq=Seq(1), time_ms=1, writes=(odd,)))


async def one_batch_has_one_lifetime(lab: Lab) -> None:
    """ST-10, WS-03, WS-04, WS-15: main or one working scope, in every mixture of two."""
    conv_id = await lab.root()
    batch = lab.working()
    batch.set("n", 1, working_scope="a")
    batch.set("n", 1, working_scope="b")
    await lab.refuses(batch.build())
    batch = lab.main()
    batch.set("n", 1)
    batch.set("n", 1, working_scope="a")
    await lab.refuses(batch.build())
    batch = lab.working()
    batch.set("n", 1, working_scope="a")
    batch.entry(conv_id, select=False)
    await lab.refuses(batch.build())
    batch = lab.working()
    batch.set("n", 1, working_scope="a", conv_id=conv_id)
    await lab.refuses(batch.build())


async def retirement_is_a_main_write(lab: Lab) -> None:
    """ST-11: refused beside working writes; one main batch may retire several scopes."""
    await lab.root()
    for scope in ("a", "b"):
        batch = lab.working()
        batch.set("n", 1, working_scope=scope)
        await batch.commit()
    batch = lab.working()
    batch.set("n", 2, working_scope="a")
    batch.add(RetireScope, working_scope="a")
    await lab.refuses(batch.build())
    batch = lab.main()
    batch.add(RetireScope, working_scope="a")
    batch.add(RetireScope, working_scope="b")
    await batch.commit()


async def time_stands_in_main_commits_and_never_falls(lab: Lab) -> None:
    """TI-01: refused when it falls; equal times are fine; a working commit carries none."""
    await lab.root()
    batch = lab.main()
    batch.set("n", 1)
    end = await batch.commit()
    later = lab.main()
    later.set("n", 2)
    await lab.refuses(structs.replace(later.build(), time_ms=batch.time_ms - 1))
    await lab.storage.commit(structs.replace(later.build(), time_ms=batch.time_ms), barrier=False)
    working = lab.working()
    working.set("n", 3, working_scope="a")
    await lab.refuses(structs.replace(working.build(), time_ms=batch.time_ms))
    await working.commit()
    commits = await lab.storage.commits(after=Seq(0), limit=10)
    assert [one.time_ms for one in commits][1:] == [batch.time_ms, batch.time_ms]
    assert await lab.storage.boundary_at(batch.time_ms) == end + 1


async def boundary_at_finds_the_last_commit_in_time(lab: Lab) -> None:
    """TI-04: 0 before the first; the last of equal times; working commits do not count."""
    await lab.root()
    ends: dict[int, Seq] = {}
    for number in range(20):
        batch = lab.main()
        batch.set("n", number)
        ends[batch.time_ms] = await batch.commit()
        working = lab.working()
        working.set("n", number, working_scope="a")
        await working.commit()
    for time_ms, end in ends.items():
        assert await lab.storage.boundary_at(time_ms) == end
        assert await lab.storage.boundary_at(time_ms + 999) == end
        assert await lab.storage.boundary_at(time_ms - 1) < end
    assert await lab.storage.boundary_at(0) == 0
    assert await lab.storage.boundary_at(10**15) == ends[max(ends)]


async def only_strict_json_is_stored(lab: Lab) -> None:
    """ST-25: whatever the door did, storage refuses bytes that are not strict JSON."""
    conv_id = await lab.root()
    deep = b"[" * 101 + b"]" * 101
    bad = [
        b"NaN", b"Infinity", b"-Infinity", b"1e999", b'"\\u0000"', b'{"a\\u0000":1}',
        b'"\\ud800"', b'"\xed\xa0\x80"', b'"\xff"', b"", b"1 2", b"[1,]", b"{1:2}", b"'a'", deep,
        b"1" * 4301, b'1,"key":"x"',
    ]  # fmt: skip
    for data in bad:
        batch = lab.main()
        batch.add(SetValue, namespace="n", key="", value_json=Raw(data))
        await lab.refuses(batch.build())
        batch = lab.main()
        batch.add(
            InsertEntry,
            conv_id=conv_id,
            kind="user",
            meta_json=EMPTY_OBJECT,
            payload_json=Raw(data),
        )
        await lab.refuses(batch.build())
        working = lab.working()
        working.add(AppendList, namespace="n", key="", value_json=Raw(data), working_scope="a")
        await lab.refuses(working.build())
    batch = lab.main()
    batch.set("n", 1, key="a\x00b")
    await lab.refuses(batch.build())


async def strict_json_comes_back_as_it_was(lab: Lab) -> None:
    """ST-25, K32: null, long integers, escapes and every plane come back byte for byte."""
    good = [
        b"null", b'"\\\\u0000"', b"1" * 4300, b'"\\u001b\\ud83d\\ude00"', '"\U0001f600é"'.encode(),
        b"[" * 100 + b"]" * 100, b"-0.0", b"1e308", b'{"":{"":[]}}', b"[1,2.50,true]",
    ]  # fmt: skip
    batch = lab.main()
    seqs = [
        batch.add(SetValue, namespace="n", key=str(number), value_json=Raw(data))
        for number, data in enumerate(good)
    ]
    await batch.commit()
    await lab.reopen()
    found = await lab.storage.commits(after=Seq(0), limit=1)
    values = [cast("SetValue", write).value_json for write in found[0].writes]
    assert [bytes(value) for value in values] == good
    assert len(seqs) == len(good)


async def what_was_given_and_what_is_read_are_snapshots(lab: Lab) -> None:
    """ST-18: changing the bytes handed in, or an object read, changes nothing stored."""
    conv_id = await lab.root()
    given = bytearray(b'{"text":"one"}')
    batch = lab.main()
    entry_id = batch.entry(conv_id, payload_json=Raw(given))
    await batch.commit()
    given[9:12] = b"two"
    read = (await lab.storage.entries([entry_id]))[entry_id].payload
    assert read == {"text": "one"}
    read["text"] = "three"
    again = (await lab.storage.entries([entry_id]))[entry_id]
    assert decode_json(cast("Raw", again.payload_json)) == {"text": "one"}


async def a_cancelled_caller_neither_loses_nor_splits_a_commit(lab: Lab) -> None:
    """ST-33: cancelled once admitted, the batch is there whole and the next one follows it."""
    conv_id = await lab.root()
    batch = lab.main()
    entry_id = batch.entry(conv_id)
    batch.set("n", 1)
    caller = asyncio.ensure_future(lab.storage.commit(batch.build(), barrier=True))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    after = lab.main()
    while True:  # the next commit waits for the admitted one, so its seqs may be stale once
        after.writes.clear()
        after.set("n", 2)
        try:
            await after.commit()
            break
        except Rejected:
            continue
    assert (await lab.storage.entries([entry_id]))[entry_id].commit_end == 4
    assert lab.storage.last_seq == 5
    assert len(await lab.storage.commits(after=Seq(0), limit=10)) == 3


async def commits_pages_the_whole_journal(lab: Lab) -> None:
    """BR-10: in order, after exclusive, all writes, limit bound, equal after a restart."""
    conv_id = await lab.root()
    given = [(await lab.storage.commits(after=Seq(0), limit=1))[0]]
    for number in range(12):
        batch = lab.main()
        batch.entry(conv_id, f"text {number}")
        batch.set("n", number)
        given.append(batch.build())
        await batch.commit()
        working = lab.working()
        working.set("n", number, working_scope="a")
        await working.commit()
    for _ in range(2):
        assert list(await lab.storage.commits(after=Seq(0), limit=1000)) == given
        assert list(await lab.storage.commits(after=given[3].last_seq, limit=2)) == given[4:6]
        assert await lab.storage.commits(after=lab.storage.last_seq, limit=5) == []
        for limit in (0, -1, 1001, True):
            page = lab.storage.commits(after=Seq(0), limit=limit)
            await fails(page, Rejected, "invariant")
        await lab.reopen()


async def close_stops_admission_and_retires_nothing(lab: Lab) -> None:
    """ST-26, WS-05: a closed handle refuses; working data is there after the next open."""
    await lab.root()
    batch = lab.working()
    batch.set("n", "kept", working_scope="a")
    await batch.commit()
    last = lab.storage.last_seq
    closed = lab.storage
    late = lab.main()
    late.set("n", 1)
    await lab.reopen()
    await fails(closed.commit(late.build(), barrier=False), Closed)
    assert lab.storage.last_seq == last


async def opening_creates_nothing(lab: Lab) -> None:
    """ST-27: an empty session has no seq, no conversation, no commit."""
    assert lab.storage.last_seq == 0
    assert await lab.storage.commits(after=Seq(0), limit=10) == []
    await lab.reopen()
    assert lab.storage.last_seq == 0
    assert await lab.storage.conversations([Seq(1)]) == {}


async def a_read_during_a_commit_sees_a_whole_state(lab: Lab) -> None:
    """ST-07, ST-17: journal and indexes show a commit together, whoever reads in between.

    Numbers read one after another never fall; an index that is behind the one read before it
    shows an older one.
    """
    conv_id = await lab.root()
    for number in range(30):
        batch = lab.main()
        batch.set("twin", number)
        batch.append("twin", number)
        batch.entry(conv_id)
        batch.task(conv_id)
        commit = asyncio.ensure_future(batch.commit(barrier=number % 2 == 0))
        seen: list[int] = []
        while not commit.done():
            await asyncio.sleep(0)
            seen.extend([await read(lab, conv_id) for read in (*_TWINS, *reversed(_TWINS))])
        await commit
        assert seen == sorted(seen), seen
        assert [await read(lab, conv_id) for read in _TWINS] == [number + 1] * len(_TWINS)


async def _in_journal(lab: Lab, _: Seq) -> int:
    # The first commit made the conversation.
    return len(await lab.storage.commits(after=Seq(0), limit=100)) - 1


async def _in_values(lab: Lab, _: Seq) -> int:
    found = await lab.storage.value(Address(kind="value", namespace="twin"))
    return 0 if found is None else decode_json(found.value_json) + 1


async def _in_lists(lab: Lab, _: Seq) -> int:
    return len(
        await lab.storage.elements(Address(kind="list", namespace="twin"), ListPage(limit=100))
    )


async def _in_entries(lab: Lab, conv_id: Seq) -> int:
    return len(await lab.storage.scan_entries(EntryScan(conv_id=conv_id, limit=100)))


async def _in_context(lab: Lab, conv_id: Seq) -> int:
    return len((await lab.storage.conversations([conv_id]))[conv_id].context)


async def _in_tasks(lab: Lab, conv_id: Seq) -> int:
    return len(await lab.storage.scan_tasks(TaskScan(conv_id=conv_id, limit=100)))


_TWINS: Final = (_in_journal, _in_values, _in_lists, _in_entries, _in_context, _in_tasks)
"""How many commits each part of a store shows."""
