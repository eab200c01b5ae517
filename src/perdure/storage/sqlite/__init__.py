"""Sessions in one SQLite file.

May touch: sqlite3, the file, its blob folder and lock files, two threads of its own.
May not touch: any other room's state; a second SQLite library on the same file.

`SqliteSessions` is the container, `SqliteStorage` one open session. One thread writes for every
session of the container, one reads.
"""

from perdure.storage.sqlite.container import SqliteSessions as SqliteSessions
