"""Sessions in memory: the reference backend, and the fake that the engine is tested on.

Sessions live as long as their container. Commits are kept as what was decoded from their own
JSON text, so nothing stored shares memory with what a caller holds (ST-18). Durability is
ignored (BR-01).
"""

import os
from collections.abc import Iterable, Sequence

from msgspec import structs

from perdure.errors import Closed, Faulted, Rejected
from perdure.ports import Clock, Randomness
from perdure.records.codec import decoder
from perdure.records.seqs import Seq
from perdure.records.sessions import Created, Opening, Owner, SessionInfo
from perdure.records.writes import Commit, Write
from perdure.storage.admission import admit, check_limit, check_name, refuse
from perdure.storage.creations import check_creation, gone, unknown_id
from perdure.storage.memory_index import MemoryIndex
from perdure.storage.memory_reads import MemoryReads
from perdure.storage.owners import busy

SESSION_ID_BYTES = 16
"""Random bytes of a session id: 32 hex digits (SN-02)."""

OPENINGS_MAX = 10_000
"""Openings kept by name; older ones are dropped (SN-14)."""


def own_commit(commit: Commit, text: bytes) -> Commit:
    """Answer a commit made of the stored text alone."""
    writes: tuple[Write, ...] = decoder(tuple[Write, ...]).decode(text)
    return structs.replace(commit, writes=writes)


class MemorySession:
    """What outlives a handle: the rows, the name, who opened it when."""

    def __init__(self, info: SessionInfo) -> None:
        self.info = info
        self.index = MemoryIndex()
        self.openings: list[Opening] = []
        self.writer: MemoryStorage | None = None

    def current_info(self) -> SessionInfo:
        """Answer the facts as of now."""
        times = self.index.times
        return structs.replace(
            self.info,
            last_seq=self.index.last_seq,
            last_commit_ms=times[-1] if times else 0,
        )


class MemoryStorage(MemoryReads):
    """One session in memory, behind the `Storage` port."""

    def __init__(self, session: MemorySession, clock: Clock | None, *, read_only: bool) -> None:
        super().__init__(session.index)
        self._session = session
        self._clock = clock
        self._read_only = read_only
        self._epoch = session.info.epoch
        self._pid = os.getpid()
        self._closed = False

    @property
    def info(self) -> SessionInfo:
        """Answer id, name, format and epoch."""
        return self._session.current_info()

    @property
    def last_seq(self) -> Seq:
        """Answer the highest committed seq."""
        return self._index.last_seq

    @property
    def is_open(self) -> bool:
        """Say whether the handle was not closed yet."""
        return not self._closed

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise Faulted("this session was opened before the process forked", code="forked")
        if self._closed:
            raise Closed("the session is closed")

    async def commit(self, commit: Commit, *, barrier: bool) -> None:
        """Check and publish one batch; raises Rejected `invariant` when it does not fit."""
        self._check_open()
        if self._read_only:
            refuse("the session is open read-only")
        text, scope = admit(commit, self._index.last_seq)
        self._index.prepare(commit, scope)
        self._index.apply(own_commit(commit, text), scope)

    async def openings(self, *, limit: int) -> Sequence[Opening]:
        """Answer who opened the session when, newest first."""
        self._check_open()
        check_limit(limit)
        return self._session.openings[: -limit - 1 : -1]

    async def close(self) -> None:
        """Give the session free; repeated calls do nothing."""
        if self._closed:
            return
        self._closed = True
        session = self._session
        if session.writer is self:
            session.writer = None
            session.info = structs.replace(session.info, owner=None)
            if self._clock is not None and session.openings:
                session.openings[-1] = structs.replace(
                    session.openings[-1], closed_ms=self._clock.now_ms()
                )


class MemorySessions:
    """A container in memory, behind the `Sessions` port."""

    def __init__(self, *, clock: Clock, randomness: Randomness) -> None:
        self._clock = clock
        self._randomness = randomness
        self._sessions: dict[str, MemorySession] = {}
        self._requests: dict[str, SessionInfo] = {}
        self._handles: list[MemoryStorage] = []
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the container is closed")

    def _find(self, name: str) -> MemorySession:
        session = self._sessions.get(name)
        if session is None:
            raise Rejected("not_found", f"there is no session named {name!r}", {"name": name})
        return session

    def _create(self, name: str) -> MemorySession:
        info = SessionInfo(
            id=self._randomness.token(SESSION_ID_BYTES),
            name=name,
            created_ms=self._clock.now_ms(),
        )
        session = self._sessions[name] = MemorySession(info)
        return session

    async def open(
        self, name: str, *, create: bool, read_only: bool = False, control: str | None = None
    ) -> MemoryStorage:
        """Open a session by name; one writer at a time."""
        self._check_open()
        check_name(name)
        create = create and not read_only
        session = self._create(name) if create and name not in self._sessions else self._find(name)
        if not read_only:
            self._claim(session, control)
        handle = MemoryStorage(session, self._clock, read_only=read_only)
        if not read_only:
            session.writer = handle
        self._handles = [one for one in self._handles if one.is_open]
        self._handles.append(handle)
        return handle

    def _claim(self, session: MemorySession, control: str | None) -> None:
        self._check_free(session)
        epoch, now = session.info.epoch + 1, self._clock.now_ms()
        owner = Owner(
            pid=os.getpid(), host=os.uname().nodename, since=now, epoch=epoch, control=control
        )
        session.info = structs.replace(session.info, epoch=epoch, owner=owner)
        session.openings.append(Opening(epoch=epoch, pid=owner.pid, host=owner.host, opened_ms=now))
        del session.openings[:-OPENINGS_MAX]

    def _check_free(self, session: MemorySession) -> None:
        owner = session.info.owner
        if owner is not None:
            raise busy(f"the session {session.info.name!r}", owner)

    async def page(self, *, after: str | None, limit: int) -> Sequence[SessionInfo]:
        """Answer sessions by name bytes."""
        self._check_open()
        check_limit(limit)
        names = sorted(name for name in self._sessions if after is None or name > after)
        return [self._sessions[name].current_info() for name in names[:limit]]

    async def find(self, session_id: str) -> SessionInfo:
        """Answer a session by its permanent id."""
        self._check_open()
        for session in self._sessions.values():
            if session.info.id == session_id:
                return session.current_info()
        raise unknown_id(session_id)

    async def create(self, name: str, *, request_id: str | None = None) -> Created:
        """Make an empty session, once for each request id."""
        self._check_open()
        check_name(name)
        earlier = None if request_id is None else self._requests.get(request_id)
        if earlier is not None:
            check_creation(name, earlier.name)
            for session in self._sessions.values():
                if session.info.id == earlier.id:
                    return Created(info=session.current_info(), is_new=False)
            raise gone(name)
        if name in self._sessions:
            refuse(f"there is a session named {name!r} already", name=name)
        info = self._create(name).current_info()
        if request_id is not None:
            self._requests[request_id] = info
        return Created(info=info, is_new=True)

    async def rename(self, old: str, new: str) -> None:
        """Give a session a new unique name."""
        self._check_open()
        check_name(new)
        session = self._find(old)
        if new == old:
            return
        if new in self._sessions:
            refuse(f"there is a session named {new!r} already", name=new)
        del self._sessions[old]
        self._sessions[new] = session
        session.info = structs.replace(session.info, name=new)

    async def delete(self, name: str) -> None:
        """Delete a session that nobody owns."""
        self._check_open()
        session = self._find(name)
        self._check_free(session)
        del self._sessions[name]

    async def close(self) -> None:
        """Close the handles and the container."""
        for handle in self._handles:
            await handle.close()
        self._handles.clear()
        self._closed = True


def replay(commits: Iterable[Commit]) -> MemoryStorage:
    """Build a session in memory from main commits in order, read-only (BR-11).

    Raises:
        Rejected: `invariant` for a commit that is out of order or does not fit.
    """
    session = MemorySession(SessionInfo(id="0" * 2 * SESSION_ID_BYTES, name="replay"))
    index = session.index
    for commit in commits:
        text, scope = admit(commit, index.last_seq, gaps=True)
        index.prepare(commit, scope)
        index.apply(own_commit(commit, text), scope)
    return MemoryStorage(session, None, read_only=True)
