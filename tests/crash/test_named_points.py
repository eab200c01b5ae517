"""Killed at any named point, a session goes on: nothing lost, nothing twice, and the truth told."""

import pytest

from perdure.testing.crash_rig import CrashRig, Kill, Report
from perdure.testing.crash_rig.rig import first_and_last
from perdure.testing.crash_rig.trial import POINTS, RECOVERY_POINTS

COMMITS = ("main.before", "main.after", "working.before", "working.after")
"""Killed at each of these in tests/scenarios/test_every_commit_is_last.py."""

SHELL = 2
"""Call index of the story's shell command."""


def check(reports: list[Report]) -> None:
    """Every planned kill happened, and no promise was broken."""
    for report in reports:
        assert all(life.killed for life in report.lives if life.kill), report.lives
        assert not report.faults, (report.trial, report.faults)


def test_a_whole_run_reaches_every_named_point(rig: CrashRig) -> None:
    report = rig.whole_run()
    assert not report.faults
    assert set(report.lives[0].points) == set(POINTS)
    assert report.outcomes == ("finished",) * 5


@pytest.mark.timeout(120)
@pytest.mark.spec("FM-07", "IV-02", "IV-22", "IV-25", "TK-09", "TL-15")
def test_killed_at_any_point_a_session_goes_on(rig: CrashRig) -> None:
    reached = rig.whole_run().lives[0].points
    kills = [kill for kill in first_and_last(reached) if kill.point not in COMMITS]
    check(list(rig.run([(kill,) for kill in kills])))


@pytest.mark.timeout(60)
@pytest.mark.spec("TL-33")
def test_killed_while_it_finds_a_command_again_it_finds_it_once_more(rig: CrashRig) -> None:
    plans = [(Kill(point="launch.after"), Kill(point=point)) for point in RECOVERY_POINTS]
    reports = list(rig.run(plans, command_s=5.0))
    check(reports)
    # Stopped by a recovery that died before it could say so, it still did not end by itself.
    assert [report.outcomes[SHELL] for report in reports] == ["interrupted"] * len(plans)


@pytest.mark.timeout(60)
@pytest.mark.spec("OP-15")
@pytest.mark.parametrize("point", ["close.before", "close.storage", "close.after"])
def test_killed_during_a_close_that_cuts_tools_off(rig: CrashRig, point: str) -> None:
    (report,) = rig.run([(Kill(point=point),)], early_close=True)
    check([report])
    # A call that was running is still running after the close, and its recovery tells the truth.
    assert "interrupted" in report.outcomes
