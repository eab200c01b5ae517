"""`perdure fork`: a new conversation that begins at a boundary of another (CM-24)."""

import click

from perdure.cli.endings import Ending
from perdure.cli.forking import AS_OF, AT, DRY_RUN, LABEL, REQUEST_ID, forked
from perdure.cli.surface import Surface, surfaced
from perdure.harness.forks import ForkContext, ForkRequest
from perdure.records.seqs import Seq


@click.command(
    help="""Begin a conversation at an entry or a commit of another, or now; runs nothing.

    Prints the new conversation's ID, for --conversation of other commands. It has the transcript,
    values and context of that point; work and queue stay where they are. Files and other effects of
    calls are as they are: those that ran after the point are named.
    """
)
@surfaced("store", "session", "conversation", "config")
@AT
@AS_OF
@click.option(
    "--context",
    type=click.Choice(["inherit", "fresh"]),
    default="inherit",
    show_default=True,
    help="Whether the model still reads what was said before.",
)
@LABEL
@REQUEST_ID
@DRY_RUN
def command(
    surface: Surface,
    *,
    at: int | None,
    as_of: int | None,
    context: ForkContext,
    label: str | None,
    request_id: str | None,
    dry_run: bool,
) -> Ending:
    """Fork."""
    request = ForkRequest(
        conv_id=Seq(0),
        at=None if at is None else Seq(at),
        as_of=None if as_of is None else Seq(as_of),
        context=context,
        label=label,
        request_id=request_id,
    )
    return forked(surface, request, dry_run=dry_run)
