"""One rig for all tests of a worker: its warm parents take a third of a second to start."""

from collections.abc import Iterator

import pytest

from perdure.testing.crash_rig import CrashRig


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashRig]:
    with CrashRig(tmp_path_factory.mktemp("crash")) as rig:
        yield rig
