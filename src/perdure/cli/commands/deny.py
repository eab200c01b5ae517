"""`perdure deny`: refuse one call that waits, as `approve ID --deny TEXT` does (CM-25)."""

import click

from perdure.cli.commands.approve import decide
from perdure.cli.endings import Ending
from perdure.cli.surface import Surface, surfaced
from perdure.records.seqs import Seq


@click.command(help="Refuse the call that waits behind an approval; the model reads TEXT.")
@surfaced("store", "session", "timeout", "config")
@click.argument("approval", type=click.IntRange(min=1), metavar="ID")
@click.argument("text", nargs=-1)
@click.option("--drive", "goes_on", is_flag=True, help="Then go on with the session, as `resume`.")
def command(surface: Surface, *, approval: int, text: tuple[str, ...], goes_on: bool) -> Ending:
    """Decide."""
    reason = " ".join(text) or None
    return decide(surface, Seq(approval), "deny", reason=reason, goes_on=goes_on)
