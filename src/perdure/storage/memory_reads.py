"""Reads of the memory index: async by port, never waiting."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from msgspec import UNSET

from perdure.records.addresses import Address
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry
from perdure.records.seqs import NO_SEQ, Seq
from perdure.records.sessions import (
    ConversationScan,
    EntryScan,
    ListElement,
    ListPage,
    StoredValue,
    TaskScan,
)
from perdure.records.tasks import Task
from perdure.records.writes import Commit
from perdure.storage.admission import (
    check_address,
    check_commits_limit,
    check_limit,
    refuse,
)
from perdure.storage.memory_index import MemoryIndex, Versions


def bounded(
    ids: Sequence[Seq], scan: ConversationScan | EntryScan | TaskScan | ListPage
) -> Iterable[Seq]:
    """Walk ascending ids between a scan's exclusive bounds, in its order."""
    low = 0 if scan.after is None else bisect_right(ids, scan.after)
    high = len(ids) if scan.before is None else bisect_left(ids, scan.before)
    if scan.order == "asc":
        return (ids[place] for place in range(low, high))
    return (ids[place] for place in range(high - 1, low - 1, -1))


class MemoryReads:
    """The read half of the `Storage` port over a memory index."""

    def __init__(self, index: MemoryIndex) -> None:
        self._index = index

    def _check_open(self) -> None:
        """Refuse use of a closed handle."""

    def _check_boundary(self, as_of: Seq | None) -> None:
        if as_of is not None and not self._index.is_boundary(as_of):
            refuse(f"as_of {as_of!r} is not the end of a main commit, nor 0", as_of=as_of)

    async def commits(self, *, after: Seq, limit: int) -> Sequence[Commit]:
        """Answer main commits in order."""
        self._check_open()
        check_commits_limit(limit)
        low = bisect_right(self._index.commits.seqs, after)
        return self._index.commits.items[low : low + limit]

    async def boundary_at(self, time_ms: int) -> Seq:
        """Answer the last main commit's end at or before a wall time."""
        self._check_open()
        place = bisect_right(self._index.times, time_ms)
        return self._index.commits.seqs[place - 1] if place else NO_SEQ

    async def conversations(
        self, ids: Sequence[Seq], *, as_of: Seq | None = None
    ) -> Mapping[Seq, ConversationState]:
        """Answer the conversations that exist."""
        self._check_open()
        self._check_boundary(as_of)
        found = ((conv_id, self._index.conversation(conv_id, as_of)) for conv_id in ids)
        return {conv_id: state for conv_id, state in found if state is not None}

    async def scan_conversations(self, scan: ConversationScan) -> Sequence[ConversationState]:
        """Answer a page of conversations by id."""
        self._check_open()
        check_limit(scan.limit)
        self._check_boundary(scan.as_of)
        index = self._index

        def matches(conv_id: Seq) -> bool:
            facts = index.conversations[conv_id].facts
            parent = None if facts.parent is UNSET else facts.parent.conv_id
            return (
                (scan.as_of is None or conv_id <= scan.as_of)
                and (scan.parent is None or parent == scan.parent)
                and (scan.owner is None or facts.owner == scan.owner)
            )

        ids = filter(matches, bounded(list(index.conversations), scan))
        states = (index.conversation(conv_id, scan.as_of) for conv_id in islice(ids, scan.limit))
        return [state for state in states if state is not None]

    async def entries(self, ids: Sequence[Seq]) -> Mapping[Seq, Entry]:
        """Answer entries with payloads."""
        self._check_open()
        entries = self._index.entries
        return {entry_id: entries[entry_id] for entry_id in ids if entry_id in entries}

    async def scan_entries(self, scan: EntryScan) -> Sequence[Entry]:
        """Answer a page of entries by id."""
        self._check_open()
        check_limit(scan.limit)
        self._check_boundary(scan.as_of)
        index = self._index
        ids = index.entry_ids if scan.conv_id is None else index.entry_ids_of.get(scan.conv_id, ())

        def matches(entry: Entry) -> bool:
            return (
                (scan.as_of is None or entry.commit_end <= scan.as_of)
                and (scan.kind is None or entry.kind == scan.kind)
                and (scan.key is None or entry.key == scan.key)
            )

        entries = (index.entries[entry_id] for entry_id in bounded(ids, scan))
        return list(islice(filter(matches, entries), scan.limit))

    async def tasks(self, ids: Sequence[Seq], *, as_of: Seq | None = None) -> Mapping[Seq, Task]:
        """Answer tasks as they are, or were at a boundary."""
        self._check_open()
        self._check_boundary(as_of)
        found: dict[Seq, Task] = {}
        for task_id in ids:
            versions = self._index.tasks.get(task_id)
            task = None if versions is None else versions.at(as_of)
            if task is not None:
                found[task_id] = task
        return found

    async def scan_tasks(self, scan: TaskScan) -> Sequence[Task]:
        """Answer a page of tasks by id."""
        self._check_open()
        check_limit(scan.limit)
        self._check_boundary(scan.as_of)
        matches = self._task_filter(scan)
        tasks = (
            self._index.tasks[task_id].at(scan.as_of)
            for task_id in bounded(self._task_ids(scan), scan)
        )
        return list(islice((task for task in tasks if task and matches(task)), scan.limit))

    def _task_ids(self, scan: TaskScan) -> Sequence[Seq]:
        if scan.live and scan.as_of is None:
            return sorted(self._index.live)
        if scan.conv_id is not None:
            return self._index.task_ids_of.get(scan.conv_id, ())
        return self._index.task_ids

    def _task_filter(self, scan: TaskScan) -> Callable[[Task], bool]:
        settled = self._index.settled

        def is_live(task: Task) -> bool:
            end = settled.get(task.id)
            return end is None or (scan.as_of is not None and end > scan.as_of)

        def matches(task: Task) -> bool:
            return (
                (scan.conv_id is None or task.conv_id == scan.conv_id)
                and (scan.kind is None or task.kind == scan.kind)
                and (scan.live is None or is_live(task) == scan.live)
            )

        return matches

    async def value(self, address: Address, *, as_of: Seq | None = None) -> StoredValue | None:
        """Answer the scalar at an address."""
        self._check_open()
        check_address(address, "value")
        index, place = self._index, (address.namespace, address.key)
        if address.conv_id is not UNSET:
            self._check_boundary(as_of)
            return self._versioned(address.conv_id, place, as_of)
        if address.working_scope is UNSET:
            return index.session.values.get(place)
        scope = index.scopes.get(address.working_scope)
        return None if scope is None else scope.values.get(place)

    def _versioned(
        self, conv_id: Seq, place: tuple[str, str], as_of: Seq | None
    ) -> StoredValue | None:
        for ancestor, cutoff in self._index.chain(conv_id, as_of):
            versions = self._index.values.get((ancestor, place))
            at = 0 if versions is None else bisect_right(versions.seqs, cutoff)
            if versions is not None and at:
                value = versions.items[at - 1]
                if value is None:
                    return None
                return StoredValue(key=place[1], seq=versions.seqs[at - 1], value_json=value)
        return None

    async def scan_values(
        self, prefix: Address, *, after: str | None, limit: int, as_of: Seq | None = None
    ) -> Sequence[StoredValue]:
        """Answer values of a namespace by key, now or at a boundary."""
        self._check_open()
        check_limit(limit)
        check_address(prefix, "value")
        scope = self._index.session
        if prefix.working_scope is not UNSET:
            found = self._index.scopes.get(prefix.working_scope)
            if found is None:
                return []
            scope = found
        conv_id, namespace = prefix.conv_id, prefix.namespace
        if conv_id is not UNSET:
            self._check_boundary(as_of)
            keys = with_prefix(self._index.keys.get(namespace, ()), prefix.key, after)
            seen = (self._versioned(conv_id, (namespace, key), as_of) for key in keys)
            return list(islice((value for value in seen if value is not None), limit))
        keys = with_prefix(scope.keys.get(namespace, ()), prefix.key, after)
        return [scope.values[namespace, key] for key in islice(keys, limit)]

    async def elements(self, address: Address, page: ListPage) -> Sequence[ListElement]:
        """Answer a page of a list, inherited ranges included."""
        self._check_open()
        check_limit(page.limit)
        check_address(address, "list")
        index, place = self._index, (address.namespace, address.key)
        if address.conv_id is not UNSET:
            self._check_boundary(page.as_of)
            ranges = [
                (index.lists.get((conv_id, place)), cutoff)
                for conv_id, cutoff in index.chain(address.conv_id, page.as_of)
            ]
        else:
            scope = (
                index.session
                if address.working_scope is UNSET
                else index.scopes.get(address.working_scope)
            )
            ranges = [(None if scope is None else scope.lists.get(place), index.last_seq)]
        return taken(ranges, page)


def with_prefix(keys: Sequence[str], prefix: str, after: str | None) -> Iterable[str]:
    """Walk the sorted keys that start with a prefix, after a key."""
    start = bisect_left(keys, prefix)
    if after is not None:
        start = max(start, bisect_right(keys, after))
    for place in range(start, len(keys)):
        if not keys[place].startswith(prefix):
            return
        yield keys[place]


def taken(
    ranges: Sequence[tuple[Versions[ListElement] | None, Seq]], page: ListPage
) -> list[ListElement]:
    """Take a page from ranges given nearest conversation first; each ends at its cutoff."""
    found: list[ListElement] = []
    for versions, cutoff in reversed(ranges) if page.order == "asc" else ranges:
        if versions is None:
            continue
        seqs = versions.seqs
        low = 0 if page.after is None else bisect_right(seqs, page.after)
        high = bisect_right(seqs, cutoff)
        if page.before is not None:
            high = min(high, bisect_left(seqs, page.before))
        places = range(low, high) if page.order == "asc" else range(high - 1, low - 1, -1)
        for place in places:
            found.append(versions.items[place])
            stopped = page.stop_at_tag is not None and found[-1].tag == page.stop_at_tag
            if stopped or len(found) == page.limit:
                return found
    return found
