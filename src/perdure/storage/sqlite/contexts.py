"""The context list in rows: newest whole list, then the marked entries above it (D04, CX-15)."""

import sqlite3
from typing import Final

from perdure.records.codec import decode
from perdure.records.seqs import Seq

BASE: Final = (
    "SELECT seq, version, ids FROM context WHERE session=? AND conv=? AND seq<=? "
    "ORDER BY seq DESC LIMIT 1"
)
APPENDED: Final = (
    "SELECT id FROM timeline INDEXED BY timeline_selected "
    "WHERE session=? AND conv=? AND id>? AND id<=? AND selected=1 ORDER BY id"
)
SEQ_ABOVE_ALL: Final = 2**62


class TooLong(Exception):
    """A list has more appended ids than its reader wants to wait for."""


def context_at(
    conn: sqlite3.Connection,
    session: int,
    conv_id: int,
    as_of: int | None,
    *,
    most: int | None = None,
) -> tuple[int, list[Seq]]:
    """Answer prefix version and list, now or at a boundary; costs the length of the answer.

    Raises:
        TooLong: when more than `most` ids were appended since the newest whole list.
    """
    cutoff = SEQ_ABOVE_ALL if as_of is None else as_of
    row = conn.execute(BASE, (session, conv_id, cutoff)).fetchone()
    start, version, ids = conv_id, 0, list[Seq]()
    if row is not None:
        start, version, ids = row[0], row[1], decode(row[2].encode(), list[Seq])
    rows = conn.execute(APPENDED, (session, conv_id, start, cutoff))
    found = rows.fetchall() if most is None else rows.fetchmany(most + 1)
    if most is not None and len(found) > most:
        raise TooLong
    ids.extend([entry_id for (entry_id,) in found])
    return version, ids
