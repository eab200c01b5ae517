"""Scenario 5: two owners of one session. One is refused, or the older one is fenced.

A live owner is found by the real path, whatever spelling the second comes by; readers are let in.
Where the lock is missing, the epoch in every commit stops the older owner before it writes. A fork
of the owner writes nothing.
"""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.drive.outcomes import DriveOutcome
from perdure.errors import Faulted, Fenced, StorageBusy
from perdure.harness.harness import Harness
from perdure.hosts.clock import SystemClock
from perdure.hosts.randomness import SystemRandomness
from perdure.providers.script import call, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.addresses import SessionValue
from perdure.records.seqs import Seq
from perdure.storage.locks import FileLock
from perdure.storage.owners import instant
from perdure.storage.sqlite import SqliteSessions
from perdure.testing.crash_rig.audit import Journal, end_faults, outcome_faults
from perdure.testing.crash_rig.story import read_journal
from tests.engine import Engine, Gate, Probe
from tests.scenarios.owner_story import SESSION, opened

ROOT = Path(__file__).parents[2]
FORK_S_MAX = 3
NOTE: SessionValue[int] = SessionValue("test.note")


class Owner:
    """A child process that owns the session and runs a tool."""

    def __init__(self, folder: Path) -> None:
        for name in ("told", "go"):
            os.mkfifo(folder / name)
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.scenarios.owner_story", str(folder)], cwd=ROOT
        )
        assert (folder / "told").read_text() == "here"

    def finish(self) -> int:
        """Let the tool go on and the process end; answers its exit code."""
        (self.folder / "go").write_text("gone on")
        return self.process.wait()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path)
    yield owner
    owner.process.kill()
    owner.process.wait()


def sessions_at(place: Path) -> SqliteSessions:
    return SqliteSessions(place, clock=SystemClock(), randomness=SystemRandomness())


@pytest.fixture
def spellings(tmp_path: Path) -> list[Path]:
    """Answer the file's path, a link to it, and another way of writing it."""
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "store.db")
    (tmp_path / "a").mkdir()
    return [tmp_path / "store.db", link, Path(f"{tmp_path}/./a//../store.db")]


@pytest.mark.timeout(30)
@pytest.mark.spec("BB-10", "SN-11")
async def test_a_second_owner_is_refused_by_name_and_the_first_is_unharmed(
    owner: Owner, tmp_path: Path, spellings: list[Path]
) -> None:
    for stopped in (False, True):
        if stopped:
            owner.process.send_signal(signal.SIGSTOP)
        for place in spellings:
            with pytest.raises(StorageBusy) as refused:
                async with opened(tmp_path, place):
                    pass
            holder = refused.value.holder
            assert holder["pid"] == owner.process.pid
            assert holder["host"] == os.uname().nodename
            assert str(owner.process.pid) in str(refused.value)
            since = holder["since"]
            assert isinstance(since, int)
            assert instant(since) in str(refused.value)
    owner.process.send_signal(signal.SIGCONT)
    assert owner.finish() == 0


@pytest.mark.timeout(30)
@pytest.mark.spec("BB-10")
async def test_a_reader_reads_beside_the_owner(owner: Owner, tmp_path: Path) -> None:
    sessions = sessions_at(tmp_path / "store.db")
    (info,) = await sessions.page(after=None, limit=10)
    assert info.owner is not None
    assert info.owner.pid == owner.process.pid
    reader = await sessions.open(SESSION, create=False, read_only=True)
    journal = await read_journal(reader)
    assert [task.status for task in journal.tasks.values() if task.kind == "tool"] == ["running"]
    assert owner.finish() == 0
    # The same reader sees what the owner wrote meanwhile.
    journal = await read_journal(reader)
    assert not end_faults(journal)
    await sessions.close()


@pytest.mark.timeout(30)
@pytest.mark.spec("BB-10", "SN-11")
async def test_a_killed_owner_frees_the_session_at_once(owner: Owner, tmp_path: Path) -> None:
    owner.process.kill()
    owner.process.wait()
    async with opened(tmp_path, tmp_path / "store.db") as harness:
        assert (await harness.drive()).outcome is DriveOutcome.IDLE
        journal = Journal().fold(await harness.commits(after=Seq(0), limit=1_000))
        assert [row.outcome for row in journal.results] == ["interrupted"]


def test_a_lock_that_a_dead_owner_left_with_its_fork_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    path = tmp_path / "lock"
    path.write_text(f'{{"pid":{dead.pid},"host":"{os.uname().nodename}","since":1}}')
    orphan = os.open(path, os.O_RDWR)
    fcntl.flock(orphan, fcntl.LOCK_EX)
    take = fcntl.flock

    def flock(handle: int, how: int) -> None:
        try:
            take(handle, how)
        except BlockingIOError:
            take(orphan, fcntl.LOCK_UN)  # the fork executes, between two tries
            raise

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = FileLock.acquire(path, "the session")
    lock.release()
    os.close(orphan)


class Unlocked(SqliteSessions):
    """A container that looks for the lock in the wrong place, as on a file system without one."""

    def _lock_path(self, sid: str) -> Path:
        return self._path.with_name(f"elsewhere-{os.getpid()}-{id(self)}.lock")


class Twin(Engine):
    """A second owner of another engine's session, let in because no lock stops it."""

    def _container(self, folder: Path) -> Unlocked:
        return Unlocked(
            folder / "store.db", durability="process", clock=self.clock, randomness=self.tokens
        )


@pytest.mark.spec("FT-03")
async def test_without_the_lock_the_older_owner_is_fenced_at_its_next_commit(
    tmp_path: Path,
) -> None:
    script = [say(call("act")), say("done", uses=0)]
    first, second = Engine("sqlite", tmp_path), Twin("sqlite", tmp_path)
    gate = Gate()
    held = Probe("act", gate=gate)
    root = await first.root(script, tools=[held])
    await root.accept("go")
    driving = first.begin(root.drive())
    await gate.reached.wait()
    late = first.line.last_seq

    # The second owner recovers the call, answers, and goes on.
    again = await second.root(ScriptedModels(script[1:]), tools=[Probe("act")])
    assert second.harness.info.epoch == first.harness.info.epoch + 1
    await again.drive()
    assert (await again.prompt("more")).text == "done"

    gate.open()
    with pytest.raises(Fenced):
        await driving
    with pytest.raises(Fenced):
        await first.harness.set_value(NOTE, 1)
    assert first.line.last_seq == late

    journal = await read_journal(second.storage.inner)
    assert not [*end_faults(journal), *outcome_faults(journal, lambda _: 1, safe=frozenset())]
    assert [row.outcome for row in journal.results] == ["interrupted"]
    await second.aclose()
    await first.aclose()


async def test_a_fork_of_the_owner_writes_nothing(tmp_path: Path) -> None:
    engine = Engine("sqlite", tmp_path)
    harness = await engine.open()
    head = engine.storage.last_seq
    assert _commit_in_a_fork(harness) == "forked"
    # The owner goes on, and the lock is still its own.
    await harness.set_value(NOTE, 2)
    assert engine.storage.last_seq > head
    other = sessions_at(tmp_path / "store.db")
    with pytest.raises(StorageBusy):
        await other.open("test", create=False)
    await other.close()
    await engine.aclose()


def _commit_in_a_fork(harness: Harness) -> str:
    """Write from a forked child; answers the code of its fault."""
    end, told = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn that forking beside threads is unwise, which is what is tried here.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = "nothing was raised"
        # A write that is let through waits for threads that no fork has.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(FORK_S_MAX)
        try:
            asyncio.run(harness.set_value(NOTE, 3))
        except Faulted as error:
            code = error.code
        except Exception as error:  # noqa: BLE001 - said to the test through the pipe
            code = repr(error)
        finally:
            os.write(told, code.encode())
            os._exit(0)
    os.close(told)
    os.waitpid(pid, 0)
    with os.fdopen(end) as answer:
        return answer.read()
