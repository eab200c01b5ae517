"""Run the rig from a terminal: `python -m perdure.testing.crash_rig --kills 1000 --seed 1`."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from perdure.testing.crash_rig.rig import WORKERS, CrashRig, first_and_last, named_kills
from perdure.testing.crash_rig.trial import PHASES, Report


def tally(reports: Iterable[Report]) -> dict[str, Any]:
    """Count kills by what was in flight, outcomes, and faults."""
    phases: Counter[str] = Counter()
    exact: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    kills = trials = early = acting = 0
    faults: list[Any] = []
    for report in reports:
        trials += 1
        for life in report.lives:
            early += bool(life.kill) and not life.killed
            if not life.killed:
                continue
            kills += 1
            phases.update(life.in_flight or ("nothing",))
            exact["+".join(life.in_flight) or "nothing"] += 1
            acting += "effect" in life.in_flight or "command" in life.in_flight
        outcomes.update(report.outcomes)
        if report.faults:
            lives = [life.kill for life in report.lives]
            faults.append({"folder": report.trial.folder, "kills": lives, "faults": report.faults})
    return {
        "trials": trials,
        "kills": kills,
        "ended_before_the_kill": early,
        "kills_while_an_effect_or_command_was_in_flight": acting,
        "in_flight": {phase: phases[phase] for phase in (*PHASES, "nothing")},
        "in_flight_together": dict(exact.most_common()),
        "outcomes": dict(outcomes),
        "trials_with_faults": len(faults),
        "faults": faults,
    }


def main() -> int:
    """Print the points, then a JSON tally; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="perdure.testing.crash_rig", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="random kills to make")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--points", choices=("none", "named", "every"), default="named")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--folder", type=Path, help="where trials live; those with faults stay")
    given = parser.parse_args()
    began = time.monotonic()
    with CrashRig(given.folder, workers=given.workers) as rig:
        result: dict[str, Any] = {"seed": given.seed}
        if given.points != "none":
            result["points"] = named(rig, every=given.points == "every")
        if given.kills:
            result["random"] = tally(rig.random_kills(given.kills, given.seed))
    result["seconds"] = round(time.monotonic() - began, 1)
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(result)).decode() + "\n")
    return int(any(result[part]["faults"] for part in ("points", "random") if part in result))


def named(rig: CrashRig, *, every: bool) -> dict[str, Any]:
    """Run the named points: the first and last time each is reached, or every time."""
    reached = rig.whole_run().lives[0].points
    kills = named_kills(reached) if every else first_and_last(reached)
    counts = Counter(reached)
    ran = tally(rig.run([(kill,) for kill in kills]))
    return {"list": {name: counts[name] for name in dict.fromkeys(reached)}, **ran}


if __name__ == "__main__":
    sys.exit(main())
