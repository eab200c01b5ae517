"""A second writer is told when the first one came, whatever number stands in the lock."""

import pytest

from perdure.records.sessions import Owner
from perdure.storage.owners import busy, instant


def test_the_refusal_says_the_time_and_keeps_the_number() -> None:
    error = busy("the session 'a'", Owner(pid=7, host="h", since=1_700_000_000_999))
    assert str(error).endswith("process 7 on host h since 2023-11-14T22:13:20+00:00")
    assert error.holder == {"pid": 7, "host": "h", "since": 1_700_000_000_999, "epoch": 0}
    assert "another process" in str(busy("it", None))


@pytest.mark.parametrize("ms", [10**15, -(10**17), 10**400, 2**63])
def test_a_number_that_is_no_time_stays_a_number(ms: int) -> None:
    assert instant(ms) == f"{ms} ms"


def test_a_time_before_1970_is_a_time() -> None:
    assert instant(-1_000) == "1969-12-31T23:59:59+00:00"
