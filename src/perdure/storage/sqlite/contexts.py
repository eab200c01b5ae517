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


def context_at(
    conn: sqlite3.Connection, session: int, conv_id: int, as_of: int | None
) -> tuple[int, list[Seq]]:
    """Answer prefix version and list, now or at a boundary; costs the length of the answer."""
    cutoff = SEQ_ABOVE_ALL if as_of is None else as_of
    row = conn.execute(BASE, (session, conv_id, cutoff)).fetchone()
    start, version, ids = conv_id, 0, list[Seq]()
    if row is not None:
        start, version, ids = row[0], row[1], decode(row[2].encode(), list[Seq])
    ids.extend(found for (found,) in conn.execute(APPENDED, (session, conv_id, start, cutoff)))
    return version, ids
