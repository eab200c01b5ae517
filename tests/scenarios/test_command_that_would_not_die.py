"""Scenario 3: the harness is killed while a shell command runs; the command does not run wild.

The command writes a line every 20 ms, twenty in all. A supervisor of its own keeps it; whoever
opens the session next tells its true end, or stops its whole group before the interrupted result
is committed. It never runs twice.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.hosts.processes import LocalProcesses
from perdure.hosts.threads import DaemonThreads
from perdure.records.launches import Exited, LaunchRef
from perdure.testing.crash_rig.audit import Journal, TaskRow
from tests.scenarios.shell_story import BEFORE_KILL, finish, journal_of, opened, pids_of

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.timeout(30),
    pytest.mark.skipif(sys.platform != "linux", reason="reads procfs to see who lives"),
]


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """Answer the folder of a session whose harness was killed at line 5 of its command."""
    told = tmp_path / "told"
    os.mkfifo(told)
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.scenarios.shell_story", str(tmp_path)], cwd=ROOT
    )
    assert told.read_text() == "here\n"
    child.kill()
    child.wait()
    told.unlink()
    assert len(pids_of(tmp_path)) >= BEFORE_KILL
    yield tmp_path
    assert len(set(pids_of(tmp_path))) == 1, "the command had two writers"


def call_of(journal: Journal) -> TaskRow:
    (call,) = [task for task in journal.tasks.values() if task.kind == "tool"]
    return call


def ref_of(call: TaskRow) -> LaunchRef:
    return LaunchRef(dir=call.state["launch"]["dir"], nonce=call.state["launch"]["nonce"])


def living(call: TaskRow) -> list[str]:
    """Name the processes that carry the launch's nonce: its supervisor, its command, theirs."""
    nonce = call.state["launch"]["nonce"].encode()
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if nonce in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def identity_file(folder: Path) -> Path:
    (file,) = (folder / "store.db.launch").glob("*/*/identity.json")
    return file


async def reopened(
    folder: Path, meanwhile: Callable[[TaskRow], Any] = lambda _: None
) -> tuple[TaskRow, str, str]:
    """Open, let something happen, drive; answers the call, its outcome and its text."""
    async with opened(folder) as harness:
        begun = call_of(await journal_of(harness))
        assert begun.status == "running"
        waiting = meanwhile(begun)
        if waiting is not None:
            await waiting
        root = await finish(harness)
        journal = await journal_of(harness)
        (row,) = journal.results
        entry = await root.entry(row.id)
        assert entry is not None
        text = entry.payload["message"]["content"][0]["text"]
        return call_of(journal), row.outcome, text


@pytest.mark.spec("TL-33")
async def test_driven_at_once_it_is_stopped_before_it_is_called_interrupted(killed: Path) -> None:
    call, outcome, text = await reopened(killed)
    lines = pids_of(killed)
    assert outcome == "interrupted"
    assert "may have had effects" in text
    assert living(call) == []
    assert len(lines) < 20
    assert pids_of(killed) == lines


@pytest.mark.spec("TL-33")
async def test_driven_after_its_end_its_true_exit_code_is_the_result(killed: Path) -> None:
    async def ended(call: TaskRow) -> None:
        host = LocalProcesses(killed / "store.db.launch", DaemonThreads())
        found = await host.wait(ref_of(call))
        assert isinstance(found, Exited)

    call, outcome, text = await reopened(killed, ended)
    assert outcome == "finished"
    assert text == "all written\nexit code 3"
    assert len(pids_of(killed)) == 20
    assert living(call) == []


@pytest.mark.spec("TL-33")
async def test_with_its_supervisor_killed_too_nothing_of_it_is_left(killed: Path) -> None:
    identity = json.loads(identity_file(killed).read_text())
    os.kill(identity["supervisor"]["pid"], signal.SIGKILL)
    call, outcome, _ = await reopened(killed)
    assert outcome == "interrupted"
    assert living(call) == []


@pytest.mark.spec("TL-33")
async def test_a_stranger_with_its_pid_is_never_signalled(killed: Path) -> None:
    file = identity_file(killed)
    identity = json.loads(file.read_text())
    os.kill(identity["supervisor"]["pid"], signal.SIGKILL)
    decoy = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        # The recorded start stays: it is the dead command's, and the decoy has another.
        _, boot, pid, start, nonce = identity["identity"].split(":")
        assert int(pid) == identity["pid"]
        identity["identity"] = f"v1:{boot}:{decoy.pid}:{start}:{nonce}"
        identity["pid"] = identity["supervisor"]["pid"] = decoy.pid
        file.write_text(json.dumps(identity))
        call, outcome, _ = await reopened(killed)
        assert outcome == "interrupted"
        assert decoy.poll() is None
        assert living(call) == []
    finally:
        decoy.kill()
        decoy.wait()
