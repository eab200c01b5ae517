"""One open session of a SQLite container, behind the `Storage` port.

Commits of one handle go one at a time. Once admitted a commit runs to its end whatever becomes
of its caller; the handle counts it when the writer says so. After a fault the handle writes
nothing more (FT-03).
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from msgspec import structs

from perdure.errors import Closed, Faulted, Fenced, Rejected
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
from perdure.storage.admission import (
    admit,
    check_address,
    check_commits_limit,
    check_limit,
    refuse,
)
from perdure.storage.blobs import BlobSource
from perdure.storage.sqlite.opened import Opened
from perdure.storage.sqlite.threads import NO_BLOBS, Reader
from perdure.storage.sqlite.values import ValueReads
from perdure.storage.sqlite.writer import CommitJob

T = TypeVar("T")

FEW: Final = 4
"""Most entries or conversations that are read on the event loop."""

FEW_IDS: Final = 256
"""Longest context list, since it was last edited, that is read there."""

SMALL_PAGE: Final = 100
"""Longest page of a list that is read on the event loop."""


class SqliteStorage:
    """One session; make it with `SqliteSessions.open`."""

    def __init__(
        self,
        reader: Reader,
        info: SessionInfo,
        session: int,
        forget: Callable[["SqliteStorage"], None],
    ) -> None:
        self._reader = reader
        self._info = info
        self._session = session
        self._last_seq = info.last_seq
        self._last_ms = info.last_commit_ms
        self._names: dict[tuple[str, str], int] = {}
        self._opened: Opened | None = None
        self._fault: Faulted | None = None
        self._pid = os.getpid()
        self._closed = False
        self._turn = asyncio.Lock()
        self._forget = forget

    def own(self, opened: Opened) -> None:
        """Make this the writing handle of the session."""
        self._opened = opened

    @property
    def info(self) -> SessionInfo:
        """Answer id, name, format and epoch."""
        return structs.replace(self._info, last_seq=self._last_seq, last_commit_ms=self._last_ms)

    @property
    def last_seq(self) -> Seq:
        """Answer the highest committed seq."""
        return self._last_seq

    @property
    def session(self) -> int:
        """Answer the session's number in this file."""
        return self._session

    def renamed(self, name: str) -> None:
        """Take a new name."""
        self._info = structs.replace(self._info, name=name)

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise Faulted("this session was opened before the process forked", code="forked")
        if self._closed:
            raise Closed("the session is closed")

    def _writer(self) -> Opened:
        self._check_open()
        if self._fault is not None:
            raise same_fault(self._fault)
        if self._opened is None:
            refuse("the session is open read-only")
        return self._opened

    # Writing

    async def commit(self, commit: Commit, *, barrier: bool) -> None:
        """Persist one batch; see the port."""
        await self._turn.acquire()
        try:
            job = self._admit(commit, barrier=barrier)
        except BaseException:
            self._turn.release()
            raise
        await job.future

    def _admit(self, commit: Commit, *, barrier: bool) -> CommitJob:
        opened = self._writer()
        text, scope = admit(commit, self._last_seq)
        if scope is None and commit.time_ms < self._last_ms:
            refuse(
                f"the time {commit.time_ms!r} is below {self._last_ms}, the commit before (TI-01)"
            )
        job = CommitJob(
            commit,
            text=text,
            scope=scope,
            barrier=barrier,
            rows=opened.rows,
            epoch=self._info.epoch,
            done=self._committed,
        )
        opened.writer.submit(job)
        return job

    def _committed(self, job: CommitJob) -> None:
        if job.error is None:
            self._last_seq = job.commit.last_seq
            if job.scope is None:
                self._last_ms = job.commit.time_ms
        elif not isinstance(job.error, Rejected):
            self._fault = same_fault(job.error)
        self._turn.release()

    # Reading

    async def _read(self, work: Callable[[ValueReads], T], *, small: bool = False) -> T:
        """Run a query; `small` says that it reads a few rows at most."""
        self._check_open()
        reader, session, names = self._reader, self._session, self._names

        def query(conn: sqlite3.Connection, blobs: BlobSource) -> T:
            reads = ValueReads(conn, session, blobs, names)
            reads.ids_max = FEW_IDS if blobs is NO_BLOBS else None
            return work(reads)

        if self._opened is not None:
            if small:
                return await reader.look(query)
            return await reader.call(lambda conn: query(conn, reader.blobs))
        # A handle that does not write learns the head from what it reads; and another process may
        # have made the container anew meanwhile, with other numbers.
        names.clear()
        head, answer = await reader.call(
            lambda conn: (head_of(conn, session), query(conn, reader.blobs))
        )
        self._last_seq, self._last_ms = head
        return answer

    async def commits(self, *, after: Seq, limit: int) -> Sequence[Commit]:
        """Answer main commits in order."""
        check_commits_limit(limit)
        return await self._read(lambda reads: reads.journal.commits(after, limit))

    async def boundary_at(self, time_ms: int) -> Seq:
        """Answer the last main commit's end at or before a wall time."""
        return await self._read(lambda reads: reads.journal.boundary_at(time_ms))

    async def openings(self, *, limit: int) -> Sequence[Opening]:
        """Answer who opened the session when, newest first."""
        check_limit(limit)
        return await self._read(lambda reads: reads.openings(limit))

    async def conversations(
        self, ids: Sequence[Seq], *, as_of: Seq | None = None
    ) -> Mapping[Seq, ConversationState]:
        """Answer the conversations that exist."""
        wanted = tuple(ids)
        small = len(wanted) <= FEW
        return await self._read(lambda reads: reads.conversations(wanted, as_of), small=small)

    async def scan_conversations(self, scan: ConversationScan) -> Sequence[ConversationState]:
        """Answer a page of conversations by id."""
        check_limit(scan.limit)
        return await self._read(lambda reads: reads.scan_conversations(scan))

    async def entries(self, ids: Sequence[Seq]) -> Mapping[Seq, Entry]:
        """Answer entries with payloads."""
        wanted = tuple(ids)
        return await self._read(lambda reads: reads.entries(wanted), small=len(wanted) <= FEW)

    async def scan_entries(self, scan: EntryScan) -> Sequence[Entry]:
        """Answer a page of entries by id."""
        check_limit(scan.limit)
        return await self._read(lambda reads: reads.scan_entries(scan))

    async def tasks(self, ids: Sequence[Seq], *, as_of: Seq | None = None) -> Mapping[Seq, Task]:
        """Answer tasks as they are, or were at a boundary."""
        wanted = tuple(ids)
        return await self._read(lambda reads: reads.tasks(wanted, as_of))

    async def scan_tasks(self, scan: TaskScan) -> Sequence[Task]:
        """Answer a page of tasks by id."""
        check_limit(scan.limit)
        return await self._read(lambda reads: reads.scan_tasks(scan))

    async def value(self, address: Address, *, as_of: Seq | None = None) -> StoredValue | None:
        """Answer the scalar at an address."""
        check_address(address, "value")
        return await self._read(lambda reads: reads.value(address, as_of), small=True)

    async def scan_values(
        self, prefix: Address, *, after: str | None, limit: int, as_of: Seq | None = None
    ) -> Sequence[StoredValue]:
        """Answer values of a namespace by key, now or at a boundary."""
        check_limit(limit)
        check_address(prefix, "value")
        return await self._read(lambda reads: reads.scan_values(prefix, after, limit, as_of))

    async def elements(self, address: Address, page: ListPage) -> Sequence[ListElement]:
        """Answer a page of a list, inherited ranges included."""
        check_limit(page.limit)
        check_address(address, "list")
        small = page.limit <= SMALL_PAGE
        return await self._read(lambda reads: reads.elements(address, page), small=small)

    # Closing

    async def close(self) -> None:
        """Finish what was admitted, sync it under "power", give the lock free."""
        if self._closed or os.getpid() != self._pid:
            self._closed = True
            return
        self._closed = True
        self._forget(self)
        async with self._turn:
            opened, self._opened = self._opened, None
            if opened is not None:
                await opened.close(faulted=self._fault is not None)


def head_of(conn: sqlite3.Connection, session: int) -> tuple[Seq, int]:
    """Answer last seq and time of a session, for a handle that does not write it."""
    row = conn.execute("SELECT head, time FROM session WHERE id=?", (session,)).fetchone()
    if row is None:
        raise Rejected("not_found", "the session was deleted meanwhile")
    return Seq(row[0]), row[1]


def same_fault(error: Exception) -> Faulted:
    """Answer a fresh exception that says what the first one said."""
    if isinstance(error, Fenced):
        return Fenced(error.message)
    if isinstance(error, Faulted):
        return Faulted(error.message, code=error.code)
    return Faulted(str(error))
