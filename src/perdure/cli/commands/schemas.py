"""The JSON Schemas of `perdure schema`, made from the Structs themselves (CM-05)."""

from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Raw

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
    schema = msgspec.json.schema(SCHEMAS[name], schema_hook=_raw)
    return {"$schema": DIALECT, "title": f"perdure {name}", **schema}


def _raw(kind: type) -> dict[str, Any]:
    """Answer the schema of an encoded value: any JSON."""
    if kind is Raw:
        return {}
    raise NotImplementedError
