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
from collections.abc import Sequence
from enum import StrEnum

from perdure.errors import Faulted
from perdure.line.passing import PassingStorage
from perdure.ports import Sessions, Storage
from perdure.records.sessions import Created, SessionInfo
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


class FaultyStorage(PassingStorage):
    """One session behind a fault plan; without a fault it is the session itself."""

    def __init__(self, storage: Storage, plan: FaultPlan) -> None:
        super().__init__(storage)
        self._plan = plan
        self._fault: str | None = None
        self._closing = asyncio.Event()

    async def commit(self, commit: Commit, *, barrier: bool) -> None:
        """Persist one batch, unless the plan picks it."""
        if self._fault is not None:
            raise Faulted(self._fault)
        if not self._plan.picks(read=False):
            await self._inner.commit(commit, barrier=barrier)
            return
        self._fault = f"planned fault {self._plan.fault} at commit {self._plan.nth}"
        if self._plan.fault is not Fault.BEFORE:
            await self._inner.commit(commit, barrier=barrier)
        if self._plan.fault is Fault.LOST:
            await self._closing.wait()
        raise Faulted(self._fault)

    def _reading(self) -> Storage:
        if self._plan.picks(read=True):
            raise Faulted(f"planned fault at read {self._plan.nth}")
        return self._inner

    async def close(self) -> None:
        """Let a waiting caller go, and close the session."""
        self._closing.set()
        await super().close()


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

    async def find(self, session_id: str) -> SessionInfo:
        """Answer a session by its id."""
        return await self._sessions.find(session_id)

    async def create(self, name: str, *, request_id: str | None = None) -> Created:
        """Make an empty session."""
        return await self._sessions.create(name, request_id=request_id)

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
