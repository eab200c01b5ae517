"""What the command line loads and costs before it does anything (CM-11, PV-03)."""

import json
import resource
import subprocess
import sys

import pytest

from tests.surfaces.desk import Desk

pytestmark = pytest.mark.timeout(60)

PROBE = """
import json, os, sys
from perdure.cli.main import run_command
code = run_command(sys.argv[1:])
names = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
os.write(2, json.dumps([code, sorted(names)]).encode())
"""
FLOOR = "import asyncio, sqlite3, msgspec, click"
ALLOWED = {"__main__", "click", "msgspec", "perdure", "typing_extensions", "_distutils_hack"}
"""msgspec itself looks for `typing_extensions`, an environment's start-up for the last one."""


def loaded(desk: Desk, *words: str) -> set[str]:
    """Run a command line in a fresh interpreter; answers the libraries it loaded."""
    ended = subprocess.run(
        [sys.executable, "-c", PROBE, *words],
        env=desk.env,
        cwd=desk.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=25,
        check=True,
    )
    code, names = json.loads(ended.stderr[ended.stderr.rindex("[0, ") :])
    assert code == 0
    return set(names)


@pytest.mark.spec("CM-11")
@pytest.mark.spec("PV-03")
@pytest.mark.parametrize("words", [("--version",), ("--help",), ("sessions",)])
def test_looking_loads_no_library_but_click_and_msgspec(desk: Desk, words: tuple[str, ...]) -> None:
    assert loaded(desk, *words) <= ALLOWED


@pytest.mark.spec("PV-03")
def test_reading_a_session_loads_no_model_library(desk: Desk) -> None:
    desk.make("a")
    assert loaded(desk, "inspect", "-s", "a") <= ALLOWED


def cpu_seconds(words: list[str]) -> float:
    """Answer the least CPU time of some runs."""
    best = 9.0
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, used)
    return best


OPENING_S = 0.06
"""CPU seconds of opening a store and reading from it, beside what looking costs."""


@pytest.mark.deep
@pytest.mark.timeout(120)
@pytest.mark.spec("CM-11")
def test_looking_costs_little_more_than_its_floor(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.make("a")
    for name, value in desk.env.items():
        monkeypatch.setenv(name, value)
    floor = cpu_seconds([sys.executable, "-c", FLOOR])
    for words, more in (
        (["--version"], 0.0),
        (["--help"], 0.0),
        (["sessions"], OPENING_S),
        (["inspect", "-s", "a"], OPENING_S),
    ):
        used = cpu_seconds([sys.executable, "-m", "perdure", *words])
        assert used <= 2.5 * floor + more, (words, used, floor)
