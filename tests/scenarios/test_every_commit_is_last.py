"""Scenario 1: every commit is a possible last one.

A message is accepted; the reply calls `safe`, `never` and a shell command in parallel; a second
message is accepted meanwhile, queued, and answered. The session is killed before and after the
persistence of each of its main and working commits, opened by a fresh process, and driven to idle.
"""

import pytest

from perdure.testing.crash_rig import CrashRig
from perdure.testing.crash_rig.rig import named_kills

SIDES = ("main.before", "main.after", "working.before", "working.after")


@pytest.mark.timeout(180)
@pytest.mark.spec("FM-07", "IV-19", "IV-20", "IV-22", "IV-25", "IV-33", "TK-10")
def test_every_commit_is_a_possible_last_one(rig: CrashRig) -> None:
    whole = rig.whole_run()
    assert not whole.faults, whole.faults
    kills = [kill for kill in named_kills(whole.lives[0].points) if kill.point in SIDES]
    reports = list(rig.run([(kill,) for kill in kills]))
    for report in reports:
        assert not report.faults, (report.trial, report.faults)
        assert len(report.outcomes) == 5
    # Frames are batched by time, so a run may have a working commit less than the one before.
    killed = sum(report.lives[0].killed for report in reports)
    assert killed >= len(kills) - 2 * 2
