"""Pair every stored name with its Python name, from the Structs themselves.

Run `python -m tests.house.stored_names` to write the table into FORMAT.md afresh.
"""

import importlib
import sys
from typing import NamedTuple

import msgspec

from tests.house.source import ROOT, SRC

PAGE = ROOT / "docs" / "internals" / "FORMAT.md"
BEGIN = "<!-- stored names: begin -->"
END = "<!-- stored names: end -->"


class Pair(NamedTuple):
    """One field: as it is stored, as Python says it, and the noun it belongs to."""

    stored: str
    python: str
    noun: str


def nouns() -> list[type[msgspec.Struct]]:
    """List the Structs of the records room, tagged and plain."""
    found: dict[str, type[msgspec.Struct]] = {}
    for path in sorted((SRC / "records").glob("*.py")):
        module = importlib.import_module(f"perdure.records.{path.stem}")
        for value in vars(module).values():
            own = isinstance(value, type) and value.__module__ == module.__name__
            if own and issubclass(value, msgspec.Struct):
                found[value.__name__] = value
    return [found[name] for name in sorted(found)]


def stays_in_memory(noun: type[msgspec.Struct]) -> bool:
    """Tell whether a noun has no stored form: its field names were never given one."""
    return any("_" in field.encode_name for field in msgspec.structs.fields(noun))


def pairs() -> set[Pair]:
    """Walk every field of every noun that is stored."""
    return {
        Pair(field.encode_name, field.name, noun.__name__)
        for noun in nouns()
        if not stays_in_memory(noun)
        for field in msgspec.structs.fields(noun)
    }


def table() -> str:
    """Draw the table: one row for a pair of names, with the nouns that use it."""
    rows: dict[tuple[str, str], list[str]] = {}
    for pair in sorted(pairs()):
        rows.setdefault((pair.stored, pair.python), []).append(pair.noun)
    lines = ["| stored | Python | in |", "| --- | --- | --- |"]
    lines += [
        f"| `{stored}` | `{python}` | {', '.join(sorted(used))} |"
        for (stored, python), used in rows.items()
    ]
    return "\n".join(lines)


def written() -> set[Pair]:
    """Read the table back from FORMAT.md."""
    block = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    found: set[Pair] = set()
    for line in block.splitlines():
        if line.startswith("| `"):
            stored, python, used = (cell.strip(" `") for cell in line.strip("|").split("|"))
            found |= {Pair(stored, python, noun.strip()) for noun in used.split(",")}
    return found


def write() -> None:
    """Replace the table in FORMAT.md."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write()
    sys.stdout.write(f"{len(pairs())} fields in {PAGE.name}\n")
