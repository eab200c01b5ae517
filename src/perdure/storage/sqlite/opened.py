"""What a writing handle holds: the writer thread, the session's rows, its lock and its epoch."""

import sqlite3

from msgspec import Struct

from perdure.errors import PerdureError
from perdure.ports import Clock
from perdure.storage.locks import FileLock
from perdure.storage.sqlite.rows import SessionRows
from perdure.storage.sqlite.writer import Writer

END_OWNER = "UPDATE session SET owner=NULL WHERE id=? AND epoch=?"
END_OPENING = "UPDATE opening SET closed=? WHERE session=? AND epoch=?"


class Opened(Struct, kw_only=True):
    """One writing opening of one session."""

    writer: Writer
    rows: SessionRows
    lock: FileLock
    epoch: int
    clock: Clock

    async def close(self, *, faulted: bool) -> None:
        """Say in the file that the opening ended, then give the lock free.

        The one transaction is synced under "power", and all commits before it with it (BR-09).
        After a fault nothing more is written; the lock is given free all the same.
        """
        now = self.clock.now_ms()

        def end(conn: sqlite3.Connection) -> None:
            def work() -> None:
                conn.execute(END_OWNER, (self.rows.session, self.epoch))
                conn.execute(END_OPENING, (now, self.rows.session, self.epoch))

            try:
                if not faulted:
                    self.writer.transaction(conn, work, sync=True)
            finally:
                self.lock.release()

        try:
            await self.writer.call(end)
        except PerdureError:
            self.lock.release()
            raise
