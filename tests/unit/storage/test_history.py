"""The journal as others rely on it: checked bytes, readers beside a writer, quick openings."""

import asyncio
import contextlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from perdure.errors import StorageDamaged
from perdure.ports import Sessions, Storage
from perdure.providers.script import call, say
from perdure.records.addresses import SessionValue
from perdure.records.codec import encode
from perdure.records.seqs import NO_SEQ
from perdure.storage.memory import MemorySessions
from perdure.storage.sqlite import journal as journal_rows
from perdure.testing.manual_clock import ManualClock
from perdure.testing.storage_lab import Batch, CountedRandomness
from tests.conformance.places import SqlitePlace
from tests.engine import Engine, Probe
from tests.unit.storage.stores import NAME, count_up, main, opened

COMMITS = 600
SLOWER_MAX = 1.25


def sql(folder: Path, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
    """Look into the file from outside."""
    with contextlib.closing(sqlite3.connect(folder / "store.db", isolation_level=None)) as conn:
        return conn.execute(statement, arguments).fetchall()


def line(first: int, last: int, time_ms: int, writes: bytes) -> bytes:
    """Spell a commit's line as the format's page does."""
    rest = b'"f":%d,"l":%d,"t":%d,"w":%s}' % (first, last, time_ms, writes)
    return b'{"c":"%08x",' % zlib.crc32(rest) + rest


@pytest.mark.spec("FM-01")
async def test_a_row_is_the_line_of_its_commit(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await count_up(storage, 3)
        commits = await storage.commits(after=NO_SEQ, limit=9)
    rows = sql(tmp_path, "SELECT first, last, time, crc, CAST(writes AS BLOB) FROM journal")
    for commit, (first, last, time_ms, crc, writes) in zip(commits, rows, strict=True):
        assert (first, last, time_ms) == (commit.first_seq, commit.last_seq, commit.time_ms)
        assert writes == encode(commit.writes)
        text = line(first, last, time_ms, writes)
        assert text[:16] == b'{"c":"%08x",' % crc
        assert text[6:14] == b"%08x" % zlib.crc32(text[16:])


@pytest.mark.spec("FM-01")
@pytest.mark.parametrize("field", ["first", "time", "crc", "writes", "blobs"])
async def test_one_flipped_byte_of_a_row_is_found_by_every_read_of_it(
    tmp_path: Path, field: str
) -> None:
    async with opened(tmp_path) as storage:
        batch = Batch(storage, 1)
        conv = batch.conversation()
        entry = batch.entry(conv, "x" * 70_000 if field == "blobs" else "said")
        batch.set("n", "said")
        await batch.commit()
    ((was,),) = sql(tmp_path, f"SELECT {field} FROM journal")
    flipped = was ^ 4 if isinstance(was, int) else flip(was, "said" if field == "writes" else "1")
    sql(tmp_path, f"UPDATE journal SET {field} = ?", flipped)
    async with opened(tmp_path, create=False) as storage:
        for read in (
            lambda: storage.commits(after=NO_SEQ, limit=9),
            lambda: storage.entries([entry]),
        ):
            with pytest.raises(StorageDamaged, match=r"journal|blob"):
                await read()


def flip(text: str, at: str) -> str:
    place = text.index(at)
    return text[:place] + chr(ord(text[place]) ^ 4) + text[place + 1 :]


@pytest.mark.spec("ST-09")
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_a_commit_runs_no_code_of_kinds_line_or_host(tmp_path: Path, backend: str) -> None:
    clock = ManualClock()
    sessions: Sessions = (
        MemorySessions(clock=clock, randomness=CountedRandomness())
        if backend == "memory"
        else SqlitePlace(tmp_path).sessions()
    )
    rooms: set[str] = set()

    def seen(frame: FrameType, event: str, argument: object) -> None:
        module = str(frame.f_globals.get("__name__"))
        if event == "call" and module.startswith("perdure."):
            rooms.add(".".join(module.split(".")[:2]))

    threading.setprofile(seen)
    try:
        storage = await sessions.open(NAME, create=True)
        batch = Batch(storage, 1)
        conv = batch.conversation()
        entry = batch.entry(conv, "hi", kind="a kind nobody registered")
        batch.task(conv, kind="another kind", at_entry=entry)
        commit = batch.build()
        rooms.clear()
        sys.setprofile(seen)
        try:
            await storage.commit(commit, barrier=True)
        finally:
            sys.setprofile(None)
        await storage.close()
        await sessions.close()
    finally:
        threading.setprofile(None)
    assert rooms <= {"perdure.storage", "perdure.records", "perdure.errors", "perdure.hosts"}
    assert "perdure.storage" in rooms


@pytest.mark.spec("OP-22")
async def test_opening_reads_what_is_live_and_not_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    check = journal_rows.check_row

    def counting(row: journal_rows.Row) -> None:
        read.append(row[0])
        check(row)

    counts: list[int] = []
    for values in (5, 500):
        folder = tmp_path / str(values)
        folder.mkdir()
        engine = Engine("sqlite", folder)
        harness = await engine.open([say(call("probe")), say("done")], tools=[Probe("probe")])
        for number in range(values):
            await harness.set_value(SessionValue("app.n"), number)
        root = await harness.root()
        await root.prompt("go")
        await root.accept("the last one")
        await engine.close()
        monkeypatch.setattr(journal_rows, "check_row", counting)
        read.clear()
        harness = await engine.open()
        counts.append(len(read))
        monkeypatch.undo()
        assert [task.kind for task in harness.inspect().start] == ["generation"]
        await engine.aclose()
    assert counts[0] == counts[1]
    assert 0 < counts[0] < 20


READER = """
import asyncio, sys
from pathlib import Path
from perdure.records.seqs import Seq
from tests.unit.storage.stores import NAME, container

async def read(folder):
    sessions = container(folder)
    storage = await sessions.open(NAME, create=False, read_only=True)
    at = rounds = 0
    while at < int(sys.argv[2]):
        for commit in await storage.commits(after=Seq(at), limit=50):
            assert commit.first_seq == at + 1, (commit.first_seq, at)
            assert commit.last_seq == at + len(commit.writes)
            at = commit.last_seq
        rounds += 1
        if rounds == 1:
            print("reading", flush=True)
    await sessions.close()
    print(rounds, flush=True)

asyncio.run(read(Path(sys.argv[1])))
"""


def start_reader(folder: Path, until: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", READER, str(folder), str(until)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


async def timed(storage: Storage, commits: int) -> float:
    """Commit three writes at a time; answers the median of a commit in seconds."""
    spent: list[float] = []
    for number in range(commits):
        batch = main(storage)
        for name in ("a", "b", "c"):
            batch.set(name, number)
        began = time.perf_counter()
        await batch.commit()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


@pytest.mark.spec("BR-13")
def test_a_reader_in_another_process_sees_whole_commits_in_order(tmp_path: Path) -> None:
    async def write() -> str:
        async with opened(tmp_path, durability="process") as storage:
            await timed(storage, 1)
            reader = start_reader(tmp_path, 3 * (COMMITS + 1))
            assert reader.stdout is not None
            assert reader.stdout.readline() == "reading\n"
            await timed(storage, COMMITS)
            rest, _ = reader.communicate(timeout=9)
            assert reader.returncode == 0
            return rest

    assert int(asyncio.run(write())) > 1


@pytest.mark.deep
@pytest.mark.spec("BR-13")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="the reader needs a core of its own")
def test_a_reader_slows_the_owner_by_at_most_a_quarter(tmp_path: Path) -> None:
    async def write() -> list[float]:
        ratios: list[float] = []
        async with opened(tmp_path, durability="process") as storage:
            await timed(storage, COMMITS)
            for _ in range(5):
                alone = await timed(storage, COMMITS)
                reader = start_reader(tmp_path, storage.last_seq + 3 * COMMITS)
                assert reader.stdout is not None
                reader.stdout.readline()
                ratios.append(await timed(storage, COMMITS) / alone)
                reader.communicate(timeout=30)
        return ratios

    assert statistics.median(asyncio.run(write())) <= SLOWER_MAX


@pytest.mark.spec("RS-08")
def test_cpu_memory_and_disk_are_three_figures(tmp_path: Path) -> None:
    turns = 24
    ran = subprocess.run(
        [
            sys.executable, "-m", "bench.child", "w1", str(tmp_path),
            "store=sqlite", "durability=process", f"turns={turns}",
        ],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    figures = json.loads(ran.stdout)
    assert figures["cpu_ms"] > 0
    assert figures["rss_mb"] > 10
    # Everything the session left below its folder counts: usage, scratch, blobs, launches, locks.
    on_disk = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert round(figures["bytes"] * turns) == on_disk
