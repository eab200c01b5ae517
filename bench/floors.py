"""Floors: the same bytes with plain `sqlite3` or plain files, and nothing else."""

import os
import resource
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

Figures = dict[str, float]

FIVE_ROWS = 5
PAYLOAD = "x" * 1024
SMALL = '{"v":1,"settings":"digest","attempt":1,"inputs":[17]}'
CHECKPOINT_EVERY = 140
"""Commits between two checkpoints, as SQLite's own default of 1,000 pages comes to."""

COMMITS_A_TURN = 10
"""What a turn of W1 takes, by design (DESIGN 4)."""


def cpu_s() -> float:
    """Answer the process's CPU seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def stored_bytes(folder: Path) -> int:
    """Add up the files of a store."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def connect(path: Path, *, full: bool) -> sqlite3.Connection:
    """Open a database as perdure does: WAL, checkpoints by hand."""
    conn = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    conn.execute("PRAGMA journal_mode = WAL")
    conn.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
    conn.execute("PRAGMA wal_autocheckpoint = 0")
    for number in range(FIVE_ROWS):
        conn.execute(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, s INT, k TEXT, v TEXT)")
    return conn


def commit_five(conn: sqlite3.Connection, number: int) -> None:
    """Commit five rows with one payload of 1 KiB."""
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO t0 (s, k, v) VALUES (?,?,?)", (number, "entry", PAYLOAD))
    conn.execute("INSERT INTO t1 (s, k, v) VALUES (?,?,?)", (number, "context", "[1]"))
    conn.execute("INSERT INTO t2 (s, k, v) VALUES (?,?,?)", (number, "task", SMALL))
    conn.execute("INSERT INTO t3 (s, k, v) VALUES (?,?,?)", (number, "list", SMALL))
    conn.execute("INSERT INTO t4 (s, k, v) VALUES (?,?,?)", (number, "head", "1"))
    conn.execute("COMMIT")
    if number % CHECKPOINT_EVERY == 0:
        conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


async def floor_five(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure commits of five raw rows: CPU and median latency, in microseconds."""
    number = int(facts["commits"])
    conn = connect(folder / "floor.db", full=facts.get("sync") == "full")
    took: list[float] = []
    before = cpu_s()
    for at in range(number):
        began = time.perf_counter()
        commit_five(conn, at)
        took.append(time.perf_counter() - began)
    spent = cpu_s() - before
    conn.close()
    return {"cpu_us": 1e6 * spent / number, "p50_us": 1e6 * statistics.median(took)}


async def floor_turn(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure a turn's bytes in ten raw commits of one row."""
    turns = int(facts["turns"])
    conn = connect(folder / "floor.db", full=False)
    before, began = cpu_s(), time.perf_counter()
    for turn in range(turns):
        for commit in range(COMMITS_A_TURN):
            conn.execute("BEGIN IMMEDIATE")
            conn.execute("INSERT INTO t0 (s, k, v) VALUES (?,?,?)", (turn, "record", PAYLOAD[:500]))
            conn.execute("COMMIT")
            if (turn * COMMITS_A_TURN + commit) % CHECKPOINT_EVERY == 0:
                conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    cpu, wall = cpu_s() - before, time.perf_counter() - began
    conn.close()
    return {"cpu_ms": 1e3 * cpu / turns, "wall_ms": 1e3 * wall / turns}


async def floor_fdatasync(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure an append and an fdatasync of a commit's bytes, in microseconds."""
    number = int(facts["commits"])
    data = (PAYLOAD + SMALL * 4).encode()
    took: list[float] = []
    file = os.open(folder / "floor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(number):
        began = time.perf_counter()
        os.write(file, data)
        os.fdatasync(file)
        took.append(time.perf_counter() - began)
    os.close(file)
    return {"p50_us": 1e6 * statistics.median(took)}


async def floor_single(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure a loop of single raw transactions of five rows, in commits a second."""
    number = int(facts["commits"])
    conn = connect(folder / "floor.db", full=facts.get("sync") == "full")
    began = time.perf_counter()
    for at in range(number):
        commit_five(conn, at)
    took = time.perf_counter() - began
    conn.close()
    return {"per_s": number / took}


MEASURES: Mapping[str, Callable[[Path, Mapping[str, str]], Awaitable[Figures]]] = {
    "floor_five": floor_five,
    "floor_turn": floor_turn,
    "floor_fdatasync": floor_fdatasync,
    "floor_single": floor_single,
}
