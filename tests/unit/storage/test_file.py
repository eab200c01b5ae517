"""The SQLite file itself: formats, permissions, readers, forks, fences, what a row holds."""

import asyncio
import os
import sqlite3
import stat
import threading
from pathlib import Path
from typing import Literal

import pytest

from perdure.errors import (
    Faulted,
    Fenced,
    FormatUnsupported,
    PerdureError,
    Rejected,
    StorageBusy,
    StorageDamaged,
)
from perdure.hosts.randomness import SystemRandomness
from perdure.hosts.threads import DaemonThreads
from perdure.records.seqs import Seq
from perdure.records.sessions import TaskScan
from perdure.records.writes import RetireScope
from perdure.storage.sqlite import SqliteSessions
from perdure.storage.sqlite.connect import FORMAT, Step, open_writer, prepare_container
from perdure.storage.sqlite.handle import SqliteStorage
from perdure.storage.sqlite.rows import SessionRows
from perdure.storage.sqlite.writer import ALONE_COMMITS, Writer
from perdure.testing.manual_clock import ManualClock
from perdure.testing.storage_history import History, value_at
from perdure.testing.storage_lab import Batch, Lab, journal
from tests.conformance.places import SqlitePlace
from tests.unit.storage.stores import NAME, container, count_up, main, opened


def sql(folder: Path, statement: str, *arguments: object) -> list[tuple[object, ...]]:
    """Look into the file from outside."""
    conn = sqlite3.connect(folder / "store.db", isolation_level=None)
    try:
        return conn.execute(statement, arguments).fetchall()
    finally:
        conn.close()


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Answer every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# Formats


@pytest.mark.spec("FM-11")
async def test_a_newer_container_is_refused_untouched(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await count_up(storage, 2)
    sql(tmp_path, f"PRAGMA user_version = {FORMAT + 1}")
    before = bytes_of(tmp_path)
    for read_only in (False, True):
        sessions = container(tmp_path)
        with pytest.raises(FormatUnsupported) as caught:
            await sessions.open(NAME, create=True, read_only=read_only)
        assert f"format {FORMAT + 1}" in str(caught.value)
        assert f"up to {FORMAT}" in str(caught.value)
        await sessions.close()
    assert {name: data for name, data in bytes_of(tmp_path).items() if name in before} == before


def add_column(conn: sqlite3.Connection) -> None:
    """Migrate the fabricated format."""
    conn.execute("ALTER TABLE journal ADD COLUMN blobs TEXT")


def break_off(conn: sqlite3.Connection) -> None:
    """Migrate half-way, and fail."""
    add_column(conn)
    raise ZeroDivisionError


@pytest.mark.spec("FM-11")
async def test_an_older_container_is_migrated_whole_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as storage:
        await count_up(storage, 2)
    sql(tmp_path, "PRAGMA user_version = 1")
    sql(tmp_path, "ALTER TABLE journal DROP COLUMN blobs")
    for module in ("connect", "threads"):
        monkeypatch.setattr(f"perdure.storage.sqlite.{module}.FORMAT", 2)
    before = (tmp_path / "store.db").read_bytes()
    path = tmp_path / "store.db"

    def migrate_by(step: Step | None) -> None:
        conn = open_writer(path, 1_000)
        try:
            prepare_container(conn, path, () if step is None else ((1, step),))
        finally:
            conn.close()

    sessions = container(tmp_path)
    with pytest.raises(FormatUnsupported, match="open it for writing once"):
        await sessions.open(NAME, create=False, read_only=True)
    assert path.read_bytes() == before
    with pytest.raises(FormatUnsupported, match="has no way"):
        await asyncio.to_thread(migrate_by, None)
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(migrate_by, break_off)
    assert sql(tmp_path, "PRAGMA user_version") == [(1,)]
    assert "blobs" not in str(sql(tmp_path, "PRAGMA table_info(journal)"))
    await asyncio.to_thread(migrate_by, add_column)
    assert sql(tmp_path, "PRAGMA user_version") == [(2,)]
    storage = await sessions.open(NAME, create=False)
    assert len(await journal(storage)) == 2
    await count_up(storage, 1)
    await sessions.close()


async def test_somebody_elses_database_is_never_written(tmp_path: Path) -> None:
    sql(tmp_path, "CREATE TABLE theirs (x)")
    before = (tmp_path / "store.db").read_bytes()
    sessions = container(tmp_path)
    with pytest.raises(StorageDamaged, match="not a perdure container"):
        await sessions.open(NAME, create=True)
    await sessions.close()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "store.db").write_text("not a database at all, just text" * 200)
    sessions = container(tmp_path / "text")
    with pytest.raises(StorageDamaged):
        await sessions.open(NAME, create=True)
    await sessions.close()
    assert (tmp_path / "store.db").read_bytes() == before


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    sessions = container(tmp_path / "absent")
    with pytest.raises(Rejected, match="absent does not exist"):
        await sessions.open(NAME, create=True)
    assert await sessions.page(after=None, limit=5) == []
    with pytest.raises(Rejected):
        await sessions.open(NAME, create=False)
    assert list(tmp_path.iterdir()) == []
    await sessions.close()


async def test_reading_an_absent_container_makes_no_file(tmp_path: Path) -> None:
    sessions = container(tmp_path)
    assert await sessions.page(after=None, limit=5) == []
    for read_only in (False, True):
        with pytest.raises(Rejected) as caught:
            await sessions.open(NAME, create=False, read_only=read_only)
        assert caught.value.code == "not_found"
        assert caught.value.message == f"there is no store at {str(tmp_path / 'store.db')!r}"
    with pytest.raises(Rejected):
        await sessions.rename(NAME, "other")
    with pytest.raises(Rejected):
        await sessions.delete(NAME)
    await sessions.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("BR-01")
async def test_durability_is_one_of_two_words(tmp_path: Path) -> None:
    with pytest.raises(Rejected) as caught:
        container(tmp_path, durability="full")
    assert "'power' and 'process'" in str(caught.value)


@pytest.mark.spec("SQ-04")
async def test_write_ahead_logging_with_pages_of_4096(tmp_path: Path) -> None:
    async with opened(tmp_path):
        assert sql(tmp_path, "PRAGMA journal_mode") == [("wal",)]
        assert sql(tmp_path, "PRAGMA page_size") == [(4096,)]


@pytest.mark.spec("SX-06")
async def test_every_file_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with opened(tmp_path) as storage:
            batch = main(storage)
            batch.set("n", "x" * 100_000)
            await batch.commit()
            for path in tmp_path.rglob("*"):
                mode = stat.S_IMODE(path.stat().st_mode)
                assert mode == (0o700 if path.is_dir() else 0o600), path
    finally:
        os.umask(before)


# Who may write


@pytest.mark.spec("SN-11", "BB-10", "ST-30")
async def test_links_and_other_spellings_meet_the_same_lock(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "sub" / "other.db").symlink_to(tmp_path / "store.db")
    async with opened(tmp_path) as storage:
        await count_up(storage, 1)
        spellings = ("link/store.db", "sub/../store.db", "sub/other.db", "/store.db")
        for spelling in spellings:
            sessions = SqliteSessions(
                f"{tmp_path}/{spelling}", clock=ManualClock(), randomness=SystemRandomness()
            )
            with pytest.raises(StorageBusy) as caught:
                await sessions.open(NAME, create=True)
            assert caught.value.holder["pid"] == os.getpid()
            assert caught.value.holder["epoch"] == 1
            assert "control" not in caught.value.holder
            reader = await sessions.open(NAME, create=False, read_only=True)
            assert len(await journal(reader)) == 1
            other = await sessions.open(spelling, create=True)  # its own lock
            await other.close()
            await sessions.close()
        await count_up(storage, 1)


@pytest.mark.spec("ST-30", "SQ-01")
async def test_the_older_of_two_writers_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the lock out of the way, the file itself decides."""
    monkeypatch.setattr("fcntl.flock", lambda handle, how: None)
    old_sessions, new_sessions = container(tmp_path), container(tmp_path)
    old = await old_sessions.open(NAME, create=True)
    await count_up(old, 2)
    new = await new_sessions.open(NAME, create=False)
    assert new.info.epoch == old.info.epoch + 1
    for _ in range(2):
        with pytest.raises(Fenced):
            await count_up(old, 1)
    await count_up(new, 1)
    assert len(await journal(new)) == 3
    await old.close()
    await count_up(new, 1)
    assert (await new.openings(limit=1))[0].closed_ms is None
    await old_sessions.close()
    await new_sessions.close()


@pytest.mark.spec("SQ-01")
async def test_a_head_that_moved_is_a_fence_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await count_up(storage, 2)
        sql(tmp_path, "UPDATE session SET head = 7")
        with pytest.raises(Fenced):
            await count_up(storage, 1)
        assert sql(tmp_path, "SELECT count(*) FROM journal") == [(2,)]


async def test_a_fenced_session_leaves_the_others_of_its_group_alone(tmp_path: Path) -> None:
    sessions = container(tmp_path)
    stores = [await sessions.open(f"s{number}", create=True) for number in range(4)]
    sql(tmp_path, "UPDATE session SET epoch = 9 WHERE name = 's1'")
    batches = [main(storage) for storage in stores]
    for batch in batches:
        batch.set("n", 1)
    batches[2].writes.clear()
    batches[2].set("n", 1, conv_id=Seq(9))  # refused by its rows
    found = await asyncio.gather(
        *(batch.commit(barrier=True) for batch in batches), return_exceptions=True
    )
    assert [type(one) for one in found] == [int, Fenced, Rejected, int]
    assert [storage.last_seq for storage in stores] == [1, 0, 0, 1]
    await sessions.close()


async def test_a_forked_child_is_refused_before_it_writes(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await count_up(storage, 1)
        pid = os.fork()
        if pid == 0:
            os._exit(_in_the_child(storage))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        await count_up(storage, 1)
        sessions = container(tmp_path)
        with pytest.raises(StorageBusy):
            await sessions.open(NAME, create=False)
        await sessions.close()


def _in_the_child(storage: object) -> int:
    """Drive one commit by hand: the child has no event loop of its own running."""
    batch = main(storage)  # type: ignore[arg-type] # the storage of the parent
    batch.set("n", "child")
    try:
        batch.storage.commit(batch.build(), barrier=True).send(None)
    except Faulted as error:
        return 0 if error.code == "forked" else 3
    except StopIteration:
        return 4
    return 5


# Reading beside


@pytest.mark.spec("SN-10")
async def test_a_reader_alone_writes_no_byte(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await count_up(storage, 3)
    before = bytes_of(tmp_path)
    sessions = container(tmp_path)
    reader = await sessions.open(NAME, create=False, read_only=True)
    assert len(await journal(reader)) == 3
    assert reader.info.epoch == 1
    with pytest.raises(Rejected, match="read-only"):
        await count_up(reader, 1)
    assert bytes_of(tmp_path) == before
    # A writer that comes later is seen, without the reader being opened again.
    async with opened(tmp_path, create=False) as storage:
        await count_up(storage, 1)
        assert len(await journal(reader)) == 4
    assert len(await journal(reader)) == 4
    await sessions.close()


@pytest.mark.spec("SQ-05")
async def test_a_compound_query_runs_in_one_read_transaction(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        assert isinstance(storage, SqliteStorage)

        def twice(conn: sqlite3.Connection) -> list[object]:
            before = conn.execute("SELECT created FROM session").fetchone()
            sql(tmp_path, "UPDATE session SET created = created + 1")
            return [before, conn.execute("SELECT created FROM session").fetchone()]

        first, second = await storage._reader.call(twice)
        assert first == second
        third, _ = await storage._reader.call(twice)
        assert third != first


# What rows hold


async def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await count_up(storage, 3)
    sql(tmp_path, "UPDATE journal SET writes = replace(writes, '1}', '8}') WHERE last = 2")
    async with opened(tmp_path, create=False) as storage:
        with pytest.raises(StorageDamaged, match="checksum"):
            await storage.commits(after=Seq(0), limit=10)
        assert len(await storage.commits(after=Seq(0), limit=1)) == 1


@pytest.mark.spec("BR-12", "SQ-14", "SQ-13")
async def test_indexes_are_made_anew_from_the_journal(tmp_path: Path) -> None:
    lab = Lab(SqlitePlace(tmp_path))
    await lab.start()
    history = History(lab, seed=5)
    await history.run(80)
    working = lab.working()
    working.set("kept", 1, working_scope="1")
    await working.commit()
    await lab.stop()
    tables = sql(tmp_path, "SELECT name FROM sqlite_master WHERE type='table' ORDER BY name")
    kept = {"session", "opening", "journal", "working_value", "working_element"}
    indexes = [str(name) for (name,) in tables if name not in kept and "sqlite" not in str(name)]
    assert len(indexes) == 9

    def contents() -> dict[str, list[tuple[object, ...]]]:
        found = {name: sql(tmp_path, f"SELECT * FROM {name} ORDER BY 1, 2, 3") for name in indexes}
        numbers = {row[0]: row[2:] for row in found.pop("name")}
        for table in ("version", "element", "session_value"):
            found[table] = sorted(((numbers[row[1]], *row) for row in found[table]), key=repr)
            found[table] = [(row[0], row[1], *row[3:]) for row in found[table]]
        return found

    before, scratch = contents(), sql(tmp_path, "SELECT * FROM working_value")
    for name in indexes:
        sql(tmp_path, f"DROP TABLE {name}")
    sessions = container(tmp_path)
    await sessions.rebuild()
    await sessions.close()
    assert contents() == before
    assert sql(tmp_path, "SELECT * FROM working_value") == scratch
    for name in indexes:
        columns = [row[1] for row in sql(tmp_path, f"PRAGMA table_info({name})")]
        assert columns[0] == "session" or name == "name"


async def test_no_index_is_made_anew_under_an_open_session(tmp_path: Path) -> None:
    async with opened(tmp_path):
        sessions = container(tmp_path)
        with pytest.raises(StorageBusy):
            await sessions.rebuild()
        await sessions.close()


@pytest.mark.spec("SQ-03", "SQ-11")
async def test_working_rows_are_few_and_go_with_their_scope(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        for number in range(20):
            batch = Batch(storage, 0)
            batch.set("n", number, working_scope="a")
            batch.append("l", number, working_scope="a")
            await batch.commit()
        assert sql(tmp_path, "SELECT count(*), max(value) FROM working_value") == [(1, "19")]
        batch = main(storage)
        batch.add(RetireScope, working_scope="a")
        await batch.commit()
        for table in ("working_value", "working_element"):
            assert sql(tmp_path, f"SELECT count(*) FROM {table}") == [(0,)]
        assert "working" not in str(sql(tmp_path, "SELECT writes FROM journal")).replace(
            "workingScope", ""
        )


@pytest.mark.spec("BR-12")
async def test_a_payload_stands_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        batch = main(storage)
        conv_id = batch.conversation()
        batch.entry(conv_id, "needle-" * 5)
        batch.set("v", "needle-" * 5)
        batch.set("v", "needle-" * 5, conv_id=conv_id)
        batch.append("l", "needle-" * 5)
        await batch.commit()
    data = (tmp_path / "store.db").read_bytes()
    assert data.count(b"needle-needle-needle-needle-needle-") == 4


async def test_a_rebuild_that_breaks_off_leaves_the_old_indexes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as storage:
        await count_up(storage, 5)
    before = sql(tmp_path, "SELECT * FROM session_value")
    calls: list[object] = []

    def break_off(rows: SessionRows, commit: object, scope: object) -> None:
        calls.append(commit)
        if len(calls) == 3:
            raise OSError("no more")

    monkeypatch.setattr(SessionRows, "apply", break_off)
    sessions = container(tmp_path)
    with pytest.raises(Faulted, match="no more"):
        await sessions.rebuild()
    await sessions.close()
    assert sql(tmp_path, "SELECT * FROM session_value") == before


@pytest.mark.spec("SN-14")
async def test_ten_thousand_openings_are_small(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    before = (tmp_path / "store.db").stat().st_size
    conn = sqlite3.connect(tmp_path / "store.db")
    rows = [
        (1, epoch, 4_000_000, "a-host-with-a-long-name", 10**12, 10**12)
        for epoch in range(2, 10_001)
    ]
    conn.executemany("INSERT INTO opening VALUES (?,?,?,?,?,?)", rows)
    conn.commit()
    conn.close()
    assert (tmp_path / "store.db").stat().st_size - before < 2 * 2**20


@pytest.mark.spec("SN-07")
async def test_a_damaged_session_is_listed_with_the_reason(tmp_path: Path) -> None:
    sessions = container(tmp_path)
    for name in ("a", "b", "c"):
        await (await sessions.open(name, create=True)).close()
    sql(tmp_path, "UPDATE session SET owner = '{broken' WHERE name = 'b'")
    page = await sessions.page(after=None, limit=9)
    assert [info.damaged is None for info in page] == [True, False, True]
    assert "owner" in str(page[1].damaged)
    await sessions.close()


@pytest.mark.spec("SX-06")
async def test_a_looser_store_is_used_as_it_is_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path):
        pass
    (tmp_path / "store.db").chmod(0o644)
    for _ in range(2):
        caplog.clear()
        async with opened(tmp_path, create=False) as storage:
            await count_up(storage, 1)
        assert len(caplog.records) == 1
        assert "store.db" in caplog.text
    assert stat.S_IMODE((tmp_path / "store.db").stat().st_mode) == 0o644


async def test_openings_beyond_the_limit_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.storage.sqlite.container.OPENINGS_MAX", 3)
    sessions = container(tmp_path)
    for _ in range(6):
        storage = await sessions.open(NAME, create=True)
        await storage.close()
    storage = await sessions.open(NAME, create=False)
    assert [one.epoch for one in await storage.openings(limit=100)] == [7, 6, 5]
    await sessions.close()


async def test_a_crafted_circle_of_parents_ends(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        batch = main(storage)
        first = batch.conversation()
        second = batch.conversation()
        await batch.commit()
        sql(tmp_path, "UPDATE conversation SET parent=?, as_of=99, inherits=1 WHERE id=?", 2, 1)
        sql(tmp_path, "UPDATE conversation SET parent=?, as_of=99, inherits=1 WHERE id=?", 1, 2)
        assert await storage.value(value_at(first, "")) is None
        assert await storage.value(value_at(second, "")) is None
        assert await storage.scan_tasks(TaskScan(limit=1)) == []


@pytest.mark.spec("SN-12")
async def test_a_wait_beyond_the_limit_is_said(tmp_path: Path) -> None:
    sessions = container(tmp_path, busy_seconds=0.1)
    storage = await sessions.open(NAME, create=True)
    outside = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    outside.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageBusy):
        await sessions.open("other", create=True)
    with pytest.raises(Faulted, match="locked"):
        await count_up(storage, 1)
    outside.execute("ROLLBACK")
    outside.close()
    await storage.close()
    again = await sessions.open(NAME, create=False)
    await count_up(again, 1)
    await sessions.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_after_a_defect_ended_its_thread_nobody_waits_for_ever(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "sessions.db", busy_ms=100, power=False)

    def defect(conn: sqlite3.Connection) -> None:
        raise ZeroDivisionError

    async with asyncio.timeout(5):
        for work in (defect, lambda conn: None):
            with pytest.raises(Faulted, match="the thread broke off on a defect"):
                await writer.call(work)
        with pytest.raises(Faulted):
            await writer.stop()
        for thread in threading.enumerate():
            if thread.name == "perdure-write":
                await DaemonThreads().run("join", thread.join)


async def test_a_link_to_itself_is_said(tmp_path: Path) -> None:
    (tmp_path / "store.db").symlink_to("store.db")
    async with asyncio.timeout(5):
        sessions = container(tmp_path)
        with pytest.raises(PerdureError, match=r"store\.db"):
            await sessions.open(NAME, create=True)
        await sessions.close()


async def test_an_open_that_is_cancelled_leaves_the_session_free(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    for steps in range(12):
        sessions = container(tmp_path)
        opening = asyncio.ensure_future(sessions.open(NAME, create=True))
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait({opening})
        if not opening.cancelled():
            await opening.result().close()
        storage = await sessions.open(NAME, create=True)
        await storage.close()
        await sessions.close()


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("durability", ["power", "process"])
@pytest.mark.parametrize("before", [0, ALONE_COMMITS], ids=["on the thread", "on the loop"])
async def test_a_barrier_in_a_file_that_lost_its_name_is_never_acknowledged(
    tmp_path: Path, *, replaced: bool, durability: Literal["power", "process"], before: int
) -> None:
    sessions = container(tmp_path, durability=durability)
    storage = await sessions.open(NAME, create=True)
    await count_up(storage, before)
    batch = main(storage)
    batch.conversation()
    await batch.commit(barrier=True)
    file = tmp_path / "store.db"
    file.rename(tmp_path / "elsewhere.db")
    if replaced:
        file.write_bytes(b"")
    batch = main(storage)
    batch.conversation()
    with pytest.raises(Faulted, match="removed, moved or replaced"):
        await batch.commit(barrier=True)
    await sessions.close()
