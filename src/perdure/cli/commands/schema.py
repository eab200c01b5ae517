"""`perdure schema`: the JSON Schema of what perdure prints, reads and stores (CM-05)."""

import click
import msgspec

from perdure.cli.commands.schemas import SCHEMAS, schema_of
from perdure.cli.endings import Ending
from perdure.cli.surface import Surface, surfaced


@click.command(
    help="""Print a JSON Schema.

    envelope: the document of --json; events: the lines of --json-events; config: perdure.toml;
    record: a commit of the journal.
    """
)
@surfaced()
@click.argument("name", type=click.Choice(list(SCHEMAS)))
def command(surface: Surface, *, name: str) -> Ending:
    """Print the schema."""
    schema = schema_of(name)
    text = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"
    return Ending(data=schema, text=text)
