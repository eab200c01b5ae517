"""Connections to the container file, its format number, and what SQLite's errors mean here.

One library for one file in one process: two copies of SQLite drop each other's locks.

Invariants: a container of a newer format is refused with its bytes unchanged; a file that is not
a container is never written; files are private to their owner (SX-06).
"""

import fcntl
import logging
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from perdure.errors import Faulted, FormatUnsupported, Rejected, StorageBusy, StorageDamaged
from perdure.storage.blobs import Blobs

FORMAT: Final = 1
"""Container format this release writes."""

APPLICATION_ID: Final = 0x70726475
"""Marks the file as a container: "prdu"."""

PAGE_BYTES: Final = 4096
CACHED_STATEMENTS: Final = 256
FILE_MODE: Final = 0o600
WAIT_MS: Final = 20
"""How long to wait between two looks at the folder's lock."""

Step: TypeAlias = Callable[[sqlite3.Connection], None]
Migrations: TypeAlias = tuple[tuple[int, Step], ...]
"""Each step brings a container of the format beside it to the next one."""

MIGRATIONS: Final[Migrations] = ()

_LOG: Final = logging.getLogger("perdure.storage")
_FOLDER: Final = Path(__file__).parent
_DAMAGE: Final = frozenset({"SQLITE_CORRUPT", "SQLITE_NOTADB"})
_WAITED: Final = frozenset({"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"})


def code_of(error: sqlite3.Error) -> str:
    """Name the primary result code of an error, "" when it has none."""
    name = getattr(error, "sqlite_errorname", "") or ""
    return "_".join(name.split("_")[:2])


@contextmanager
def translating(what: str, path: Path) -> Generator[None, None, None]:
    """Turn SQLite's and the system's errors into perdure's.

    Raises:
        StorageBusy: another connection held the file for too long.
        StorageDamaged: the bytes are not those of a container.
        Faulted: anything else that went wrong below.
    """
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, OSError) as error:
        raise translated(error, what, path) from error


def translated(error: Exception, what: str, path: Path) -> Exception:
    """Answer perdure's error for one of SQLite or the system."""
    code = code_of(error) if isinstance(error, sqlite3.Error) else ""
    if code in _WAITED:
        return StorageBusy(f"{what}: another connection holds {path} ({error})")
    if code in _DAMAGE:
        return StorageDamaged(f"{what}: {path} is damaged ({error})")
    return Faulted(f"{what}: {path}: {error}")


def real(path: Path) -> Path:
    """Answer the path behind links; one that runs in a circle stays, and opening it says so."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()


def identity_of(path: Path) -> tuple[int, int] | None:
    """Answer device and number of the file that has this name now, None when there is none."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return facts.st_dev, facts.st_ino


def blobs_beside(path: Path, *, sync: bool) -> Blobs:
    """Answer the blob folder of a container file."""
    return Blobs(path.with_name(path.name + ".blobs"), sync=sync)


def create_private(path: Path) -> bool:
    """Create an absent file that only its owner reads, whatever the umask; say whether it was."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    except FileExistsError:
        return False
    os.close(handle)
    return True


def warn_if_loose(path: Path) -> None:
    """Log one warning about a store that others may read; it is used as it is (SX-06)."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & ~FILE_MODE:
        _LOG.warning("%s may be read by others: its mode is %03o, not %03o", path, mode, FILE_MODE)


@contextmanager
def creating(path: Path, busy_ms: int) -> Generator[None, None, None]:
    """Hold the folder's lock while a container is created or migrated.

    SQLite does not wait when two processes switch one new file to write-ahead logging. The lock
    is on the folder, because closing a second descriptor of the file would drop SQLite's own.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Rejected(
            "not_found", f"the folder {path.parent} does not exist; make it, and open again"
        ) from None
    fresh = not path.exists()
    try:
        for _ in range(1 + busy_ms // WAIT_MS):
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                threading.Event().wait(WAIT_MS / 1000)
            except OSError as error:
                raise StorageBusy(
                    f"the file system refuses the lock of the folder {path.parent}: {error}"
                ) from None
        else:
            raise StorageBusy(f"another process has been creating {path} for {busy_ms} ms")
        yield
        if fresh:
            os.fsync(folder)  # the name of a new file is on disk only with its folder
    finally:
        os.close(folder)


def open_writer(path: Path, busy_ms: int) -> sqlite3.Connection:
    """Connect for writing; checkpoints are left to the writer thread."""
    conn = sqlite3.connect(
        path,
        timeout=busy_ms / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=CACHED_STATEMENTS,
    )
    conn.execute("PRAGMA wal_autocheckpoint = 0")
    conn.execute("PRAGMA synchronous = NORMAL")
    return conn


def open_reader(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Connect for reading only; `immutable` for a file that no writer has open."""
    mode = "mode=ro&immutable=1" if immutable else "mode=ro"
    conn = sqlite3.connect(
        f"{path.as_uri()}?{mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=CACHED_STATEMENTS,
    )
    conn.execute("PRAGMA query_only = 1")
    return conn


def format_of(conn: sqlite3.Connection, path: Path) -> int:
    """Answer the container's format, 0 for an empty file.

    Raises:
        StorageDamaged: the file is somebody else's database.
        FormatUnsupported: the container is newer than this release.
    """
    (number,) = conn.execute("PRAGMA user_version").fetchone()
    (owner,) = conn.execute("PRAGMA application_id").fetchone()
    if owner != APPLICATION_ID:
        if number or conn.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise StorageDamaged(f"{path} is a database, but not a perdure container")
        return 0
    if number > FORMAT:
        raise FormatUnsupported(
            f"{path} has container format {number}; this release reads up to {FORMAT}: "
            f"open it with the release that wrote it, or a later one"
        )
    return number


def prepare_container(
    conn: sqlite3.Connection, path: Path, migrations: Migrations = MIGRATIONS
) -> None:
    """Create the tables of an empty file, or bring an older container up to date (FM-11).

    All in one transaction: a kill leaves the old container or the new one.
    """
    if format_of(conn, path) == FORMAT:
        return
    if conn.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        conn.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        conn.execute("PRAGMA journal_mode = WAL")
    conn.execute("PRAGMA synchronous = FULL")
    conn.execute("BEGIN EXCLUSIVE")
    try:
        number = format_of(conn, path)
        if number == 0:
            run_script(conn, "schema.sql")
            run_script(conn, "index.sql")
            conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        else:
            migrate(conn, number, migrations)
        conn.execute(f"PRAGMA user_version = {FORMAT}")
        conn.execute("COMMIT")
    finally:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        conn.execute("PRAGMA synchronous = NORMAL")


def migrate(conn: sqlite3.Connection, number: int, migrations: Migrations) -> None:
    """Run the steps from a format to this one, in order, inside the caller's transaction."""
    steps = dict(migrations)
    for old in range(number, FORMAT):
        if old not in steps:
            raise FormatUnsupported(
                f"container format {old} has no way to {FORMAT}; this release reads {FORMAT}"
            )
        steps[old](conn)


def run_script(conn: sqlite3.Connection, name: str) -> None:
    """Run the statements of one SQL file inside the caller's transaction."""
    statement = ""
    for line in (_FOLDER / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("--"):
            continue
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            conn.execute(statement)
            statement = ""
