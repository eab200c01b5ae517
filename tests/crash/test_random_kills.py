"""SIGKILL at moments nobody chose: uniform over the wall time of a whole run."""

import pytest

from perdure.testing.crash_rig import CrashRig, Kill
from perdure.testing.crash_rig.__main__ import tally

SEED = 20_261
KILLS = 15
KILLS_DEEP = 1_000
ACTING_DEEP = 300
"""How many of the deep kills must fall while an effect or a command is in flight."""


@pytest.mark.timeout(60)
def test_killed_at_any_moment_a_session_goes_on(rig: CrashRig) -> None:
    result = tally(rig.random_kills(KILLS, SEED))
    assert not result["faults"]
    assert result["kills"] >= KILLS


@pytest.mark.timeout(60)
@pytest.mark.spec("SN-05")
def test_killed_at_any_moment_of_its_creation_a_session_is_whole_or_absent(rig: CrashRig) -> None:
    creation_s = 0.03
    plans = [(Kill(after_s=creation_s * step / KILLS),) for step in range(KILLS)]
    result = tally(rig.run(plans))
    assert not result["faults"]
    assert result["kills"] > 0


@pytest.mark.deep
@pytest.mark.timeout(3_600)
def test_a_thousand_kills_lose_nothing_and_double_nothing(rig: CrashRig) -> None:
    result = tally(rig.random_kills(KILLS_DEEP, SEED))
    assert not result["faults"]
    assert result["kills"] >= KILLS_DEEP
    assert result["kills_while_an_effect_or_command_was_in_flight"] >= ACTING_DEEP
