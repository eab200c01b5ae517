"""What every test of a surface starts from."""

from pathlib import Path

import pytest

from tests.surfaces.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Answer a fresh desk."""
    return Desk(tmp_path)
