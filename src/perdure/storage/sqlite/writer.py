"""Who writes a container: one connection, its thread, group commit, fences, checkpoints.

All commits that wait go into one transaction. Each begins with the conditional update of its
session's head, which is the fence: no row changed means that another writer owns the session,
and nothing of that commit is written. When a commit is refused by its rows, the transaction is
rolled back and each commit runs alone.

A commit of a session that writes alone, that needs no sync and waits for nobody, is made on the
event loop itself: handing it to the thread and back costs as much again as the commit (ADR 0014).

Invariants: there is one writing connection, and whoever uses it holds the lock; only it writes or
checkpoints (two checkpointers can damage a file in older SQLite), and only the thread syncs,
checkpoints or waits; a commit that failed at COMMIT is never tried again; a barrier is synced
before its caller hears of it, and a commit without one costs no sync.
"""

import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from perdure.errors import Closed, Faulted, Fenced, Rejected, StorageBusy
from perdure.records.codec import encode
from perdure.records.writes import Commit
from perdure.storage.blobs import BLOB_BYTES_MIN, Cut, shorten
from perdure.storage.sqlite.connect import (
    blobs_beside,
    code_of,
    create_private,
    creating,
    identity_of,
    open_writer,
    prepare_container,
    real,
    translated,
    warn_if_loose,
)
from perdure.storage.sqlite.journal import insert_row
from perdure.storage.sqlite.rows import SessionRows
from perdure.storage.sqlite.threads import Call, Job, Jobs, Nudge, deliver, take_batch

T = TypeVar("T")

WAL_BYTES_MAX: Final = 16 * 1024 * 1024
"""Write-ahead bytes after which the writer checkpoints although commits wait."""

IDLE_SECONDS: Final = 0.05
"""Quiet time after which the writer checkpoints what it wrote."""

ALONE_COMMITS: Final = 8
"""Commits in a row after which a session counts as the only one that writes."""

COMMIT_WAL_BYTES: Final = 40 * 1024
"""What one commit adds to the write-ahead file, beside its own text: about ten pages."""

WAITED: Final = frozenset({"SQLITE_BUSY", "SQLITE_LOCKED"})
"""Errors of a write that another process holds up: nothing was done."""

HARMLESS: Final = frozenset({"SQLITE_FULL", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CONSTRAINT"})
"""Errors after which a roll-back leaves the connection as it was."""

HEAD_MAIN: Final = "UPDATE session SET head=?, time=? WHERE id=? AND head=? AND epoch=?"
HEAD_WORKING: Final = "UPDATE session SET head=? WHERE id=? AND head=? AND epoch=?"


class CommitJob(Job[None]):
    """One admitted commit of one open session."""

    __slots__ = ("barrier", "commit", "cuts", "done", "epoch", "refused", "rows", "scope", "text")

    def __init__(
        self,
        commit: Commit,
        *,
        text: bytes,
        scope: str | None,
        barrier: bool,
        rows: SessionRows,
        epoch: int,
        done: Callable[["CommitJob"], None],
    ) -> None:
        super().__init__()
        self.commit = commit
        self.text = text
        self.scope = scope
        self.barrier = barrier
        self.rows = rows
        self.epoch = epoch
        self.done = done
        self.cuts: tuple[Cut, ...] = ()
        self.refused = False

    def refuse(self, error: Exception) -> None:
        """Leave the commit out of its group, for a reason of its own."""
        self.error, self.refused = error, True

    def settle(self) -> None:
        """Tell the handle first: it counts the commit even when its caller has gone (ST-33)."""
        self.done(self)
        super().settle()


class Writer:
    """The writing connection of one container file, and its thread."""

    def __init__(self, path: Path, *, busy_ms: int, power: bool) -> None:
        self.path = path
        self._busy_ms = busy_ms
        self._power = power
        self._jobs = Jobs()
        self._lock = threading.Lock()
        self._blobs = blobs_beside(path, sync=power)
        self._conn: sqlite3.Connection | None = None
        self._full = False
        self._broken: Exception | None = None
        self._identity: tuple[int, int] | None = None
        self._wait_ms = busy_ms
        self._wal_bytes = 0
        self._commits = 0
        self._newest: SessionRows | None = None
        self._in_a_row = 0
        self._closed = False
        threading.Thread(target=self._run, name="perdure-write", daemon=True).start()

    # On the loop

    def submit(self, job: CommitJob) -> None:
        """Make a commit at once where nothing has to be waited for, else queue it."""
        if self._closed:
            raise Closed("the container is closed")
        alone = self._is_alone(job.rows)
        if alone and self._is_quick(job) and self._lock.acquire(blocking=False):
            try:
                made = self._commit_here(job)
            finally:
                self._lock.release()
            if made:
                job.settle()
                return
        self._jobs.put(job)

    def _is_alone(self, rows: SessionRows) -> bool:
        """Say whether no other session committed lately; several are quicker in groups."""
        if rows is not self._newest:
            self._newest, self._in_a_row = rows, 0
        self._in_a_row += 1
        return self._in_a_row > ALONE_COMMITS

    def _is_quick(self, job: CommitJob) -> bool:
        """Say whether a commit needs neither a sync, nor a blob, nor what only the thread does."""
        return (
            self._conn is not None
            and not (self._power and job.barrier)
            and len(job.text) <= BLOB_BYTES_MIN
            and self._wal_bytes <= WAL_BYTES_MAX
            and self._jobs.empty()
        )

    def _commit_here(self, job: CommitJob) -> bool:
        """Commit on the event loop; False when another process writes, and nothing was done.

        The only place of perdure that asks SQLite on the loop to write, and where a barrier asks
        what file has the store's name.
        """
        conn = self._conn
        if conn is None:
            return False
        was_clean = not self._wal_bytes
        try:
            if job.barrier:
                self._check_place()
            self._set_wait(conn, 0)
            self._persist(conn, [job])
        except Rejected as error:
            job.error = error
        except (sqlite3.Error, sqlite3.Warning, OSError) as error:
            if isinstance(error, sqlite3.Error) and code_of(error) in WAITED:
                return False
            self._fail([job], error)
        if was_clean or self._wal_bytes > WAL_BYTES_MAX:
            self._jobs.put(Nudge())
        return True

    async def call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function on the writing thread with its connection."""
        if self._closed:
            raise Closed("the container is closed")
        job = Call(lambda: work(self._connection()))
        self._jobs.put(job)
        return await job.future

    def afterwards(self, work: Callable[[], object]) -> None:
        """Run a function on the writing thread after all that was asked for; nobody waits."""
        self._jobs.put(Call(work))

    async def stop(self) -> None:
        """Let the thread finish what waits and close its connection, and wait for that."""
        self._closed = True
        job = Call(self._disconnect)
        self._jobs.put(job)
        self._jobs.put(None)
        await job.future

    # On the thread

    def transaction(self, conn: sqlite3.Connection, work: Callable[[], T], *, sync: bool) -> T:
        """Run one immediate transaction, synced when asked and the durability honours it."""
        self._set_sync(conn, full=sync and self._power)
        conn.execute("BEGIN IMMEDIATE")
        try:
            result = work()
            conn.execute("COMMIT")
        finally:
            if conn.in_transaction:
                conn.execute("ROLLBACK")
        self._wal_bytes += COMMIT_WAL_BYTES
        return result

    def _run(self) -> None:
        try:
            # The real path: a link or another spelling of the file meets the same locks (SN-11).
            self.path = real(self.path)
            self._blobs = blobs_beside(self.path, sync=self._power)
            self._serve()
        finally:
            self._jobs.end()

    def _serve(self) -> None:
        running = True
        while running:
            first = self._next()
            if first is None:
                break
            batch = take_batch(self._jobs, first)
            running = batch[-1] is not None
            jobs = [job for job in batch if isinstance(job, Job)]
            try:
                with self._lock:
                    self._work(jobs)
            finally:
                # After a defect of ours nobody may wait for ever. The lock is free before the loop
                # hears of it, so that its next commit finds it so.
                deliver(jobs)
            if self._wal_bytes > WAL_BYTES_MAX:
                with self._lock:
                    self._checkpoint()

    def _disconnect(self) -> None:
        # Closing the last connection of a file copies the write-ahead file into it and removes it.
        if self._conn is not None:
            self._set_sync(self._conn, full=False)
            self._conn.close()
            self._conn = None

    def _next(self) -> Job[Any] | Nudge | None:
        # The loop writes without the thread: it nudges the thread with the first commit after a
        # checkpoint, and the thread looks again and again until nothing was committed for a while.
        while self._wal_bytes:
            seen = self._commits
            try:
                return self._jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                if self._commits == seen:
                    with self._lock:
                        self._checkpoint()
        return self._jobs.get()

    def _work(self, jobs: Sequence[Job[Any]]) -> None:
        commits: list[CommitJob] = []
        for job in jobs:
            if isinstance(job, CommitJob):
                commits.append(job)
                continue
            if commits:
                self._commit_group(commits)
                commits = []
            cast("Call[Any]", job).run()
        if commits:
            self._commit_group(commits)

    def _commit_group(self, waiting: Sequence[CommitJob]) -> None:
        jobs = [job for job in waiting if self._shorten(job)]
        if not jobs:
            return
        try:
            conn = self._connection()
            if any(job.barrier for job in jobs):
                self._check_place()
            self._persist(conn, jobs)
        except Rejected as error:
            if len(jobs) == 1:
                jobs[0].error = error
            else:
                self._commit_each(jobs)
                return
        except (sqlite3.Error, sqlite3.Warning, OSError) as error:
            self._fail(jobs, error)

    def _check_place(self) -> None:
        """Refuse to acknowledge what nobody will find again: a file without its name is no store.

        Raises:
            OSError: the file was removed, moved or replaced while it was open.
        """
        if self._identity != identity_of(self.path):
            raise OSError("the file was removed, moved or replaced while it was open")

    def _shorten(self, job: CommitJob) -> bool:
        """Put what is too large into blobs, before the transaction that names them (BR-14)."""
        if job.scope is not None or len(job.text) <= BLOB_BYTES_MIN or job.cuts:
            return True
        try:
            commit, job.cuts = shorten(job.commit, self._blobs)
        except OSError as error:
            # Nothing of the database was touched: this is the fault of this session alone.
            job.error = translated(error, "writing a blob", self.path)
            return False
        if job.cuts:
            job.text = encode(commit.writes)
        return True

    def _commit_each(self, jobs: Sequence[CommitJob]) -> None:
        for job in jobs:
            job.refused = False
            self._commit_group([job])

    def _persist(self, conn: sqlite3.Connection, jobs: Sequence[CommitJob]) -> None:
        self._set_sync(conn, full=self._power and any(job.barrier for job in jobs))
        cursor = conn.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            for job in jobs:
                self._write(cursor, job)
            cursor.execute("COMMIT")
        finally:
            if conn.in_transaction:
                conn.execute("ROLLBACK")
                for job in jobs:
                    job.rows.forget()
        for job in jobs:
            if not job.refused:
                job.error = None

    def _write(self, cursor: sqlite3.Cursor, job: CommitJob) -> None:
        commit, session = job.commit, job.rows.session
        if not job.rows.is_on(cursor.connection):
            job.refuse(Faulted(f"the container failed before ({self._broken}); reopen the session"))
            return
        before = commit.first_seq - 1
        if job.scope is None:
            facts = (commit.last_seq, commit.time_ms, session, before, job.epoch)
            cursor.execute(HEAD_MAIN, facts)
        else:
            cursor.execute(HEAD_WORKING, (commit.last_seq, session, before, job.epoch))
        if cursor.rowcount != 1:
            job.refuse(Fenced(f"another writer took the session over; epoch {job.epoch} is past"))
            return
        if job.scope is None:
            insert_row(cursor, session, commit, job.text, job.cuts)
        job.rows.apply(commit, job.scope)
        self._wal_bytes += COMMIT_WAL_BYTES + len(job.text)
        self._commits += 1

    def _fail(self, jobs: Sequence[CommitJob], error: Exception) -> None:
        reason = translated(error, "committing", self.path)
        if isinstance(reason, StorageBusy):
            reason = Faulted(str(reason))
        for job in jobs:
            job.error = reason
        if not (isinstance(error, sqlite3.Error) and code_of(error) in HARMLESS):
            # The connection's memory may differ from the disk now: nobody goes on with it.
            self._broken = reason
            conn, self._conn = self._conn, None
            if conn is not None:
                conn.close()

    def _connection(self) -> sqlite3.Connection:
        if self._conn is None:
            try:
                with creating(self.path, self._busy_ms):
                    if not create_private(self.path):
                        warn_if_loose(self.path)
                    conn = open_writer(self.path, self._busy_ms)
                    prepare_container(conn, self.path)
                if self._broken is not None:
                    # What a failed sync left in memory must reach the disk before we build on it.
                    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except (sqlite3.Error, sqlite3.Warning, OSError) as error:
                raise translated(error, "opening", self.path) from error
            self._conn, self._full, self._wait_ms = conn, False, self._busy_ms
            self._identity = identity_of(self.path)
        self._set_wait(self._conn, self._busy_ms)
        return self._conn

    def _set_wait(self, conn: sqlite3.Connection, wait_ms: int) -> None:
        """Say how long a write waits for another process: on the event loop not at all."""
        if wait_ms != self._wait_ms:
            conn.execute(f"PRAGMA busy_timeout = {wait_ms}").fetchone()
            self._wait_ms = wait_ms

    def _set_sync(self, conn: sqlite3.Connection, *, full: bool) -> None:
        # Synchronous is a property of the connection and cannot change inside a transaction.
        if full != self._full:
            conn.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            self._full = full

    def _checkpoint(self) -> None:
        self._wal_bytes = 0
        conn = self._conn
        if conn is not None:
            self._set_sync(conn, full=False)
            conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
