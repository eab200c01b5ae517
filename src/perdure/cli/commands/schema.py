"""`perdure schema`: the JSON Schema of what perdure prints, reads and stores (CM-05)."""

import json
from importlib.resources import files
from typing import Final

import click

from perdure.cli.endings import Ending
from perdure.cli.surface import Surface, surfaced

NAMES: Final = ("envelope", "events", "config", "record")


@click.command(
    help="""Print a JSON Schema.

    envelope: the document of --json; events: the lines of --json-events; config: perdure.toml;
    record: a commit of the journal.
    """
)
@surfaced()
@click.argument("name", type=click.Choice(NAMES))
def command(surface: Surface, *, name: str) -> Ending:
    """Print the file that is shipped."""
    text = schema_text(name)
    return Ending(data=json.loads(text), text=text)


def schema_text(name: str) -> str:
    """Read a schema that is shipped with the package."""
    return (files("perdure.cli") / "schema" / f"{name}.json").read_text(encoding="utf-8")
