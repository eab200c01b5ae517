"""Kill a writer at a random moment and read what it left, all of it (G22)."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path

from bench.storage_rows import Figures, writers
from perdure.opening import open_store, system_ports
from perdure.ports import Storage
from perdure.records.seqs import Seq
from perdure.records.writes import (
    AppendContext,
    AppendList,
    Commit,
    InsertConversation,
    InsertEntry,
    InsertTask,
    PatchTask,
)

NOTES = "acknowledged"
"""The file outside the store that holds the last seq of each acknowledged commit, one a line."""

START_S_MAX = 60.0
PAGE = 1_000
_STEP_S = 0.01

_START = (InsertConversation, InsertTask)
_EVERY_OTHER = (InsertEntry, AppendContext, PatchTask, AppendList)


async def endless(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Commit until killed, noting each acknowledged commit outside the store."""
    _, (writer,) = await writers(folder, 1, durability="process")
    notes = os.open(folder / NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        await writer.five_rows()
        os.write(notes, f"{writer.line.last_seq}\n".encode())


async def survived(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Compare what a killed store holds with what was acknowledged."""
    acknowledged = [int(line) for line in (folder / NOTES).read_text().split("\n")[:-1]]
    sessions = open_store(f"sqlite:{folder / 'rows.db'}", system_ports(), durability="process")
    storage = await sessions.open("s0", create=False)
    commits = [commit async for commit in _every_commit(storage)]
    head = storage.last_seq
    await sessions.close()
    return {
        "lost": float(lost(commits, acknowledged)),
        "halves": float(halves(commits, head)),
        "commits": float(len(acknowledged)),
    }


async def _every_commit(storage: Storage) -> AsyncIterator[Commit]:
    after = Seq(0)
    while page := await storage.commits(after=after, limit=PAGE):
        for commit in page:
            yield commit
        after = page[-1].last_seq


def lost(commits: Iterable[Commit], acknowledged: Iterable[int]) -> int:
    """Count acknowledged seqs at which no stored commit ends."""
    return len(set(acknowledged) - {commit.last_seq for commit in commits})


def halves(commits: Sequence[Commit], head: int) -> int:
    """Count commits that lack a write or a neighbour; a head that none of them ends at is one."""
    broken = 0
    before = 0
    for at, commit in enumerate(commits):
        seqs = [write.seq for write in commit.writes]
        is_whole = (
            commit.first_seq == before + 1
            and seqs == list(range(commit.first_seq, commit.last_seq + 1))
            and tuple(map(type, commit.writes)) == (_EVERY_OTHER if at else _START)
        )
        broken += not is_whole
        before = commit.last_seq
    return broken + (before != head)


def kill(argv: Sequence[str], notes: Path, *, cwd: Path, after_s: float) -> None:
    """Start a writer, and SIGKILL it a while after its first acknowledged commit.

    Raises:
        SystemExit: with what it said, when it ended by itself or acknowledged nothing in a minute.
    """
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(argv, cwd=cwd, stdout=subprocess.DEVNULL, stderr=said)
        try:
            is_writing = _until_written(notes, child)
            if is_writing:
                time.sleep(after_s)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        said.seek(0)
        if child.returncode != -signal.SIGKILL:
            words = f"the writer ended by itself ({child.returncode})"
        elif not is_writing:
            words = f"the writer acknowledged no commit in {START_S_MAX:g} s"
        else:
            return
        raise SystemExit(f"{words}:\n{said.read().decode(errors='replace')[-2000:]}")


def _until_written(notes: Path, child: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_S_MAX
    while child.poll() is None and time.monotonic() < deadline:
        if notes.exists() and notes.stat().st_size:
            return True
        time.sleep(_STEP_S)
    return False


def writer_argv(folder: Path) -> list[str]:
    """Answer the command that commits without end below a folder."""
    return [sys.executable, "-m", "bench.child", "endless", str(folder)]


MEASURES = {"endless": endless, "survived": survived}
