"""The table of trust names who holds each row (SX-01)."""

import re

import pytest

from tests.house.source import ROOT
from tests.house.test_claims import ID, claims, sections

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
HOSTILE = PAGE.partition("## Hostile")[2].partition("##")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in HOSTILE.splitlines()
    if re.match(r"\| [a-z]", line) and not line.startswith("| source")
]


@pytest.mark.spec("SX-01")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_hostile_source_has_a_reach_and_ids_that_hold_it(row: list[str]) -> None:
    _, reach, held = row
    assert len(reach.split()) > 3
    assert ID.findall(held)


@pytest.mark.spec("SX-01")
def test_each_id_of_the_page_is_claimed_or_listed() -> None:
    waiting, open_ones = sections()
    known = set(claims()) | set(waiting) | set(open_ones)
    assert not set(ID.findall(PAGE)) - known


@pytest.mark.spec("SX-01")
def test_every_named_source_has_a_side() -> None:
    hostile = ("model text", "tool output", "files of a repository", "stored session")
    doors = ("MCP servers", "HTTP clients", "imported files")
    assert all(word in HOSTILE for word in hostile + doors)
    trusted = PAGE.partition("## Trusted")[2].partition("##")[0]
    assert all(word in trusted for word in ("opens a harness", "configuration", "operating system"))
