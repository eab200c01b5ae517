"""`perdure steer`: say something to a session that runs (CM-26)."""

import click

from perdure.cli.endings import Ending
from perdure.cli.forwarding.sending import queue
from perdure.cli.surface import Surface, surfaced


@click.command(
    help="""Queue TEXT for the model to read at the next boundary of the running exchange.

    It goes to the process that has the session open. Prints the input's id; `-` reads TEXT from
    standard input.
    """
)
@surfaced("store", "session", "conversation", "config")
@click.argument("text", nargs=-1)
@click.option(
    "--request-id",
    metavar="KEY",
    help="A name for this request: repeating it gives the first answer, not a second one.",
)
def command(surface: Surface, *, text: tuple[str, ...], request_id: str | None) -> Ending:
    """Queue."""
    return queue(surface, "steer", text, request_id)
