"""Where a commit is made: a lone one on the loop, everything else on the thread (ADR 0014)."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from perdure.records.addresses import Address
from perdure.records.seqs import Seq
from perdure.storage.blobs import BLOB_BYTES_MIN
from perdure.storage.sqlite.handle import FEW_IDS
from perdure.storage.sqlite.rows import SessionRows
from perdure.storage.sqlite.threads import Reader
from perdure.storage.sqlite.writer import ALONE_COMMITS
from perdure.testing.storage_lab import Batch, journal
from tests.unit.storage.stores import container, count_up, main, opened


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note on which thread the rows of each commit are written."""
    names: list[str] = []
    apply: Callable[..., None] = SessionRows.apply

    def noted(self: SessionRows, *args: object) -> None:
        names.append(threading.current_thread().name)
        apply(self, *args)

    monkeypatch.setattr(SessionRows, "apply", noted)
    return names


def here() -> str:
    return threading.current_thread().name


async def test_a_lone_session_commits_on_the_loop_after_a_few_commits(
    tmp_path: Path, places: list[str]
) -> None:
    async with opened(tmp_path) as storage:
        await count_up(storage, ALONE_COMMITS + 5)
        assert places == ["perdure-write"] * ALONE_COMMITS + [here()] * 5
        commits = await journal(storage)
    assert [commit.last_seq for commit in commits] == [
        Seq(number) for number in range(1, ALONE_COMMITS + 6)
    ]


async def test_a_barrier_goes_to_the_thread_under_power_only(
    tmp_path: Path, places: list[str]
) -> None:
    async with opened(tmp_path, durability="power") as storage:
        await count_up(storage, ALONE_COMMITS)
        places.clear()
        await count_up(storage, 4, barrier_every=2)
        assert places == [here(), "perdure-write"] * 2
    async with opened(tmp_path, durability="process") as storage:
        await count_up(storage, ALONE_COMMITS)
        places.clear()
        await count_up(storage, 4, barrier_every=2)
        assert places == [here()] * 4


async def test_sessions_that_write_in_turn_share_the_thread(
    tmp_path: Path, places: list[str]
) -> None:
    sessions = container(tmp_path)
    stores = [await sessions.open(name, create=True) for name in ("one", "two")]
    for _ in range(2 * ALONE_COMMITS):
        await asyncio.gather(*(count_up(storage, 1) for storage in stores))
    assert set(places) == {"perdure-write"}
    await sessions.close()


async def test_another_process_that_writes_is_waited_for_on_the_thread(
    tmp_path: Path, places: list[str]
) -> None:
    async with opened(tmp_path) as storage:
        await count_up(storage, ALONE_COMMITS + 1)
        places.clear()
        other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(count_up(storage, 1))
        # The loop goes on: the commit was queued, and the thread waits for the other writer.
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert not places
        other.execute("ROLLBACK")
        other.close()
        await waiting
        assert places == ["perdure-write"]
        await count_up(storage, 1)
        assert places[-1] == here()


async def test_the_thread_checkpoints_what_the_loop_wrote(tmp_path: Path) -> None:
    checkpointed = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with opened(tmp_path) as storage:
        await count_up(storage, ALONE_COMMITS + 5)

        def look() -> None:
            # Opened as immutable, the file is read without its write-ahead file.
            place = f"{(tmp_path / 'store.db').as_uri()}?mode=ro&immutable=1"
            rows = 0
            while rows < ALONE_COMMITS + 5:
                threading.Event().wait(0.01)
                conn = sqlite3.connect(place, uri=True)
                # While pages are copied into it, the file is not one database yet.
                with suppress(sqlite3.DatabaseError):
                    (rows,) = conn.execute("SELECT count(*) FROM journal").fetchone()
                conn.close()
            loop.call_soon_threadsafe(checkpointed.set)

        threading.Thread(target=look, daemon=True).start()
        async with asyncio.timeout(10):
            await checkpointed.wait()


async def test_a_refused_commit_on_the_loop_leaves_the_session_usable(
    tmp_path: Path, places: list[str]
) -> None:
    async with opened(tmp_path) as storage:
        await count_up(storage, ALONE_COMMITS + 1)
        batch: Batch = main(storage)
        batch.set("n", 1, conv_id=Seq(999))
        with pytest.raises(Exception, match="999"):
            await batch.commit()
        places.clear()
        await count_up(storage, 1)
        assert places == [here()]
    async with opened(tmp_path, create=False) as storage:
        assert (await journal(storage))[-1].last_seq == ALONE_COMMITS + 2


async def test_a_small_read_of_the_writer_is_made_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    query: Callable[..., object] = Reader._query

    def noted(self: Reader, *args: object) -> object:
        names.append(here())
        return query(self, *args)

    monkeypatch.setattr(Reader, "_query", noted)
    async with opened(tmp_path) as storage:
        await count_up(storage, 3)
        address = Address(kind="value", namespace="n")
        assert await storage.value(address) is not None
        assert await storage.value(address) is not None
        await storage.commits(after=Seq(0), limit=10)
    # The connection is opened on the thread, with the first read.
    assert names == ["perdure-read", here(), "perdure-read"]


async def test_a_blob_is_fetched_on_the_thread(tmp_path: Path) -> None:
    large = "x" * (BLOB_BYTES_MIN + 1)
    async with opened(tmp_path) as storage:
        batch = main(storage)
        conv_id = batch.conversation()
        entry_id = batch.entry(conv_id, large)
        await batch.commit()
        for _ in range(2):
            entry = (await storage.entries([entry_id]))[entry_id]
            assert isinstance(entry.payload_json, Raw)
            assert large in bytes(entry.payload_json).decode()


async def test_a_long_context_list_is_read_on_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    query: Callable[..., object] = Reader._query

    def noted(self: Reader, *args: object) -> object:
        names.append(here())
        return query(self, *args)

    async with opened(tmp_path) as storage:
        batch = main(storage)
        conv_id = batch.conversation()
        entries = [batch.entry(conv_id, str(number)) for number in range(FEW_IDS + 1)]
        await batch.commit()
        first = await storage.conversations([conv_id])
        monkeypatch.setattr(Reader, "_query", noted)
        assert await storage.conversations([conv_id]) == first
    assert tuple(first[conv_id].context) == tuple(entries)
    # The loop looked, found more than it reads, and left the list to the thread.
    assert names == [here(), "perdure-read"]


@pytest.mark.spec("ST-07")
async def test_a_reader_in_the_middle_of_a_persist_sees_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's connection looks before and after the indexes of each commit are written."""
    seen: list[tuple[int, ...]] = []
    apply = SessionRows.apply

    def look() -> None:
        conn = sqlite3.connect(tmp_path / "store.db")
        try:
            seen.append(
                conn.execute(
                    "SELECT (SELECT count(*) FROM journal), (SELECT max(head) FROM session)"
                ).fetchone()
            )
        finally:
            conn.close()

    def watched(rows: SessionRows, *given: Any) -> None:
        look()
        apply(rows, *given)
        look()

    monkeypatch.setattr(SessionRows, "apply", watched)
    async with opened(tmp_path) as storage:
        for number in range(3):
            batch = main(storage)
            batch.set("n", number)
            await batch.commit(barrier=number == 2)
    assert seen == [(number, number) for number in range(3) for _ in "ab"]
