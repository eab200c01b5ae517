"""Several processes on one file: locks, kills, creation races, readers beside a writer."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from perdure.errors import StorageBusy
from perdure.records.seqs import Seq
from perdure.testing.storage_lab import journal
from tests.unit.storage.stores import NAME, container, count_up, opened

WORKER = """
import asyncio, sys
from pathlib import Path
from tests.unit.storage.stores import container, count_up
from perdure.errors import StorageBusy, PerdureError

def say(text):
    sys.stdout.write(text + "\\n")  # one write, so that a kill cuts between lines only
    sys.stdout.flush()

async def work(folder, name, commits, hold):
    sessions = container(Path(folder))
    try:
        storage = await sessions.open(name, create=True)
    except StorageBusy as error:
        say(f"busy {error.holder.get('pid')}")
        return
    say(f"open {storage.last_seq}")
    for number in range(commits):
        await count_up(storage, 1, barrier_every=1)
        say(f"stored {storage.last_seq}")
    if hold:
        sys.stdin.read()
    await storage.close()
    await sessions.close()
    say("closed")

asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "hold"))
"""


def start(folder: Path, name: str, commits: int, mode: str = "end") -> subprocess.Popen[str]:
    """Start a process that opens a session, commits, and ends or holds it."""
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), name, str(commits), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def line(process: subprocess.Popen[str]) -> str:
    """Read one line of what a process says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    """End a process and close its pipes."""
    process.kill()
    process.communicate()


@pytest.mark.spec("SN-11", "BB-10", "ST-30")
def test_a_live_owner_is_named_and_a_killed_one_frees_the_session(tmp_path: Path) -> None:
    owner = start(tmp_path, NAME, 2, "hold")
    assert [line(owner) for _ in range(3)] == ["open 0", "stored 1", "stored 2"]

    async def try_to_open() -> int:
        sessions = container(tmp_path)
        try:
            with pytest.raises(StorageBusy) as caught:
                await sessions.open(NAME, create=False)
            assert caught.value.holder["pid"] == owner.pid
            assert str(owner.pid) in str(caught.value)
            assert "since" in str(caught.value)
            reader = await sessions.open(NAME, create=False, read_only=True)
            info = (await sessions.page(after=None, limit=1))[0]
            assert info.owner is not None
            assert info.owner.pid == owner.pid
            return len(await journal(reader))
        finally:
            await sessions.close()

    assert asyncio.run(try_to_open()) == 2
    owner.send_signal(signal.SIGSTOP)
    assert asyncio.run(try_to_open()) == 2
    owner.send_signal(signal.SIGCONT)
    end(owner)

    async def take_over() -> None:
        sessions = container(tmp_path)
        assert (await sessions.page(after=None, limit=1))[0].owner is None
        await sessions.close()
        async with opened(tmp_path, create=False) as storage:
            assert storage.info.epoch == 2
            assert len(await journal(storage)) == 2
            openings = await storage.openings(limit=9)
            assert [one.closed_ms for one in openings] == [None, None]
            await count_up(storage, 1)

    asyncio.run(take_over())


@pytest.mark.spec("SQ-02", "ST-08")
@pytest.mark.parametrize(
    "kills", [4, pytest.param(40, marks=[pytest.mark.deep, pytest.mark.timeout(120)])]
)
def test_a_kill_at_any_moment_leaves_whole_commits(tmp_path: Path, kills: int) -> None:
    """What was acknowledged is there; at most one commit more; never a part of one."""
    stored = 0
    for number in range(kills):
        process = start(tmp_path, NAME, 10_000)
        assert line(process) == f"open {stored}"
        timer = threading.Timer(0.02 + 0.02 * (number % 7), process.kill)
        timer.start()
        output, _ = process.communicate()
        timer.join()
        said = output[: output.rfind("\n") + 1].split()
        acknowledged = [int(number) for number in said if number.isdigit()]

        async def check() -> int:
            async with opened(tmp_path, create=False) as storage:
                commits = await journal(storage)
                assert [one.first_seq for one in commits] == list(range(1, len(commits) + 1))
                assert storage.last_seq == len(commits)
                return len(commits)

        found = asyncio.run(check())
        assert found - (acknowledged[-1] if acknowledged else stored) in (0, 1)
        stored = found
    conn = sqlite3.connect(tmp_path / "store.db")
    assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    conn.close()


@pytest.mark.spec("SN-06")
def test_two_processes_that_create_one_name_make_one_session(tmp_path: Path) -> None:
    for number in range(2):
        name = f"race-{number}"
        pair = [start(tmp_path, name, 1, "hold") for _ in range(2)]
        said = sorted(line(process).split()[0] for process in pair)
        assert said == ["busy", "open"]
        for process in pair:
            end(process)

    async def names() -> list[tuple[str, int]]:
        sessions = container(tmp_path)
        try:
            return [(one.name, one.last_seq) for one in await sessions.page(after=None, limit=9)]
        finally:
            await sessions.close()

    found = asyncio.run(names())
    assert [name for name, _ in found] == [f"race-{number}" for number in range(2)]


@pytest.mark.spec("SN-12", "BB-11")
@pytest.mark.deep
@pytest.mark.timeout(60)
def test_eight_processes_wait_for_an_outside_lock(tmp_path: Path) -> None:
    async def create() -> None:
        async with opened(tmp_path):
            pass

    asyncio.run(create())
    outside = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    outside.execute("BEGIN IMMEDIATE")
    processes = [start(tmp_path, f"s{number}", 20) for number in range(8)]
    threading.Event().wait(3)
    outside.execute("ROLLBACK")
    outside.close()
    for process in processes:
        output, _ = process.communicate()
        assert output.splitlines()[-2:] == ["stored 20", "closed"]
        assert process.returncode == 0


def test_a_reading_process_sees_prefixes_that_end_at_a_commit(tmp_path: Path) -> None:
    writer = start(tmp_path, NAME, 100_000)
    assert line(writer) == "open 0"
    assert line(writer) == "stored 1"
    drain = threading.Thread(target=writer.stdout.read if writer.stdout else print, daemon=True)
    drain.start()

    async def read() -> list[int]:
        sessions = container(tmp_path)
        reader = await sessions.open(NAME, create=False, read_only=True)
        lengths: list[int] = []
        while len(set(lengths)) < 10:
            commits = await reader.commits(after=Seq(0), limit=1_000)
            assert [one.last_seq for one in commits] == list(range(1, len(commits) + 1))
            lengths.append(len(commits))
        await sessions.close()
        return lengths

    try:
        lengths = asyncio.run(read())
    finally:
        writer.kill()
        writer.wait()
        drain.join()
        for pipe in (writer.stdin, writer.stdout):
            assert pipe is not None
            pipe.close()
    assert lengths == sorted(lengths)
