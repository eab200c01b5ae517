"""Make every private index anew from the journal (BR-12, SQ-14).

One transaction: a kill leaves the old index or the new one. Working data is no index and stays.
"""

import sqlite3
from typing import Final

from perdure.storage.sqlite.connect import run_script
from perdure.storage.sqlite.journal import ALL, decode_shortened
from perdure.storage.sqlite.rows import SessionRows

INDEX_TABLES: Final = (
    "name", "conversation", "settings", "context", "timeline", "task", "session_value", "version",
    "element",
)  # fmt: skip
"""The tables of index.sql."""


def rebuild_indexes(conn: sqlite3.Connection) -> None:
    """Drop the index tables, make them, and write their rows; inside the caller's transaction."""
    for table in INDEX_TABLES:
        conn.execute(f"DROP TABLE IF EXISTS {table}")
    run_script(conn, "index.sql")
    for (session,) in conn.execute("SELECT id FROM session ORDER BY id").fetchall():
        rows = SessionRows(conn, session, rebuilding=True)
        for row in conn.execute(ALL, (session,)):
            rows.apply(decode_shortened(row), None)
