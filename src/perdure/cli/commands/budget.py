"""`perdure budget`: raise the budget that work waits for, from any terminal (BG-12)."""

from collections.abc import Mapping
from typing import Any

import click

from perdure.cli.commands.approve import decide
from perdure.cli.endings import Ending, UsageProblem
from perdure.cli.limiting import limiting
from perdure.cli.surface import Surface, surfaced
from perdure.records.seqs import Seq


@click.command(
    help="""Raise the budget behind the approval ID, and let the work that waits go on.

    Goes to the process that has the session open, which then goes on; when none has, the raise is
    stored and --drive goes on. `perdure deny ID` ends the input instead.
    """
)
@surfaced("store", "session", "timeout", "config")
@click.argument("approval", type=click.IntRange(min=1), metavar="ID")
@limiting("The new limit.")
@click.option("--drive", "goes_on", is_flag=True, help="Then go on with the session, as `resume`.")
def command(surface: Surface, *, approval: int, limits: Mapping[str, Any], goes_on: bool) -> Ending:
    """Decide."""
    if not limits:
        raise UsageProblem("give the new limit", "such as --max-cost 2.00")
    return decide(surface, Seq(approval), "grant", details={"raise": limits}, goes_on=goes_on)
