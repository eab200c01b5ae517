"""Journal rows: one a main commit, and how a seq finds its write.

The checksum of a row is the one of the same commit's JSONL line (FM-01): crc32 of
`"f":first,"l":last,"t":time,"w":writes}`. A row that fails it is `StorageDamaged`, never
somebody's content.
"""

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw, structs

from perdure.errors import StorageDamaged
from perdure.records.codec import decode, decoder, encode
from perdure.records.seqs import NO_SEQ, SEQ_MAX, Seq
from perdure.records.sessions import EntryScan
from perdure.records.writes import Commit, Write
from perdure.storage.blobs import BlobSource, Cut, restore

Row: TypeAlias = tuple[int, int, int, int, str | None, bytes]
"""first, last, time, crc, blobs, writes."""

INSERT: Final = (
    "INSERT INTO journal (session, last, first, time, crc, blobs, writes) VALUES (?,?,?,?,?,?,?)"
)
AT_SEQ: Final = (
    "SELECT first, last, time, crc, blobs, CAST(writes AS BLOB) FROM journal "
    "WHERE session=? AND last>=? ORDER BY last LIMIT 1"
)
AFTER: Final = (
    "SELECT first, last, time, crc, blobs, CAST(writes AS BLOB) FROM journal "
    "WHERE session=? AND last>? ORDER BY last LIMIT ?"
)

ALL: Final = (
    "SELECT first, last, time, crc, blobs, CAST(writes AS BLOB) FROM journal "
    "WHERE session=? ORDER BY last"
)
BETWEEN: Final = (
    "SELECT first, CAST(writes AS BLOB) FROM journal WHERE session=? AND last>? AND first<? "
    "ORDER BY last {order}"
)

_INSERT_ENTRY: Final = b'"k":"ins_entry"'


def checksum(first: int, last: int, time_ms: int, writes: bytes) -> int:
    """Answer the crc32 of a commit's line after its prefix."""
    start = zlib.crc32(b'"f":%d,"l":%d,"t":%d,"w":' % (first, last, time_ms))
    return zlib.crc32(b"}", zlib.crc32(writes, start))


def insert_row(
    cursor: sqlite3.Cursor,
    session: int,
    commit: Commit,
    text: bytes,
    cuts: tuple[Cut, ...] = (),
) -> None:
    """Write a main commit's row."""
    first, last, time_ms = commit.first_seq, commit.last_seq, commit.time_ms
    crc = checksum(first, last, time_ms, text)
    blobs = encode(cuts).decode() if cuts else None
    cursor.execute(INSERT, (session, last, first, time_ms, crc, blobs, text.decode()))


def check_row(row: Row) -> None:
    """Refuse a row whose bytes are not what was written."""
    first, last, time_ms, crc, _, writes = row
    if checksum(first, last, time_ms, writes) != crc:
        raise StorageDamaged(f"journal row {first} to {last}: the checksum does not fit")


def cuts_of(row: Row) -> tuple[Cut, ...]:
    """Answer what a row's commit moved into blobs."""
    if row[4] is None:
        return ()
    try:
        return decode(row[4].encode(), tuple[Cut, ...])
    except msgspec.MsgspecError as error:
        raise StorageDamaged(f"journal row {row[0]} to {row[1]}: blobs: {error}") from error


def decode_row(row: Row, blobs: BlobSource) -> Commit:
    """Answer the commit of a row, with the bytes of its blobs."""
    commit = decode_shortened(row)
    cuts = cuts_of(row)
    if not cuts:
        return commit
    writes = tuple(restore(write, cuts, blobs) for write in commit.writes)
    return structs.replace(commit, writes=writes)


def decode_shortened(row: Row) -> Commit:
    """Answer the commit of a row as it lies there, what was moved into blobs left out."""
    check_row(row)
    try:
        writes: tuple[Write, ...] = decoder(tuple[Write, ...]).decode(row[5])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise StorageDamaged(f"journal row {row[0]} to {row[1]}: {error}") from error
    return Commit(first_seq=Seq(row[0]), last_seq=Seq(row[1]), time_ms=row[2], writes=writes)


class JournalReader:
    """Reads of one session's journal inside one transaction; remembers the row it read last."""

    def __init__(self, conn: sqlite3.Connection, session: int, blobs: BlobSource) -> None:
        self._conn = conn
        self._session = session
        self._blobs = blobs
        self._cuts: tuple[Cut, ...] = ()
        self._first = 1
        self._last = 0
        self._writes: Sequence[Raw] = ()

    def write_at(self, seq: int) -> Write | None:
        """Answer the main write of a seq, None when it is not one."""
        if not self._first <= seq <= self._last and not self._load(seq):
            return None
        try:
            write: Write = decoder(Write).decode(self._writes[seq - self._first])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise StorageDamaged(f"the journal's write {seq}: {error}") from error
        return restore(write, self._cuts, self._blobs) if self._cuts else write

    def end_of(self, seq: int) -> Seq:
        """Answer the end of the commit that holds the seq read last."""
        assert self._first <= seq <= self._last
        return Seq(self._last)

    def _load(self, seq: int) -> bool:
        row: Row | None = self._conn.execute(AT_SEQ, (self._session, seq)).fetchone()
        if row is None:
            return False
        check_row(row)
        if row[0] > seq:
            return False
        self._first, self._last = row[0], row[1]
        try:
            self._writes = decoder(list[Raw]).decode(row[5])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise StorageDamaged(f"journal row {row[0]} to {row[1]}: {error}") from None
        self._cuts = cuts_of(row)
        if len(self._writes) != self._last - self._first + 1:
            raise StorageDamaged(f"journal row {row[0]} to {row[1]}: {len(self._writes)} writes")
        return True

    def commits(self, after: int, limit: int) -> list[Commit]:
        """Answer main commits in order."""
        rows = self._conn.execute(AFTER, (self._session, after, limit))
        return [decode_row(row, self._blobs) for row in rows]

    def entry_ids(self, scan: EntryScan) -> Iterator[Seq]:
        """Walk the ids of all entries of the session between a scan's bounds, in its order.

        The journal is in the order of the session; the indexes are in that of conversations.
        """
        low = 0 if scan.after is None else scan.after
        high = SEQ_MAX + 1 if scan.before is None else scan.before
        if scan.as_of is not None:
            high = min(high, scan.as_of + 1)
        forward = scan.order == "asc"
        for row in self._conn.execute(BETWEEN.format(order=scan.order), (self._session, low, high)):
            first: int = row[0]
            try:
                writes: list[Raw] = decoder(list[Raw]).decode(row[1])
            except (msgspec.MsgspecError, RecursionError) as error:
                raise StorageDamaged(f"the journal row from {first}: {error}") from None
            seqs = range(first, first + len(writes))
            for seq in seqs if forward else reversed(seqs):
                if low < seq < high and _INSERT_ENTRY in bytes(writes[seq - first]):
                    yield Seq(seq)

    def is_boundary(self, seq: int) -> bool:
        """Say whether a seq is 0 or the end of a main commit."""
        if seq == 0:
            return True
        found = self._conn.execute(
            "SELECT 1 FROM journal WHERE session=? AND last=?", (self._session, seq)
        ).fetchone()
        return found is not None

    def boundary_at(self, time_ms: int) -> Seq:
        """Find the last commit at or before a time; times never fall, so halve the seqs."""
        low, high, found = 0, self._head(), NO_SEQ
        while low < high:
            middle = (low + high + 1) // 2
            row = self._conn.execute(
                "SELECT last, time FROM journal WHERE session=? AND last<=? "
                "ORDER BY last DESC LIMIT 1",
                (self._session, middle),
            ).fetchone()
            if row is None or row[1] <= time_ms:
                low = middle
                found = NO_SEQ if row is None else Seq(row[0])
            else:
                high = row[0] - 1
        return found

    def _head(self) -> int:
        row = self._conn.execute(
            "SELECT max(last) FROM journal WHERE session=?", (self._session,)
        ).fetchone()
        return row[0] or 0
