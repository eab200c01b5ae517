"""What a storage check works with: a place, an open session, and a builder of batches."""

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Raw, structs

from perdure.errors import PerdureError, Rejected
from perdure.ports import Sessions, Storage
from perdure.records.codec import EMPTY_OBJECT, to_raw
from perdure.records.seqs import Seq
from perdure.records.writes import (
    AppendContext,
    AppendList,
    Commit,
    DeleteValue,
    InsertConversation,
    InsertEntry,
    InsertTask,
    SetValue,
    Write,
)

E = TypeVar("E", bound=PerdureError)
SESSION_NAME = "first"


class Place(Protocol):
    """Where sessions are kept: a file, a folder, a container in memory."""

    @property
    def survives(self) -> bool:
        """Say whether sessions outlive the container object that wrote them."""
        ...

    def sessions(self) -> Sessions:
        """Answer a container over this place; a new object each time when the place survives."""
        ...


class CountedRandomness:
    """A `Randomness` that counts: the same calls give the same text in every run."""

    def __init__(self) -> None:
        self._count = 0

    def token(self, nbytes: int) -> str:
        """Answer the next number as lower-case hex."""
        self._count += 1
        return f"{self._count:0{2 * nbytes}x}"[-2 * nbytes :]


def raw(value: object) -> Raw:
    """Encode a value the way a command does."""
    return to_raw(value)


class Batch:
    """Build one commit the way a command does: each added write mints the next seq."""

    def __init__(self, storage: Storage, time_ms: int) -> None:
        self.storage = storage
        self.time_ms = time_ms
        self.writes: list[Write] = []

    @property
    def next_seq(self) -> Seq:
        """Answer the seq that the next write gets."""
        return Seq(self.storage.last_seq + len(self.writes) + 1)

    def add(self, kind: type[Write], /, **fields: Any) -> Seq:
        """Add a write of a kind; answer its seq."""
        seq = self.next_seq
        self.writes.append(kind(seq=seq, **fields))
        return seq

    def conversation(self, **fields: Any) -> Seq:
        """Add a conversation."""
        return self.add(InsertConversation, **fields)

    def entry(self, conv_id: Seq, text: str = "", *, select: bool = True, **fields: Any) -> Seq:
        """Add an entry and, unless told otherwise, its place in the context."""
        fields.setdefault("kind", "user")
        fields.setdefault("meta_json", EMPTY_OBJECT)
        if "ref" not in fields:
            fields.setdefault("payload_json", raw({"text": text}))
        seq = self.add(InsertEntry, conv_id=conv_id, **fields)
        if select:
            self.add(AppendContext, conv_id=conv_id, ids=(seq,))
        return seq

    def task(self, conv_id: Seq, kind: str = "generation", **fields: Any) -> Seq:
        """Add a task."""
        fields.setdefault("status", "pending")
        fields.setdefault("state_json", raw({"v": 1}))
        return self.add(InsertTask, conv_id=conv_id, kind=kind, **fields)

    def set(self, namespace: str, value: object, key: str = "", **where: Any) -> Seq:
        """Set a value of the session, a conversation (`conv_id`) or a scope (`working_scope`)."""
        return self.add(SetValue, namespace=namespace, key=key, value_json=raw(value), **where)

    def delete(self, namespace: str, key: str = "", **where: Any) -> Seq:
        """Delete a value."""
        return self.add(DeleteValue, namespace=namespace, key=key, **where)

    def append(self, namespace: str, value: object, key: str = "", **where: Any) -> Seq:
        """Append a list element; `tag` may be among the fields."""
        return self.add(AppendList, namespace=namespace, key=key, value_json=raw(value), **where)

    def build(self) -> Commit:
        """Answer the commit so far."""
        first = Seq(self.storage.last_seq + 1)
        last = Seq(self.storage.last_seq + len(self.writes))
        return Commit(
            first_seq=first, last_seq=last, time_ms=self.time_ms, writes=tuple(self.writes)
        )

    async def commit(self, *, barrier: bool = False) -> Seq:
        """Commit the batch; answer its end."""
        commit = self.build()
        await self.storage.commit(commit, barrier=barrier)
        return commit.last_seq


class Lab:
    """One place with one open session; made by `storage_suite.run`."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.sessions = place.sessions()
        self._storage: Storage | None = None
        self._time_ms = 1_000

    @property
    def storage(self) -> Storage:
        """Answer the open session."""
        assert self._storage is not None
        return self._storage

    async def start(self) -> None:
        """Open the session, creating it."""
        self._storage = await self.sessions.open(SESSION_NAME, create=True)

    async def reopen(self) -> None:
        """Close the session, and the container where it survives that, and open both again."""
        await self.storage.close()
        if self.place.survives:
            await self.sessions.close()
            self.sessions = self.place.sessions()
        self._storage = await self.sessions.open(SESSION_NAME, create=False)

    async def stop(self) -> None:
        """Close everything."""
        await self.storage.close()
        await self.sessions.close()

    def main(self, storage: Storage | None = None) -> Batch:
        """Start a main batch; each is one second later than the one before."""
        self._time_ms += 1_000
        return Batch(self.storage if storage is None else storage, self._time_ms)

    def working(self) -> Batch:
        """Start a working batch."""
        return Batch(self.storage, 0)

    async def root(self) -> Seq:
        """Commit a conversation."""
        batch = self.main()
        conv_id = batch.conversation()
        await batch.commit()
        return conv_id

    async def refuses(self, commit: Commit, code: str = "invariant") -> Rejected:
        """Insist that a commit is refused and that nothing changed (ST-06)."""
        before = await self.snapshot()
        error = await fails(self.storage.commit(commit, barrier=False), Rejected, code)
        assert await self.snapshot() == before
        return error

    async def snapshot(self) -> tuple[Seq, Sequence[Commit]]:
        """Answer the last seq and the whole journal, for comparison."""
        return self.storage.last_seq, await journal(self.storage)


async def fails(call: Awaitable[object], kind: type[E], code: str | None = None) -> E:
    """Insist that a call fails in one way, and answer the exception."""
    caught: E | None = None
    try:
        await call
    except kind as error:
        caught = error
    assert caught is not None, f"did not fail with {kind.__name__}"
    assert code is None or getattr(caught, "code", None) == code, caught
    return caught


async def journal(storage: Storage) -> list[Commit]:
    """Read every main commit, page by page."""
    found: list[Commit] = []
    after = Seq(0)
    while page := await storage.commits(after=after, limit=100):
        found.extend(page)
        after = page[-1].last_seq
    return found


def with_seqs(commit: Commit, first: Any, seqs: Sequence[Any] | None = None) -> Commit:
    """Answer a commit whose seqs are changed to what a check wants to see refused."""
    wanted = range(first, first + len(commit.writes)) if seqs is None else seqs
    writes = tuple(
        structs.replace(write, seq=seq) for write, seq in zip(commit.writes, wanted, strict=True)
    )
    last = writes[-1].seq
    return structs.replace(commit, first_seq=first, last_seq=last, writes=writes)
