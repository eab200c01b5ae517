"""Every implementation of `Files` passes the public suite."""

from pathlib import Path

import pytest

from perdure.hosts.files import LocalFiles
from perdure.hosts.threads import DaemonThreads
from perdure.testing.files_suite import FILES_CHECKS, Check


@pytest.mark.parametrize("check", FILES_CHECKS, ids=lambda check: check.__name__)
async def test_local_files(check: Check, tmp_path: Path) -> None:
    await check(lambda: LocalFiles(tmp_path, DaemonThreads()))
