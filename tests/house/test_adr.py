"""Architecture decisions: numbered without gaps, of one shape, replaced by pointing forward."""

import re
from pathlib import Path

import pytest

from tests.house.source import ROOT

RECORDS = sorted((ROOT / "docs" / "adr").glob("*.md"))
HEADINGS = ["Context", "Decision", "Rejected", "Consequences", "Status"]
STATUS = re.compile(r"^(Accepted|Superseded by (?P<next>\d{4}))\.", re.MULTILINE)
WORDS_MAX = 450


def test_numbers_have_no_gap() -> None:
    numbers = [path.name[:4] for path in RECORDS]
    assert numbers == [f"{number:04}" for number in range(1, len(RECORDS) + 1)]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_record_has_the_five_headings(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.match(rf"# {int(path.name[:4])}\. \S", text)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    assert len(text.split()) <= WORDS_MAX, "one page"


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_superseded_record_points_forward(path: Path) -> None:
    status = STATUS.search(path.read_text(encoding="utf-8").partition("## Status")[2])
    assert status, "Accepted. or Superseded by NNNN."
    if status["next"]:
        assert int(status["next"]) > int(path.name[:4])
        assert any(other.name.startswith(status["next"]) for other in RECORDS)
