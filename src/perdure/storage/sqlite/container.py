"""A container of sessions in one SQLite file, behind the `Sessions` port."""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import structs

from perdure.errors import Closed, Faulted, PerdureError, Rejected
from perdure.ports import Clock, Randomness
from perdure.records.sessions import Created, Owner, SessionInfo
from perdure.storage.admission import check_limit, check_name, refuse
from perdure.storage.creations import check_creation, gone, unknown_id
from perdure.storage.locks import FileLock
from perdure.storage.sqlite.connect import FORMAT, translating
from perdure.storage.sqlite.handle import SqliteStorage
from perdure.storage.sqlite.opened import Opened
from perdure.storage.sqlite.rebuild import INDEX_TABLES, rebuild_indexes
from perdure.storage.sqlite.rows import SessionRows
from perdure.storage.sqlite.threads import Reader
from perdure.storage.sqlite.writer import Writer

T = TypeVar("T")
Durability: TypeAlias = Literal["power", "process"]

SESSION_ID_BYTES: Final = 16
"""Random bytes of a session id: 32 hex digits (SN-02)."""

BUSY_SECONDS: Final = 30.0
"""How long another process's write lock is waited for (SN-12)."""

OPENINGS_MAX: Final = 10_000
"""Openings kept; the epoch still counts the older ones (SN-14)."""

FACTS: Final = "SELECT id, sid, name, created, time, head, epoch, owner FROM session"
CREATE: Final = "INSERT INTO session (sid, name, created) VALUES (?,?,?)"
CLAIM: Final = "UPDATE session SET epoch=?, owner=? WHERE id=?"
INSERT_OPENING: Final = "INSERT INTO opening (session, epoch, pid, host, opened) VALUES (?,?,?,?,?)"
FOLD_OPENINGS: Final = "DELETE FROM opening WHERE session=? AND epoch<=?"
TABLES: Final = ("journal", "opening", "working_value", "working_element", *INDEX_TABLES)
"""Every table whose rows belong to one session."""


CREATION_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS creation "
    "(request TEXT PRIMARY KEY, sid TEXT NOT NULL, name TEXT NOT NULL) WITHOUT ROWID"
)
"""Which request made which session; made with the first request id, so that a file without one
is what it always was."""

EARLIER: Final = "SELECT sid, name FROM creation WHERE request=?"
INSERT_CREATION: Final = "INSERT INTO creation (request, sid, name) VALUES (?,?,?)"


def _earlier(conn: sqlite3.Connection, request_id: str) -> tuple[str, str] | None:
    """Answer id and first name of the session that a request made."""
    conn.execute(CREATION_TABLE)
    return conn.execute(EARLIER, (request_id,)).fetchone()


def info_of(row: tuple[object, ...]) -> tuple[int, SessionInfo]:
    """Answer a session's number in this file, and its facts."""
    number, sid, name, created, time_ms, head, epoch, written = row
    owner, damaged = None, None
    try:
        owner = None if written is None else msgspec.json.decode(str(written), type=Owner)
    except msgspec.MsgspecError as error:
        damaged = f"the owner of the session cannot be read: {error}"
    info = msgspec.convert(
        {
            "id": sid,
            "name": name,
            "created_ms": created,
            "last_commit_ms": time_ms,
            "last_seq": head,
            "format": FORMAT,
            "epoch": epoch,
        },
        SessionInfo,
    )
    if owner is not None or damaged is not None:
        info = structs.replace(info, owner=owner, damaged=damaged)
    assert isinstance(number, int)
    return number, info


def find(conn: sqlite3.Connection, name: str) -> tuple[int, SessionInfo]:
    """Answer a session by name; raises Rejected `not_found`."""
    row = conn.execute(f"{FACTS} WHERE name=?", (name,)).fetchone()
    if row is None:
        raise Rejected("not_found", f"there is no session named {name!r}", {"name": name})
    return info_of(row)


class SqliteSessions:
    """Many sessions in one file; two threads serve all of them.

    Args:
        path: the file; it is made at the first session, its folder must exist.
        durability: `power` syncs barriers to disk, `process` syncs nothing (K03).
        clock: where wall times come from.
        randomness: where session ids come from.
        busy_seconds: how long to wait for another process that writes to the file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "power",
        clock: Clock,
        randomness: Randomness,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        if durability not in ("power", "process"):
            refuse(f"the durability {durability!r} is not one of 'power' and 'process'")
        self._path = Path(path)
        self._power = durability == "power"
        self._busy_ms = int(busy_seconds * 1000)
        self._clock = clock
        self._randomness = randomness
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._handles: dict[SqliteStorage, None] = {}
        self._pid = os.getpid()
        self._closed = False

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise Faulted("the container was opened before the process forked", code="forked")
        if self._closed:
            raise Closed("the container is closed")

    def _reading(self) -> Reader:
        self._check_open()
        if self._reader is None:
            self._reader = Reader(self._path)
        return self._reader

    def _writing(self) -> Writer:
        self._check_open()
        if self._writer is None:
            self._writer = Writer(self._path, busy_ms=self._busy_ms, power=self._power)
        return self._writer

    async def open(
        self, name: str, *, create: bool, read_only: bool = False, control: str | None = None
    ) -> SqliteStorage:
        """Open a session by name; see the port."""
        self._check_open()
        check_name(name)
        if read_only or not create:
            number, info = await self._find(name)
            if read_only:
                return self._handle(number, alive(info))
        number, info, opened = await self._open_writing(name, create=create, control=control)
        handle = self._handle(number, info)
        handle.own(opened)
        return handle

    def _handle(self, number: int, info: SessionInfo) -> SqliteStorage:
        handle = SqliteStorage(self._reading(), info, number, self._forget)
        self._handles[handle] = None
        return handle

    def _forget(self, handle: SqliteStorage) -> None:
        self._handles.pop(handle, None)

    async def _find(self, name: str) -> tuple[int, SessionInfo]:
        return await self._reading().call(lambda conn: find(conn, name))

    async def _open_writing(
        self, name: str, *, create: bool, control: str | None
    ) -> tuple[int, SessionInfo, Opened]:
        writer = self._writing()
        now, sid = self._clock.now_ms(), self._randomness.token(SESSION_ID_BYTES)

        def work(conn: sqlite3.Connection) -> tuple[int, SessionInfo, Opened]:
            with translating("opening", self._path):
                number, info = self._ensure(conn, name, sid if create else None, now)
                lock = FileLock.acquire(self._lock_path(info.id), f"the session {name!r}")
                try:
                    info = self._claim(conn, number, lock, now=now, control=control)
                except (PerdureError, sqlite3.Error, OSError):
                    lock.release()
                    raise
            rows = SessionRows(conn, number)
            opened = Opened(
                writer=writer, rows=rows, lock=lock, epoch=info.epoch, clock=self._clock
            )
            taken.append(lock)
            return number, info, opened

        taken: list[FileLock] = []
        try:
            return await writer.call(work)
        except asyncio.CancelledError:
            # The thread has the lock, or takes it yet; nobody is left to give it back.
            writer.afterwards(lambda: [lock.release() for lock in taken])
            raise

    def _ensure(
        self, conn: sqlite3.Connection, name: str, sid: str | None, now: int
    ) -> tuple[int, SessionInfo]:
        """Answer the session, creating it under `sid` when that is given and it is absent."""
        row = conn.execute(f"{FACTS} WHERE name=?", (name,)).fetchone()
        if row is None and sid is not None:
            writer = self._writing()

            def work() -> None:
                # Another process may have been quicker; then its session is the one.
                if conn.execute("SELECT 1 FROM session WHERE name=?", (name,)).fetchone() is None:
                    conn.execute(CREATE, (sid, name, now))

            writer.transaction(conn, work, sync=True)
        return find(conn, name)

    def _lock_path(self, sid: str) -> Path:
        real = self._writing().path
        return real.with_name(f"{real.name}.{sid}.lock")

    def _claim(
        self,
        conn: sqlite3.Connection,
        number: int,
        lock: FileLock,
        *,
        now: int,
        control: str | None,
    ) -> SessionInfo:
        """Take the next epoch and say who did; answer the facts as they are from now on."""

        def work() -> SessionInfo:
            row = conn.execute(f"{FACTS} WHERE id=?", (number,)).fetchone()
            if row is None:
                raise Rejected("not_found", "the session was deleted meanwhile")
            _, info = info_of(row)
            owner = Owner(
                pid=os.getpid(),
                host=os.uname().nodename,
                since=now,
                epoch=info.epoch + 1,
                control=control,
            )
            facts = (number, owner.epoch, owner.pid, owner.host, now)
            conn.execute(CLAIM, (owner.epoch, msgspec.json.encode(owner).decode(), number))
            conn.execute(INSERT_OPENING, facts)
            conn.execute(FOLD_OPENINGS, (number, owner.epoch - OPENINGS_MAX))
            return structs.replace(info, epoch=owner.epoch, owner=owner)

        info = self._writing().transaction(conn, work, sync=False)
        assert info.owner is not None
        lock.write(info.owner)
        return info

    async def page(self, *, after: str | None, limit: int) -> Sequence[SessionInfo]:
        """Answer sessions by name bytes; opens and locks nothing (SN-07)."""
        check_limit(limit)

        def work(conn: sqlite3.Connection) -> list[SessionInfo]:
            sql = f"{FACTS} WHERE name>? ORDER BY name LIMIT ?"
            rows = conn.execute(sql, (after or "", limit)).fetchall()
            return [alive(info_of(row)[1]) for row in rows]

        try:
            return await self._reading().call(work)
        except Rejected as error:
            if error.code == "not_found":
                return []
            raise

    async def find(self, session_id: str) -> SessionInfo:
        """Answer a session by its permanent id."""

        def work(conn: sqlite3.Connection) -> SessionInfo:
            row = conn.execute(f"{FACTS} WHERE sid=?", (session_id,)).fetchone()
            if row is None:
                raise unknown_id(session_id)
            return alive(info_of(row)[1])

        return await self._reading().call(work)

    async def create(self, name: str, *, request_id: str | None = None) -> Created:
        """Make an empty session, once for each request id, in one synced transaction."""
        self._check_open()
        check_name(name)
        writer = self._writing()
        now, sid = self._clock.now_ms(), self._randomness.token(SESSION_ID_BYTES)

        def make(conn: sqlite3.Connection) -> Created:
            earlier = None if request_id is None else _earlier(conn, request_id)
            if earlier is not None:
                check_creation(name, earlier[1])
                row = conn.execute(f"{FACTS} WHERE sid=?", (earlier[0],)).fetchone()
                if row is None:
                    raise gone(name)
                return Created(info=alive(info_of(row)[1]), is_new=False)
            if conn.execute("SELECT 1 FROM session WHERE name=?", (name,)).fetchone():
                refuse(f"there is a session named {name!r} already", name=name)
            conn.execute(CREATE, (sid, name, now))
            if request_id is not None:
                conn.execute(INSERT_CREATION, (request_id, sid, name))
            return Created(info=find(conn, name)[1], is_new=True)

        def work(conn: sqlite3.Connection) -> Created:
            with translating("creating", self._path):
                return writer.transaction(conn, lambda: make(conn), sync=True)

        return await writer.call(work)

    async def _alone(
        self, name: str, change: Callable[[sqlite3.Connection, int], None], *, remove: bool
    ) -> None:
        """Change a session that nobody owns, under its lock, in one synced transaction."""
        writer = self._writing()

        def work(conn: sqlite3.Connection) -> None:
            with translating("changing", self._path):
                number, info = find(conn, name)
                lock = FileLock.acquire(self._lock_path(info.id), f"the session {name!r}")
                gone = False
                try:
                    writer.transaction(conn, lambda: change(conn, number), sync=True)
                    gone = remove
                finally:
                    lock.release(remove=gone)

        await self._find(name)
        await writer.call(work)

    async def rename(self, old: str, new: str) -> None:
        """Give a session a new unique name; an open one takes it along."""
        self._check_open()
        check_name(new)
        await self._find(old)
        if new == old:
            return

        def work(conn: sqlite3.Connection) -> int:
            def change() -> int:
                number, _ = find(conn, old)
                if conn.execute("SELECT 1 FROM session WHERE name=?", (new,)).fetchone():
                    refuse(f"there is a session named {new!r} already", name=new)
                conn.execute("UPDATE session SET name=? WHERE id=?", (new, number))
                return number

            with translating("renaming", self._path):
                return self._writing().transaction(conn, change, sync=True)

        number = await self._writing().call(work)
        for handle in self._handles:
            if handle.session == number:
                handle.renamed(new)

    async def delete(self, name: str) -> None:
        """Delete a session that nobody owns; whole or not at all."""
        self._check_open()

        def change(conn: sqlite3.Connection, number: int) -> None:
            for table in TABLES:
                conn.execute(f"DELETE FROM {table} WHERE session=?", (number,))  # noqa: S608 - names above
            conn.execute("DELETE FROM session WHERE id=?", (number,))

        await self._alone(name, change, remove=True)

    async def rebuild(self) -> None:
        """Make every private index anew from the journal; no session may be open (BR-12)."""
        writer = self._writing()

        def work(conn: sqlite3.Connection) -> None:
            locks: list[FileLock] = []
            with translating("rebuilding", self._path):
                try:
                    for sid, name in conn.execute("SELECT sid, name FROM session").fetchall():
                        locks.append(
                            FileLock.acquire(self._lock_path(sid), f"the session {name!r}")
                        )
                    writer.transaction(conn, lambda: rebuild_indexes(conn), sync=True)
                finally:
                    for lock in locks:
                        lock.release()

        await self._reading().call(lambda conn: None)
        await writer.call(work)

    async def close(self) -> None:
        """Close the handles, then both connections; the last one empties the write-ahead file."""
        if self._closed:
            return
        for handle in list(self._handles):
            await handle.close()
        self._closed = True
        if os.getpid() == self._pid:
            # The reader first: SQLite removes the write-ahead file with its last connection.
            for thread in (self._reader, self._writer):
                if thread is not None:
                    await thread.stop()


def alive(info: SessionInfo) -> SessionInfo:
    """Leave out an owner of this host that has died: its row says nothing any more."""
    owner = info.owner
    if owner is None or owner.host != os.uname().nodename:
        return info
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return structs.replace(info, owner=None)
    except PermissionError:
        return info
    return info
