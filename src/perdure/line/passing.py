"""A storage around a storage: it passes everything on, and what is built on it changes a part."""

from collections.abc import Mapping, Sequence

from perdure.ports import Storage
from perdure.records.addresses import Address
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry
from perdure.records.seqs import Seq
from perdure.records.sessions import (
    ConversationScan,
    EntryScan,
    ListElement,
    ListPage,
    Opening,
    SessionInfo,
    StoredValue,
    TaskScan,
)
from perdure.records.tasks import Task
from perdure.records.writes import Commit


class PassingStorage:
    """Pass everything on; see the port."""

    def __init__(self, inner: Storage) -> None:
        """Take the storage."""
        self._inner = inner

    @property
    def info(self) -> SessionInfo:
        """Answer id, name, format and epoch."""
        return self._inner.info

    @property
    def last_seq(self) -> Seq:
        """Answer the highest committed seq."""
        return self._inner.last_seq

    def _reading(self) -> Storage:
        """Answer where a read goes."""
        return self._inner

    async def commit(self, commit: Commit, *, barrier: bool) -> None:
        """Persist one batch."""
        await self._inner.commit(commit, barrier=barrier)

    async def commits(self, *, after: Seq, limit: int) -> Sequence[Commit]:
        """Answer main commits in order."""
        return await self._reading().commits(after=after, limit=limit)

    async def boundary_at(self, time_ms: int) -> Seq:
        """Answer the last main commit's end at or before a wall time."""
        return await self._reading().boundary_at(time_ms)

    async def openings(self, *, limit: int) -> Sequence[Opening]:
        """Answer who opened the session when."""
        return await self._reading().openings(limit=limit)

    async def conversations(
        self, ids: Sequence[Seq], *, as_of: Seq | None = None
    ) -> Mapping[Seq, ConversationState]:
        """Answer the conversations that exist."""
        return await self._reading().conversations(ids, as_of=as_of)

    async def scan_conversations(self, scan: ConversationScan) -> Sequence[ConversationState]:
        """Answer a page of conversations."""
        return await self._reading().scan_conversations(scan)

    async def entries(self, ids: Sequence[Seq]) -> Mapping[Seq, Entry]:
        """Answer entries."""
        return await self._reading().entries(ids)

    async def scan_entries(self, scan: EntryScan) -> Sequence[Entry]:
        """Answer a page of entries."""
        return await self._reading().scan_entries(scan)

    async def tasks(self, ids: Sequence[Seq], *, as_of: Seq | None = None) -> Mapping[Seq, Task]:
        """Answer tasks."""
        return await self._reading().tasks(ids, as_of=as_of)

    async def scan_tasks(self, scan: TaskScan) -> Sequence[Task]:
        """Answer a page of tasks."""
        return await self._reading().scan_tasks(scan)

    async def value(self, address: Address, *, as_of: Seq | None = None) -> StoredValue | None:
        """Answer a scalar."""
        return await self._reading().value(address, as_of=as_of)

    async def scan_values(
        self, prefix: Address, *, after: str | None, limit: int, as_of: Seq | None = None
    ) -> Sequence[StoredValue]:
        """Answer values of a namespace."""
        return await self._reading().scan_values(prefix, after=after, limit=limit, as_of=as_of)

    async def elements(self, address: Address, page: ListPage) -> Sequence[ListElement]:
        """Answer a page of a list."""
        return await self._reading().elements(address, page)

    async def close(self) -> None:
        """Close the session."""
        await self._inner.close()
