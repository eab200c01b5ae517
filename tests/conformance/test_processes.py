"""Every process host passes the public suite, and leaves nothing running."""

from pathlib import Path

import pytest

from perdure.hosts.late_processes import LateProcesses
from perdure.hosts.processes import LocalProcesses
from perdure.hosts.threads import DaemonThreads
from perdure.records.launches import LaunchRef
from perdure.testing.process_suite import PROCESS_CHECKS, Check


@pytest.mark.parametrize("check", PROCESS_CHECKS, ids=lambda check: check.__name__)
async def test_local_processes(check: Check, tmp_path: Path) -> None:
    def make() -> LocalProcesses:
        return LocalProcesses(tmp_path / "launches", DaemonThreads())

    await check(make, str(tmp_path))
    assert not (tmp_path / "never-ran").exists()


@pytest.mark.parametrize("check", PROCESS_CHECKS, ids=lambda check: check.__name__)
async def test_processes_made_late(check: Check, tmp_path: Path) -> None:
    threads = DaemonThreads()

    def make() -> LateProcesses:
        return LateProcesses(lambda: LocalProcesses(tmp_path / "launches", threads), threads)

    await check(make, str(tmp_path))
    assert not (tmp_path / "never-ran").exists()


async def test_a_host_is_made_at_the_first_command_and_once(tmp_path: Path) -> None:
    threads, made = DaemonThreads(), list[LocalProcesses]()

    def make() -> LocalProcesses:
        made.append(LocalProcesses(tmp_path / "launches", threads))
        return made[-1]

    host = LateProcesses(make, threads)
    assert made == []
    ref = LaunchRef(dir="session/1-0", nonce="0")
    assert await host.reconcile(ref) == await host.reconcile(ref)
    assert len(made) == 1
