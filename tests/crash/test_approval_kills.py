"""Killed anywhere in the life of three questions, each decision applies once, to its own call."""

import multiprocessing
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

import perdure
from perdure.records.approvals import Verdict
from tests.crash.approval_story import AMOUNTS, Death, Place, Plan, Report, ask, live, noted

SEED = 20_261
KILLS = 24
KILLS_DEEP = 300
LIFE_S = 0.06
"""About how long a life decides and drives; a random kill falls somewhere in it."""

CALLS = tuple(f"c{at}" for at in range(len(AMOUNTS)))
PLACES: Final[tuple[Place, ...]] = ("decision", "intent", "outcome")
FORKS = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answer a folder with a session whose three calls wait."""
    FORKS.set_forkserver_preload(["tests.crash.approval_story"])
    folder = tmp_path_factory.mktemp("held")
    perdure.run(ask(folder))
    return folder


def planned(rng: random.Random, number: int) -> Plan:
    """Plan a life: a third each ends before and after a commit that is named, and at any moment."""
    verdicts: list[Verdict] = [rng.choice(("grant", "deny")) for _ in AMOUNTS]
    order = tuple(rng.sample(range(len(AMOUNTS)), len(AMOUNTS)))
    place = rng.choice(PLACES)
    reached = len(AMOUNTS) if place == "decision" else verdicts.count("grant")
    death = None
    if number % 3 and reached:
        side = "before" if number % 3 == 1 else "after"
        death = Death(place=place, nth=rng.randint(1, reached), side=side)
    return Plan(verdicts=tuple(verdicts), order=order, death=death)


def killed(folder: Path, plan: Plan, after_s: float) -> bool:
    """Live a life that is killed; says whether it was still alive then."""
    parent, child = FORKS.Pipe()
    process = FORKS.Process(target=live, args=(folder, plan, child))
    process.start()
    assert parent.poll(20)
    parent.recv()
    if plan.death is None:
        time.sleep(after_s)
        process.kill()
    process.join(20)
    assert process.exitcode is not None
    return process.exitcode < 0


def finished(folder: Path, plan: Plan) -> Report:
    """Live to the end."""
    parent, child = FORKS.Pipe()
    process = FORKS.Process(target=live, args=(folder, plan, child))
    process.start()
    said: list[Report | None] = []
    try:
        while len(said) < 2:  # that it begins, and what it leaves
            assert parent.poll(20)
            said.append(parent.recv())
    finally:
        process.kill()
        process.join()
    report = said[1]
    assert report is not None
    return report


def check(folder: Path, plan: Plan, before: Counter[str], decided: Counter[str]) -> str:
    """Live to the end and hold every law; answers where the killed life had been."""
    report = finished(folder, Plan(verdicts=plan.verdicts, order=plan.order))
    meant = dict(zip(CALLS, plan.verdicts, strict=True))
    shown = {call: f'{{"amount":{amount}}}' for call, amount in zip(CALLS, AMOUNTS, strict=True)}
    assert not report.faults
    assert report.said == "fine"

    found = {seen.call: seen for seen in report.found}
    assert tuple(found) == CALLS
    for call, seen in found.items():
        # Still open, or decided as it was meant: no other call's decision went here.
        assert seen.decision in (None, meant[call])
        assert (seen.status == "waiting") == (seen.decision is None)
        assert seen.shown == shown[call]
        if decided[f"{call} {meant[call]}"]:
            assert seen.decision == meant[call], "a decision that was answered stands"

    assert {seen.call: seen.decision for seen in report.left} == meant
    assert sorted(call for call, _ in report.outcomes) == list(CALLS), "each is answered once"
    effects = noted(folder / "effects")
    for call, outcome in report.outcomes:
        runs = effects[f"{call} {shown[call]}"]
        if meant[call] == "deny":
            assert (outcome, runs) == ("denied", 0)
        elif outcome == "finished":
            assert runs == 1
        else:
            assert (outcome, runs <= 1) == ("interrupted", True)
    assert sum(effects.values()) == sum(effects[f"{call} {shown[call]}"] for call in CALLS)
    ran = sum(before.values())
    return f"{sum(seen.decision is not None for seen in report.found)} decided, {ran} run"


def kill(held: Path, place: Path, kills: int) -> Counter[str]:
    """Kill so many lives; answers where they had been."""
    rng = random.Random(SEED)
    places: Counter[str] = Counter()
    number = 0
    while places.total() < kills:
        folder = place / str(number)
        shutil.copytree(held, folder)
        plan = planned(rng, number)
        number += 1
        was_killed = killed(folder, plan, rng.uniform(0, LIFE_S))
        before, decided = noted(folder / "effects"), noted(folder / "decided")
        at = check(folder, plan, before, decided)
        if was_killed:
            places[at] += 1
        shutil.rmtree(folder)
    return places


@pytest.mark.timeout(60)
@pytest.mark.spec("AP-04", "AP-06", "AP-07", "BB-17")
def test_killed_around_a_decision_it_stands_or_is_still_open(held: Path, tmp_path: Path) -> None:
    assert len(kill(held, tmp_path, KILLS)) > 2


@pytest.mark.deep
@pytest.mark.timeout(3_600)
@pytest.mark.spec("AP-04", "AP-06", "AP-07", "BB-17")
def test_killed_three_hundred_times_around_decisions(held: Path, tmp_path: Path) -> None:
    places = kill(held, tmp_path, KILLS_DEEP)
    assert len(places) > 4
    assert min(places[f"{decided} decided, 0 run"] for decided in (1, 2, 3)) > 0
