"""The two threads of a container, and how their answers come back to the event loop.

Work goes to a thread through a queue that never blocks; answers come back many at a time through
one wake-up of the loop. A waiter that was cancelled is skipped; its work is done all the same.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import msgspec

from perdure.errors import (
    Closed,
    Faulted,
    FormatUnsupported,
    PerdureError,
    Rejected,
    StorageDamaged,
)
from perdure.storage.blobs import BlobSource
from perdure.storage.sqlite.connect import (
    FORMAT,
    blobs_beside,
    format_of,
    open_reader,
    real,
    translated,
)
from perdure.storage.sqlite.contexts import TooLong

T = TypeVar("T")

EXPECTED: Final = (
    PerdureError,
    sqlite3.Error,
    sqlite3.Warning,
    OSError,
    ValueError,
    RecursionError,
    msgspec.MsgspecError,
)
"""What work on a thread may end with; anything else is a defect of ours and ends the thread."""

UNREADABLE: Final = (ValueError, RecursionError, OverflowError)
"""What decoding raises about bytes that no release wrote."""

WORDS_MAX: Final = 300
"""Longest text of such an error."""

BATCH_MAX: Final = 256
"""Most jobs taken at a time: the largest group commit, and the longest wait for its answer."""


class Job(Generic[T]):
    """One piece of work and the future that waits for it."""

    __slots__ = ("error", "future", "loop", "result")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self.result: T | None = None
        # Stands until the work has ended, and so for work that a defect broke off.
        self.error: Exception | None = Faulted("the thread broke off on a defect", code="defect")

    def settle(self) -> None:
        """Answer the waiter; runs on the loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(cast("T", self.result))


class Call(Job[T]):
    """A function to run on the thread, with its connection."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__()
        self.work = work

    def run(self) -> None:
        """Run the function and keep what came of it."""
        try:
            self.result = self.work()
            self.error = None
        except EXPECTED as error:
            self.error = error


class Nudge:
    """No work: it wakes a thread, so that it looks around."""


Waiting: TypeAlias = Job[Any] | Nudge | None
"""One thing that waits for a thread; None ends it."""


class Jobs:
    """What waits for a thread; once that has ended, whatever comes is answered with an error."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Waiting] = queue.SimpleQueue()
        self._ended = False
        self.get = self._queue.get
        self.get_nowait = self._queue.get_nowait
        self.empty = self._queue.empty

    def put(self, job: Waiting) -> None:
        """Leave something for the thread; never blocks."""
        self._queue.put(job)
        if self._ended:
            self._abandon()

    def end(self) -> None:
        """Answer what waits behind the end of the thread, now and later: nobody waits for ever."""
        self._ended = True
        self._abandon()

    def _abandon(self) -> None:
        while True:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return
            if isinstance(job, Job):
                deliver([job])


def settle_all(jobs: Sequence[Job[Any]]) -> None:
    """Answer a batch of waiters; runs on the loop."""
    for job in jobs:
        job.settle()


def deliver(jobs: Sequence[Job[Any]]) -> None:
    """Wake each loop once for all of its jobs."""
    for loop in {job.loop for job in jobs}:
        mine = [job for job in jobs if job.loop is loop]
        try:
            loop.call_soon_threadsafe(settle_all, mine)
        except RuntimeError:
            continue  # that loop is closed; nobody waits there any more


def take_batch(jobs: Jobs, first: Job[Any] | Nudge) -> list[Waiting]:
    """Take what waits behind a first job, up to the limit."""
    batch: list[Waiting] = [first]
    while len(batch) < BATCH_MAX and batch[-1] is not None:
        try:
            batch.append(jobs.get_nowait())
        except queue.Empty:
            break
    return batch


class OffLoop(Exception):
    """A read on the event loop found something that only the thread may fetch."""


class NoBlobs:
    """Blobs as the event loop sees them: out of reach."""

    def get(self, name: str) -> bytes:
        """Refuse: a file is read on the thread."""
        raise OffLoop(name)


NO_BLOBS: Final = NoBlobs()


class Reader:
    """The reading connection and its thread: every query sees one committed state (ST-17, SQ-05).

    What a small read costs is less than the way to the thread and back, so where the connection
    is open and free, the event loop uses it itself (ADR 0014). Whoever uses it holds the lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.blobs = blobs_beside(path, sync=False)
        self._jobs = Jobs()
        self._conn: sqlite3.Connection | None = None
        self._stamp: tuple[int, ...] | None = None
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._run, name="perdure-read", daemon=True).start()

    async def call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query in one read transaction.

        Raises:
            StorageDamaged: stored bytes are not what was written.
            Faulted: the file could not be read.
        """
        if self._closed:
            raise Closed("the container is closed")
        job = Call(lambda: self._query(work))
        self._jobs.put(job)
        return await job.future

    async def look(self, work: Callable[[sqlite3.Connection, BlobSource], T]) -> T:
        """Run a query that reads little: here when the connection is free, else on the thread.

        Raises: as `call`.
        """
        if self._is_ready() and self._lock.acquire(blocking=False):
            try:
                return self._read_here(work)
            except (OffLoop, TooLong):
                pass
            finally:
                self._lock.release()
        return await self.call(lambda conn: work(conn, self.blobs))

    def _is_ready(self) -> bool:
        """Say whether the connection is open on a file with a writer: reading opens nothing."""
        return not self._closed and self._conn is not None and self._stamp is None

    def _read_here(self, work: Callable[[sqlite3.Connection, BlobSource], T]) -> T:
        """Read on the event loop: the only place of perdure that does."""
        return self._query(lambda conn: work(conn, NO_BLOBS))

    async def stop(self) -> None:
        """Let the thread finish what waits and close its connection, and wait for that."""
        self._closed = True
        job = Call(self._disconnect)
        self._jobs.put(job)
        self._jobs.put(None)
        await job.future

    def _disconnect(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _run(self) -> None:
        try:
            self._path = real(self._path)
            self.blobs = blobs_beside(self._path, sync=False)
            self._serve()
        finally:
            self._jobs.end()

    def _serve(self) -> None:
        while (first := self._jobs.get()) is not None:
            batch = take_batch(self._jobs, first)
            done = [job for job in batch if isinstance(job, Job)]
            try:
                with self._lock:
                    for job in done:
                        cast("Call[Any]", job).run()
            finally:
                deliver(done)
            if batch[-1] is None:
                break

    def _query(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            conn = self._connection()
            conn.execute("BEGIN")
            try:
                return work(conn)
            finally:
                # An error may have ended it already; then that error is the one to say.
                if conn.in_transaction:
                    conn.execute("ROLLBACK")
        except (sqlite3.Error, sqlite3.Warning, OSError) as error:
            raise translated(error, "reading", self._path) from error
        except UNREADABLE as error:
            # Bytes that no release wrote: they fail the read, and never the process (SX-07).
            raise StorageDamaged(
                f"reading {self._path}: a stored record cannot be read: {type(error).__name__}: "
                f"{str(error)[:WORDS_MAX]}"
            ) from None

    def _connection(self) -> sqlite3.Connection:
        """Answer a connection that sees what the file holds now.

        Without a write-ahead file nobody has the file open for writing: it is read as it lies,
        which writes nothing anywhere, not even beside it (SN-10).
        """
        if self._conn is not None and self._stamp is None:
            return self._conn
        stamp = self._quiet_stamp()
        if self._conn is not None and stamp == self._stamp:
            return self._conn
        self._disconnect()
        conn = open_reader(self._path, immutable=stamp is not None)
        number = format_of(conn, self._path)
        if number != FORMAT:
            conn.close()
            if number == 0:
                raise no_container(self._path)
            raise FormatUnsupported(
                f"{self._path} has container format {number}; open it for writing once, and it "
                f"becomes format {FORMAT}"
            )
        self._conn, self._stamp = conn, stamp
        return conn

    def _quiet_stamp(self) -> tuple[int, ...] | None:
        if self._path.with_name(self._path.name + "-wal").exists():
            return None
        try:
            facts = self._path.stat()
        except FileNotFoundError:
            raise no_container(self._path) from None
        return (facts.st_ino, facts.st_size, facts.st_mtime_ns)


def no_container(path: Path) -> Rejected:
    """Answer the refusal of a read where no session was ever created."""
    return Rejected("not_found", f"there is no store at {str(path)!r}", {"path": str(path)})
