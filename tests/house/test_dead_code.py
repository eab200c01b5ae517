"""Nothing lies around: code that no one can reach is gone."""

from vulture import Vulture

from tests.house.source import SRC

CONFIDENCE_MIN = 80


def test_no_dead_code() -> None:
    finder = Vulture()
    finder.scavenge([str(SRC)])
    found = finder.get_unused_code(min_confidence=CONFIDENCE_MIN)
    dead = [item for item in found if item.typ != "variable"]  # a Protocol's arguments look unused
    assert [f"{item.filename}:{item.first_lineno} {item.name}" for item in dead] == []
