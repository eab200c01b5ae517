"""The programs below examples/ run, and say what they promise."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT

EXAMPLES = ROOT / "examples"
WAIT_S = 55


def ran(folder: Path, *words: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=WAIT_S,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.timeout(60)
def test_the_durable_agent_orders_once(tmp_path: Path) -> None:
    program = str(EXAMPLES / "durable_agent.py")
    first, second = ran(tmp_path, program), ran(tmp_path, program)
    assert first[0] == "ordering 2 x coffee"
    assert second == first[1:]
    assert second[0].startswith("answered: Two packets of coffee are ordered")


@pytest.mark.timeout(60)
def test_crash_and_resume_charges_once_and_tells_the_truth(tmp_path: Path) -> None:
    assert ran(tmp_path, str(EXAMPLES / "crash_and_resume.py"), str(tmp_path)) == [
        "live at opening: []",
        "the first process ended with -9",
        "live at opening: ['tool running', 'tool running']",
        "charge: interrupted",
        "look: finished",
        "answered: Understood.",
        "executions: {'charge:o-7': 1, 'look:o-7': 2}",
    ]


@pytest.mark.timeout(60)
def test_the_test_of_an_agent_passes(tmp_path: Path) -> None:
    out = ran(
        tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / "test_agent.py")
    )
    assert out[-1].startswith("2 passed")


def test_every_program_is_run_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [file.name for file in EXAMPLES.glob("*.py") if f'"{file.name}"' not in text] == []
