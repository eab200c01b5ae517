"""The JSON Schemas that `cli/schema` ships, made from the Structs themselves (CM-05).

`python -m perdure.cli.commands.schemas` writes the files anew; a test compares them.
"""

from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from perdure.cli.endings import Envelope
from perdure.cli.events import Event
from perdure.configuration.tables import File
from perdure.records.writes import Commit

SCHEMAS: Final = MappingProxyType(
    {"envelope": Envelope, "events": Event, "config": File, "record": Commit}
)
"""What each schema describes."""

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_of(name: str) -> dict[str, Any]:
    """Answer a schema by name."""
    schema = msgspec.json.schema(SCHEMAS[name])
    return {"$schema": DIALECT, "title": f"perdure {name}", **schema}


def schema_text(name: str) -> str:
    """Answer a schema as its file holds it."""
    return msgspec.json.format(msgspec.json.encode(schema_of(name)), indent=2).decode() + "\n"


def write_all() -> None:
    """Write every file."""
    folder = Path(__file__).parents[1] / "schema"
    for name in SCHEMAS:
        (folder / f"{name}.json").write_text(schema_text(name), encoding="utf-8")


if __name__ == "__main__":
    write_all()
