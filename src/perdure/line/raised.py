"""Reads of older payloads, states and statuses as this release has them (FM-12, FM-14).

A storage around a storage: what is read is raised by the kinds' own steps, `commits()` answers
what is stored, and nothing stored is rewritten. The first patch of a task that was raised carries
its whole new state, for storage merges it into the old one. Where no kind has a step or a mapped
status, nothing stands between line and storage.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.line.facts import KindTable
from perdure.line.passing import PassingStorage
from perdure.ports import Storage
from perdure.records.codec import decode, merge_object, to_raw
from perdure.records.entries import Entry
from perdure.records.seqs import Seq
from perdure.records.sessions import EntryScan, TaskScan
from perdure.records.tasks import Task
from perdure.records.versions import raised
from perdure.records.writes import Commit, PatchTask, SettleTask, Write

_OF_TASK: Final = (PatchTask, SettleTask)


def raising(storage: Storage, kinds: KindTable) -> Storage:
    """Answer a storage that reads as this release does: itself, when nothing has changed."""
    return RaisedStorage(storage, kinds) if kinds.has_older else storage


class _Older(Struct, frozen=True, kw_only=True):
    """A live task as it is stored, and as it is read."""

    stored: Task
    read: Task


class RaisedStorage(PassingStorage):
    """Raise what is read; see the port for the rest."""

    def __init__(self, inner: Storage, kinds: KindTable) -> None:
        """Take the storage, and the kinds with their steps."""
        super().__init__(inner)
        self._kinds = kinds
        self._older: dict[Seq, _Older] = {}

    async def commit(self, commit: Commit, *, barrier: bool) -> None:
        """Persist one batch; a first patch of a raised task says all that changed."""
        named = [write.task_id for write in commit.writes if isinstance(write, _OF_TASK)]
        older = [task_id for task_id in named if task_id in self._older]
        if not older:
            await self._inner.commit(commit, barrier=barrier)
            return
        writes = tuple(self._whole(write) for write in commit.writes)
        await self._inner.commit(msgspec.structs.replace(commit, writes=writes), barrier=barrier)
        for task_id in older:
            self._older.pop(task_id, None)

    def _whole(self, write: Write) -> Write:
        if not isinstance(write, _OF_TASK) or write.task_id not in self._older:
            return write
        older = self._older[write.task_id]
        state = older.read.state_json
        if write.state_json is not UNSET or write.unset:
            patch = Raw(b"{}") if write.state_json is UNSET else write.state_json
            state = merge_object(state, patch, write.unset)
        gone = set(decode(older.stored.state_json, dict[str, Raw])) - set(
            decode(state, dict[str, Raw])
        )
        status: str | UnsetType = write.status
        if status is UNSET and older.read.status != older.stored.status:
            status = older.read.status
        return msgspec.structs.replace(
            write, state_json=to_raw(state), unset=tuple(sorted(gone)), status=status
        )

    # Reads that raise.

    async def entries(self, ids: Sequence[Seq]) -> Mapping[Seq, Entry]:
        """Answer entries with payloads of the newest version."""
        found = await self._inner.entries(ids)
        return {entry_id: self._entry(entry) for entry_id, entry in found.items()}

    async def scan_entries(self, scan: EntryScan) -> Sequence[Entry]:
        """Answer a page of entries."""
        return [self._entry(entry) for entry in await self._inner.scan_entries(scan)]

    async def tasks(self, ids: Sequence[Seq], *, as_of: Seq | None = None) -> Mapping[Seq, Task]:
        """Answer tasks with states of the newest version."""
        found = await self._inner.tasks(ids, as_of=as_of)
        return dict(zip(found, self._tasks(found.values(), now=as_of is None), strict=True))

    async def scan_tasks(self, scan: TaskScan) -> Sequence[Task]:
        """Answer a page of tasks."""
        return self._tasks(await self._inner.scan_tasks(scan), now=scan.as_of is None)

    def _entry(self, entry: Entry) -> Entry:
        facts = self._kinds.content(entry.kind)
        if facts is None or not facts.steps or entry.payload_json is UNSET:
            return entry
        return msgspec.structs.replace(entry, payload_json=raised(entry.payload_json, facts.steps))

    def _tasks(self, tasks: Iterable[Task], *, now: bool) -> list[Task]:
        return [self._task(task, now=now) for task in tasks]

    def _task(self, task: Task, *, now: bool) -> Task:
        facts = self._kinds.task(task.kind)
        if facts is None:
            return task
        state = raised(task.state_json, facts.steps)
        status = facts.mapped.get(task.status, task.status)
        if state is task.state_json and status == task.status:
            return task
        read = msgspec.structs.replace(task, state_json=state, status=status)
        if now and self._kinds.is_live(read):
            self._older[task.id] = _Older(stored=task, read=read)
        return read
