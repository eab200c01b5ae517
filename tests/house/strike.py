"""Take the IDs that a test claims by now off the open list of DEFERRED.md.

Run `python -m tests.house.strike`. The list of what waits for a later issue is left alone:
an ID that stands there and is claimed is a contradiction for a person to solve.
"""

import sys

from tests.house.source import ROOT
from tests.house.test_claims import ID, claims

PAGE = ROOT / "docs" / "internals" / "DEFERRED.md"


def without_claimed(line: str) -> str:
    """Drop the claimed IDs of one group's line, and the line when none is left."""
    if not line.startswith("- "):
        return line
    group, _, rest = line.partition(": ")
    still_open = [one for one in ID.findall(rest) if one not in claims()]
    return f"{group}: {' '.join(still_open)}\n" if still_open else ""


def strike() -> None:
    """Rewrite the open list."""
    waiting, heading, open_ones = PAGE.read_text(encoding="utf-8").partition("## Open")
    kept = "".join(without_claimed(line) for line in open_ones.splitlines(keepends=True))
    PAGE.write_text(waiting + heading + kept, encoding="utf-8")
    sys.stdout.write(f"{len(ID.findall(kept))} open\n")


if __name__ == "__main__":
    strike()
