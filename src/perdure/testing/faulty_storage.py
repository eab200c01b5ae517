"""A fault model above any storage: fail the Nth operation, before or after it was stored.

Which faults, and why a session must survive each of them:

- `BEFORE`: the disk refused; nothing is stored, the caller gets `Faulted`.
- `AFTER`: the batch is stored, the caller gets `Faulted` all the same: its outcome is uncertain
  to the caller, so nobody may try it again blindly (ST-08, FT-05).
- `LOST`: the batch is stored and the answer never comes; the caller waits until the handle is
  closed, as it would for a host that died.

After a fault the handle writes nothing more (FT-03). The store below is never damaged: the fault
is switched off by opening it without the wrapper. Bytes that are lost below the port are the
trade of `perdure.testing.power_rig`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from enum import StrEnum

from perdure.errors import Faulted
from perdure.ports import Sessions, Storage
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


class Fault(StrEnum):
    """What happens to the operation that a plan picks."""

    BEFORE = "before"
    AFTER = "after"
    LOST = "lost"


class FaultPlan:
    """Pick the Nth commit (or, with `reads`, the Nth read) and say what happens to it.

    One plan counts over every session and every reopening it is used with; `nth` 0 picks none.
    """

    def __init__(self, nth: int = 0, fault: Fault = Fault.BEFORE, *, reads: bool = False) -> None:
        self.nth = nth
        self.fault = fault
        self.reads = reads
        self.count = 0

    @property
    def fired(self) -> bool:
        """Say whether the fault has happened."""
        return 0 < self.nth <= self.count

    def picks(self, *, read: bool) -> bool:
        """Count an operation; say whether it is the one."""
        if read != self.reads:
            return False
        self.count += 1
        return self.count == self.nth


class FaultyStorage:
    """One session behind a fault plan; without a fault it is the session itself."""

    def __init__(self, storage: Storage, plan: FaultPlan) -> None:
        self._storage = storage
        self._plan = plan
        self._fault: str | None = None
        self._closing = asyncio.Event()

    @property
    def info(self) -> SessionInfo:
        """Answer id, name, format and epoch."""
        return self._storage.info

    @property
    def last_seq(self) -> Seq:
        """Answer the highest committed seq."""
        return self._storage.last_seq

    async def commit(self, commit: Commit, *, barrier: bool) -> None:
        """Persist one batch, unless the plan picks it."""
        if self._fault is not None:
            raise Faulted(self._fault)
        if not self._plan.picks(read=False):
            await self._storage.commit(commit, barrier=barrier)
            return
        self._fault = f"planned fault {self._plan.fault} at commit {self._plan.nth}"
        if self._plan.fault is not Fault.BEFORE:
            await self._storage.commit(commit, barrier=barrier)
        if self._plan.fault is Fault.LOST:
            await self._closing.wait()
        raise Faulted(self._fault)

    def _reading(self) -> Storage:
        if self._plan.picks(read=True):
            raise Faulted(f"planned fault at read {self._plan.nth}")
        return self._storage

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
        self, prefix: Address, *, after: str | None, limit: int
    ) -> Sequence[StoredValue]:
        """Answer values of a namespace."""
        return await self._reading().scan_values(prefix, after=after, limit=limit)

    async def elements(self, address: Address, page: ListPage) -> Sequence[ListElement]:
        """Answer a page of a list."""
        return await self._reading().elements(address, page)

    async def close(self) -> None:
        """Let a waiting caller go, and close the session."""
        self._closing.set()
        await self._storage.close()


class FaultySessions:
    """A container whose sessions share one fault plan."""

    def __init__(self, sessions: Sessions, plan: FaultPlan | None = None) -> None:
        self._sessions = sessions
        self.plan = FaultPlan() if plan is None else plan

    async def open(
        self, name: str, *, create: bool, read_only: bool = False, control: str | None = None
    ) -> FaultyStorage:
        """Open a session behind the plan."""
        storage = await self._sessions.open(
            name, create=create, read_only=read_only, control=control
        )
        return FaultyStorage(storage, self.plan)

    async def page(self, *, after: str | None, limit: int) -> Sequence[SessionInfo]:
        """Answer sessions by name."""
        return await self._sessions.page(after=after, limit=limit)

    async def rename(self, old: str, new: str) -> None:
        """Give a session a new name."""
        await self._sessions.rename(old, new)

    async def delete(self, name: str) -> None:
        """Delete a session."""
        await self._sessions.delete(name)

    async def close(self) -> None:
        """Close the container."""
        await self._sessions.close()
