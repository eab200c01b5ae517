"""Checks of values and lists: history, inheritance, pages, working scopes."""

from typing import Any

from msgspec import UNSET

from perdure.errors import Rejected
from perdure.records.addresses import Address, SessionList, SessionValue, WorkingScope
from perdure.records.codec import decode_json
from perdure.records.conversations import ParentLink
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage
from perdure.records.writes import DeleteList, RetireScope, SettleTask
from perdure.testing.storage_history import list_at, value_at
from perdure.testing.storage_lab import Lab, fails

SCOPE = WorkingScope("41")
NAMESPACE = "history"
ABSENT = "absent"


async def read(lab: Lab, address: Address, as_of: Seq | None = None) -> Any:
    """Read a value, or ABSENT."""
    found = await lab.storage.value(address, as_of=as_of)
    return ABSENT if found is None else decode_json(found.value_json)


async def listed(lab: Lab, address: Address, **fields: Any) -> list[Any]:
    """Read the values of a page."""
    fields.setdefault("limit", 100)
    found = await lab.storage.elements(address, ListPage(**fields))
    return [decode_json(element.value_json) for element in found]


async def fork(lab: Lab, parent: Seq, as_of: Seq, *, inherits: bool = True) -> Seq:
    """Commit a fork of a conversation."""
    batch = lab.main()
    link = ParentLink(conv_id=parent, as_of=as_of, inherit_values=inherits)
    conv_id = batch.conversation(parent=link)
    await batch.commit()
    return conv_id


async def set_value(lab: Lab, conv_id: Seq, value: object, key: str = "") -> Seq:
    """Commit a conversation value; answer the boundary."""
    batch = lab.main()
    batch.set(NAMESPACE, value, key=key, conv_id=conv_id)
    return await batch.commit()


async def addresses_are_equal_by_content(lab: Lab) -> None:
    """VL-01, VL-02: class, kind, namespace and key tell addresses apart, and nothing else."""
    conv_id = await lab.root()
    batch = lab.main()
    batch.set(NAMESPACE, "session")
    batch.set(NAMESPACE, "key", key="k")
    batch.set(NAMESPACE, "conversation", conv_id=conv_id)
    batch.append(NAMESPACE, "listed")
    batch.append(NAMESPACE, "conversation listed", conv_id=conv_id)
    await batch.commit()
    working = lab.working()
    working.set(NAMESPACE, "working", working_scope=SCOPE.id)
    await working.commit()
    await lab.reopen()
    assert await read(lab, SessionValue[str](NAMESPACE).address()) == "session"
    assert await read(lab, SessionValue[str](NAMESPACE, "k").address()) == "key"
    assert await read(lab, value_at(conv_id, "")) == "conversation"
    assert await read(lab, SCOPE.value(NAMESPACE)) == "working"
    assert await listed(lab, SessionList[str](NAMESPACE).address()) == ["listed"]
    assert await listed(lab, list_at(conv_id, "")) == ["conversation listed"]
    assert await listed(lab, SCOPE.list(NAMESPACE)) == []


async def an_address_of_the_wrong_kind_is_refused(lab: Lab) -> None:
    """VL-04, WS-15: a list is no value, a value no list; two lifetimes are none."""
    conv_id = await lab.root()
    both = Address(kind="value", namespace="n", conv_id=conv_id, working_scope="a")
    for call in (
        lab.storage.value(list_at(conv_id, "")),
        lab.storage.elements(value_at(conv_id, ""), ListPage(limit=1)),
        lab.storage.scan_values(list_at(conv_id, ""), after=None, limit=1),
        lab.storage.value(both),
    ):
        await fails(call, Rejected, "invariant")


async def an_unset_value_is_absent_and_null_is_not(lab: Lab) -> None:
    """VL-05, VL-08: absent, null and deleted are three things."""
    conv_id = await lab.root()
    assert await read(lab, value_at(conv_id, "")) == ABSENT
    null = await set_value(lab, conv_id, None)
    assert await read(lab, value_at(conv_id, "")) is None
    batch = lab.main()
    batch.delete(NAMESPACE, conv_id=conv_id)
    await batch.commit()
    assert await read(lab, value_at(conv_id, "")) == ABSENT
    assert await read(lab, value_at(conv_id, ""), null) is None


async def session_values_keep_the_newest_only(lab: Lab) -> None:
    """VL-06, ST-16: set replaces, delete removes, no boundary and no fork changes that."""
    conv_id = await lab.root()
    address = SessionValue[int]("title").address()
    for value in (1, 2):
        batch = lab.main()
        batch.set("title", value)
        await batch.commit()
    assert await read(lab, address, Seq(1)) == 2
    await fork(lab, conv_id, Seq(1))
    await lab.reopen()
    assert await read(lab, address) == 2
    batch = lab.main()
    batch.delete("title")
    await batch.commit()
    assert await read(lab, address) == ABSENT


async def session_lists_append_page_and_delete(lab: Lab) -> None:
    """VL-07, ST-24: deleted as a whole; what comes after stands alone; no fork inherits one."""
    await lab.root()
    address = SessionList[int]("items").address()
    for value in range(4):
        batch = lab.main()
        batch.append("items", value)
        await batch.commit()
    assert await listed(lab, address) == [0, 1, 2, 3]
    assert await listed(lab, address, order="desc", limit=2) == [3, 2]
    batch = lab.main()
    batch.add(DeleteList, namespace="items", key="")
    await batch.commit()
    assert await listed(lab, address) == []
    batch = lab.main()
    batch.append("items", 9)
    await batch.commit()
    await lab.reopen()
    assert await listed(lab, address) == [9]


async def each_set_is_a_version(lab: Lab) -> None:
    """VL-08, VL-13: a boundary answers the newest version at or below it; tombstones mask."""
    conv_id = await lab.root()
    ends = [await set_value(lab, conv_id, value) for value in (1, 2)]
    batch = lab.main()
    batch.delete(NAMESPACE, conv_id=conv_id)
    ends.append(await batch.commit())
    ends.append(await set_value(lab, conv_id, 4))
    await lab.reopen()
    found = [await read(lab, value_at(conv_id, ""), end) for end in ends]
    assert found == [1, 2, ABSENT, 4]
    assert await read(lab, value_at(conv_id, ""), Seq(1)) == ABSENT


async def a_fork_sees_its_parent_through_its_boundary(lab: Lab) -> None:
    """VL-14, VL-15: later writes of the parent never show, in a fork or in forks of it."""
    a = await lab.root()
    await set_value(lab, a, "old")
    boundary = lab.storage.last_seq
    await set_value(lab, a, "new")
    b = await fork(lab, a, boundary)
    c = await fork(lab, b, lab.storage.last_seq)
    await set_value(lab, a, "later")
    for conv_id in (b, c):
        assert await read(lab, value_at(conv_id, "")) == "old"
    batch = lab.main()
    batch.delete(NAMESPACE, conv_id=b)
    await batch.commit()
    assert await read(lab, value_at(b, "")) == ABSENT
    assert await read(lab, value_at(c, "")) == "old"
    await set_value(lab, b, "own")
    await lab.reopen()
    assert await read(lab, value_at(a, "")) == "later"
    assert await read(lab, value_at(b, "")) == "own"
    assert await read(lab, value_at(c, "")) == "old"


async def inheritance_may_be_off(lab: Lab) -> None:
    """VL-13, VL-19: without it the walk stops at the child, for values and lists."""
    a = await lab.root()
    await set_value(lab, a, 1)
    batch = lab.main()
    batch.append(NAMESPACE, 1, conv_id=a)
    await batch.commit()
    child = await fork(lab, a, lab.storage.last_seq, inherits=False)
    assert await read(lab, value_at(child, "")) == ABSENT
    assert await listed(lab, list_at(child, "")) == []
    grandchild = await fork(lab, child, lab.storage.last_seq)
    assert await read(lab, value_at(grandchild, "")) == ABSENT


async def append(lab: Lab, conv_id: Seq, value: object, tag: str | None = None) -> Seq:
    """Commit a conversation list element; answer its seq."""
    batch = lab.main()
    fields = {} if tag is None else {"tag": tag}
    seq = batch.append(NAMESPACE, value, conv_id=conv_id, **fields)
    await batch.commit()
    return seq


async def a_list_page_is_bounded_and_stable(lab: Lab) -> None:
    """VL-17, VL-18, VL-22: after exclusive, as_of inclusive, oldest first; the last seq goes on."""
    conv_id = await lab.root()
    address = list_at(conv_id, "")
    seqs = [await append(lab, conv_id, number) for number in range(6)]
    assert await listed(lab, address, after=seqs[1], limit=2) == [2, 3]
    assert await listed(lab, address, as_of=seqs[3]) == [0, 1, 2, 3]
    fixed = seqs[-1]
    first = await lab.storage.elements(address, ListPage(limit=4, as_of=fixed))
    await append(lab, conv_id, "newer")
    await lab.reopen()
    rest = ListPage(limit=4, as_of=fixed, after=first[-1].seq)
    assert [one.seq for one in await lab.storage.elements(address, rest)] == seqs[4:]
    assert await listed(lab, address) == [0, 1, 2, 3, 4, 5, "newer"]


async def a_fork_reads_the_prefix_then_its_own(lab: Lab) -> None:
    """VL-19, VL-20, VL-27: ranges of ancestors, cursors across them, no sibling's appends."""
    a = await lab.root()
    in_a = [await append(lab, a, f"a{number}") for number in range(3)]
    b = await fork(lab, a, in_a[1])
    sibling = await fork(lab, a, in_a[1])
    await append(lab, a, "late in a")
    in_b = [await append(lab, b, f"b{number}") for number in range(2)]
    await append(lab, sibling, "sibling")
    c = await fork(lab, b, in_b[0])
    await append(lab, c, "c0")
    await lab.reopen()
    address = list_at(c, "")
    assert await listed(lab, address) == ["a0", "a1", "b0", "c0"]
    assert await listed(lab, address, limit=3) == ["a0", "a1", "b0"]
    assert await listed(lab, address, after=in_a[0], limit=2) == ["a1", "b0"]
    assert await listed(lab, address, after=in_a[1]) == ["b0", "c0"]
    assert await listed(lab, address, after=in_b[0]) == ["c0"]
    assert await listed(lab, address, before=in_b[0]) == ["a0", "a1"]
    assert await listed(lab, list_at(a, "")) == ["a0", "a1", "a2", "late in a"]
    assert await listed(lab, list_at(b, "")) == ["a0", "a1", "b0", "b1"]


async def pages_run_backwards_and_stop_at_tags(lab: Lab) -> None:
    """VL-21: descending, before and the tag across inherited ranges, never past the limit."""
    a = await lab.root()
    await append(lab, a, "a0", tag="mark")
    a1 = await append(lab, a, "a1")
    b = await fork(lab, a, a1)
    b0 = await append(lab, b, "b0", tag="mark")
    await append(lab, b, "b1")
    address = list_at(b, "")
    assert await listed(lab, address, order="desc") == ["b1", "b0", "a1", "a0"]
    assert await listed(lab, address, order="desc", limit=3) == ["b1", "b0", "a1"]
    assert await listed(lab, address, order="desc", before=b0) == ["a1", "a0"]
    assert await listed(lab, address, order="desc", stop_at_tag="mark") == ["b1", "b0"]
    assert await listed(lab, address, stop_at_tag="mark") == ["a0"]
    assert await listed(lab, address, order="desc", stop_at_tag="mark", limit=1) == ["b1"]
    assert await listed(lab, address, order="desc", before=b0, stop_at_tag="mark") == ["a1", "a0"]
    found = await lab.storage.elements(address, ListPage(limit=9))
    assert [element.tag for element in found] == ["mark", None, "mark", None]


async def values_are_scanned_by_prefix(lab: Lab) -> None:
    """VL-26: current values whose key starts with the prefix, by key bytes, after a key."""
    conv_id = await lab.root()
    keys = ["", "a", "a.b", "ab", "b", "é", "\U0001f600", "\uffff"]
    batch = lab.main()
    for key in keys:
        batch.set(NAMESPACE, key, key=key)
        batch.set(NAMESPACE, key, key=key, conv_id=conv_id)
        batch.set("other", key, key=key)
    await batch.commit()
    working = lab.working()
    for key in keys:
        working.set(NAMESPACE, key, key=key, working_scope=SCOPE.id)
    await working.commit()
    batch = lab.main()
    batch.delete(NAMESPACE, key="b")
    await batch.commit()
    child = await fork(lab, conv_id, lab.storage.last_seq)
    batch = lab.main()
    batch.delete(NAMESPACE, key="b", conv_id=child)
    batch.set(NAMESPACE, "new", key="ac", conv_id=child)
    await batch.commit()
    await lab.reopen()

    async def scan(prefix: Address, after: str | None = None, limit: int = 100) -> list[str]:
        found = await lab.storage.scan_values(prefix, after=after, limit=limit)
        return [value.key for value in found]

    ordered = sorted(keys)
    without_b = [key for key in ordered if key != "b"]
    assert await scan(SessionValue[str](NAMESPACE).address()) == without_b
    assert await scan(SessionValue[str](NAMESPACE, "a").address()) == ["a", "a.b", "ab"]
    assert await scan(SessionValue[str](NAMESPACE, "a").address(), "a", 1) == ["a.b"]
    assert await scan(SessionValue[str](NAMESPACE).address(), "", 2) == ["a", "a.b"]
    assert await scan(SessionValue[str]("nothing").address()) == []
    assert await scan(value_at(conv_id, "")) == ordered
    assert await scan(value_at(child, "a")) == ["a", "a.b", "ab", "ac"]
    assert "b" not in await scan(value_at(child, ""))
    assert await scan(SCOPE.value(NAMESPACE)) == ordered
    assert await scan(SCOPE.value(NAMESPACE, "\U0001f600")) == ["\U0001f600"]


async def values_of_the_past_are_scanned(lab: Lab) -> None:
    """VL-26, VL-13, TI-05: at a boundary the scan answers what each key read there, forks too."""
    a = await lab.root()
    boundaries = [lab.storage.last_seq]
    for changes in ({"x": 1, "y": 1}, {"x": 2, "z": 1}, {"y": None}):
        batch = lab.main()
        for key, value in changes.items():
            if value is None:
                batch.delete(NAMESPACE, key=key, conv_id=a)
            else:
                batch.set(NAMESPACE, value, key=key, conv_id=a)
        await batch.commit()
        boundaries.append(lab.storage.last_seq)
    child = await fork(lab, a, boundaries[2])
    made = lab.storage.last_seq
    batch = lab.main()
    batch.delete(NAMESPACE, key="x", conv_id=child)
    batch.set(NAMESPACE, 9, key="w", conv_id=child)
    await batch.commit()
    await lab.reopen()

    async def scan(conv_id: Seq, as_of: Seq | None, limit: int = 9) -> dict[str, object]:
        found = await lab.storage.scan_values(
            value_at(conv_id, ""), after=None, limit=limit, as_of=as_of
        )
        return {one.key: decode_json(one.value_json) for one in found}

    seen = [await scan(a, one) for one in boundaries]
    assert seen == [{}, {"x": 1, "y": 1}, {"x": 2, "y": 1, "z": 1}, {"x": 2, "z": 1}]
    assert await scan(a, boundaries[2], limit=2) == {"x": 2, "y": 1}
    assert await scan(child, boundaries[2]) == {}, "it had not begun"
    assert await scan(child, made) == {"x": 2, "y": 1, "z": 1}
    assert await scan(child, None) == {"w": 9, "y": 1, "z": 1}
    await fails(scan(a, Seq(boundaries[1] - 1)), Rejected, "invariant")


async def working_data_survives_until_retired(lab: Lab) -> None:
    """WS-01, WS-05, WS-06: only retirement ends it; the next lifetime starts empty."""
    await lab.root()
    working = lab.working()
    working.set(NAMESPACE, 1, working_scope=SCOPE.id)
    for number in range(3):
        working.append(NAMESPACE, number, working_scope=SCOPE.id)
    await working.commit()
    await lab.reopen()
    assert await read(lab, SCOPE.value(NAMESPACE)) == 1
    assert await listed(lab, SCOPE.list(NAMESPACE), limit=2) == [0, 1]
    assert await listed(lab, SCOPE.list(NAMESPACE), order="desc", limit=1) == [2]
    batch = lab.main()
    batch.add(RetireScope, working_scope=SCOPE.id)
    await batch.commit()
    for _ in range(2):
        assert await read(lab, SCOPE.value(NAMESPACE)) == ABSENT
        assert await listed(lab, SCOPE.list(NAMESPACE)) == []
        await lab.reopen()
    working = lab.working()
    working.append(NAMESPACE, "new", working_scope=SCOPE.id)
    await working.commit()
    assert await listed(lab, SCOPE.list(NAMESPACE)) == ["new"]
    assert await read(lab, SCOPE.value(NAMESPACE)) == ABSENT


async def working_values_and_lists_are_deleted_one_by_one(lab: Lab) -> None:
    """WS-01, ST-24: a delete takes its own address and no other."""
    await lab.root()
    working = lab.working()
    for key in ("a", "b"):
        working.set(NAMESPACE, key, key=key, working_scope=SCOPE.id)
        working.append(NAMESPACE, key, key=key, working_scope=SCOPE.id)
    await working.commit()
    working = lab.working()
    working.delete(NAMESPACE, key="a", working_scope=SCOPE.id)
    working.add(DeleteList, namespace=NAMESPACE, key="a", working_scope=SCOPE.id)
    await working.commit()
    assert await read(lab, SCOPE.value(NAMESPACE, "a")) == ABSENT
    assert await read(lab, SCOPE.value(NAMESPACE, "b")) == "b"
    assert await listed(lab, SCOPE.list(NAMESPACE, "a")) == []
    assert await listed(lab, SCOPE.list(NAMESPACE, "b")) == ["b"]


async def working_data_never_inherits_or_rewinds(lab: Lab) -> None:
    """WS-02, ST-16: a fork sees none of it, and a boundary changes nothing."""
    conv_id = await lab.root()
    working = lab.working()
    working.set(NAMESPACE, "new", working_scope=SCOPE.id)
    await working.commit()
    child = await fork(lab, conv_id, Seq(1))
    assert await read(lab, value_at(child, "")) == ABSENT
    assert await read(lab, SCOPE.value(NAMESPACE), Seq(1)) == "new"


async def retirement_and_settlement_are_one(lab: Lab) -> None:
    """WS-07, SQ-03: a refused settlement retires nothing; a good one takes the scope along."""
    conv_id = await lab.root()
    batch = lab.main()
    task_id = batch.task(conv_id)
    await batch.commit()
    scope = WorkingScope(str(task_id))
    working = lab.working()
    working.set(NAMESPACE, 1, working_scope=scope.id)
    await working.commit()
    batch = lab.main()
    batch.add(RetireScope, working_scope=scope.id)
    batch.add(SettleTask, task_id=Seq(999), status="done")
    await lab.refuses(batch.build())
    assert await read(lab, scope.value(NAMESPACE)) == 1
    batch = lab.main()
    batch.entry(conv_id)
    batch.add(SettleTask, task_id=task_id, status="done")
    batch.add(RetireScope, working_scope=scope.id)
    await batch.commit()
    await lab.reopen()
    assert await read(lab, scope.value(NAMESPACE)) == ABSENT
    assert (await lab.storage.tasks([task_id]))[task_id].status == "done"


async def scope_names_are_any_text(lab: Lab) -> None:
    """WS-13, D29: an id is text, compared by code points; nothing parses it."""
    await lab.root()
    names = ["a", "A", "é", "e\u0301", "../x", "a b", "\U0001f600", "x" * 1024]
    for name in names:
        working = lab.working()
        working.set(NAMESPACE, name, working_scope=name)
        await working.commit()
    await lab.reopen()
    for name in names:
        assert await read(lab, WorkingScope(name).value(NAMESPACE)) == name
    for name in ("", "x" * 1025, "a\x00"):
        working = lab.working()
        working.set(NAMESPACE, 1, working_scope=name)
        await lab.refuses(working.build())


async def a_deep_chain_of_forks_is_read(lab: Lab) -> None:
    """VL-16, SQ-09: a hundred ancestors are walked; the nearest version wins."""
    root = await lab.root()
    await set_value(lab, root, "root")
    await append(lab, root, 0)
    conv_id = root
    for number in range(100):
        conv_id = await fork(lab, conv_id, lab.storage.last_seq)
        if number == 50:
            await append(lab, conv_id, 1)
    await lab.reopen()
    assert await read(lab, value_at(conv_id, "")) == "root"
    assert await listed(lab, list_at(conv_id, "")) == [0, 1]
    assert (await lab.storage.conversations([conv_id]))[conv_id].parent is not UNSET
