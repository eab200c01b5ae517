"""Describe payloads for people and machines, from the Structs themselves (FM-03).

Run `python -m tests.house.payloads` to write the table of FORMAT.md and the JSON Schema afresh.
"""

import sys
from collections.abc import Iterator
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct

from perdure.records.messages import PAYLOADS
from tests.house.source import ROOT

PAGE: Final = ROOT / "docs" / "internals" / "FORMAT.md"
SCHEMA: Final = ROOT / "docs" / "internals" / "payloads.schema.json"
BEGIN: Final = "<!-- payloads: begin -->"
END: Final = "<!-- payloads: end -->"


def structs() -> list[type[Struct]]:
    """List the Structs that payloads are made of, each before those it holds."""
    found: dict[type[Struct], None] = {}
    for payload in PAYLOADS.values():
        for struct in _reached(payload, found):
            found[struct] = None
    return list(found)


def _reached(hint: Any, known: dict[type[Struct], None]) -> Iterator[type[Struct]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        if hint in known:
            return
        known[hint] = None
        yield hint
        for inner in get_type_hints(hint).values():
            yield from _reached(inner, known)
    elif get_origin(hint) in (Union, UnionType, tuple):
        for inner in get_args(hint):
            yield from _reached(inner, known)


def fields(struct: type[Struct]) -> list[tuple[str, bool]]:
    """Answer a Struct's stored fields and whether each is always there; its tag is one."""
    tag = struct.__struct_config__.tag_field
    first = [] if tag is None else [(tag, True)]
    return first + [
        (field.encode_name, field.required or field.encode_name == "v" or _kept(struct, field))
        for field in msgspec.structs.fields(struct)
    ]


def _kept(struct: type[Struct], field: Any) -> bool:
    """Say whether a default is stored: it is left out where the Struct says so, or is UNSET."""
    return not struct.__struct_config__.omit_defaults and field.default is not UNSET


def table() -> str:
    """Draw the table."""
    lines = ["| record | always has | may have |", "| --- | --- | --- |"]
    for struct in structs():
        names = {
            kept: [f"`{name}`" for name, always in fields(struct) if always is kept]
            for kept in (True, False)
        }
        lines.append(f"| {struct.__name__} | {' '.join(names[True])} | {' '.join(names[False])} |")
    return "\n".join(lines)


def written() -> str:
    """Read the table that stands in FORMAT.md."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def schema() -> str:
    """Answer the JSON Schema of every payload by the kind of its entry."""
    kinds, parts = msgspec.json.schema_components(PAYLOADS.values(), ref_template="#/$defs/{name}")
    for struct in structs():
        # What is written by default is there too, and nothing else is (FM-03).
        parts[struct.__name__]["required"] = [name for name, always in fields(struct) if always]
        parts[struct.__name__]["additionalProperties"] = False
    described = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "perdure payloads, version 1",
        "type": "object",
        "properties": dict(zip(PAYLOADS, kinds, strict=True)),
        "$defs": parts,
    }
    return msgspec.json.format(msgspec.json.encode(described), indent=2).decode() + "\n"


def main() -> None:
    """Write table and schema."""
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")
    sys.stdout.write(f"{len(structs())} records in {PAGE.name} and {SCHEMA.name}\n")


if __name__ == "__main__":
    main()
