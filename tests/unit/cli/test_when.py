"""Times in tables are told whatever number is stored."""

import pytest

from perdure.cli.tables import when


@pytest.mark.parametrize("ms", [10**17, -(10**17), 2**63, 10**400])
def test_a_number_that_is_no_time_stays_a_number(ms: int) -> None:
    assert when(ms) == f"{ms} ms"


def test_a_time_is_told_to_the_second() -> None:
    told = when(1_700_000_000_999)
    assert told is not None
    assert ":13:20" in told
    assert when(0) is None
