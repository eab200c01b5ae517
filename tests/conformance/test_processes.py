"""Every process host passes the public suite, and leaves nothing running."""

from pathlib import Path

import pytest

from perdure.hosts.processes import LocalProcesses
from perdure.hosts.threads import DaemonThreads
from perdure.testing.process_suite import PROCESS_CHECKS, Check


@pytest.mark.parametrize("check", PROCESS_CHECKS, ids=lambda check: check.__name__)
async def test_local_processes(check: Check, tmp_path: Path) -> None:
    def make() -> LocalProcesses:
        return LocalProcesses(tmp_path / "launches", DaemonThreads())

    await check(make, str(tmp_path))
    assert not (tmp_path / "never-ran").exists()
