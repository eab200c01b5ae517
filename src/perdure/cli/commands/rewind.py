"""`perdure rewind`: cancel what runs, and go on from an earlier point (CM-24)."""

import click

from perdure.cli.endings import Ending, UsageProblem
from perdure.cli.forking import AS_OF, AT, DRY_RUN, LABEL, REQUEST_ID, forked
from perdure.cli.surface import Surface, surfaced
from perdure.harness.forks import ForkRequest
from perdure.records.seqs import Seq


@click.command(
    help="""Cancel what runs in a conversation, then begin a new one at an earlier entry or commit.

    Prints the new conversation's ID. The old one stays, with all that was said in it. Only the
    conversation goes back, never files and other effects of calls: those that ran after the point
    are named.
    """
)
@surfaced("store", "session", "conversation", "config")
@AT
@AS_OF
@click.option("--keep-running", is_flag=True, help="Cancel nothing.")
@LABEL
@REQUEST_ID
@DRY_RUN
def command(
    surface: Surface,
    *,
    at: int | None,
    as_of: int | None,
    keep_running: bool,
    label: str | None,
    request_id: str | None,
    dry_run: bool,
) -> Ending:
    """Rewind."""
    if at is None and as_of is None:
        raise UsageProblem("name where to go back to: --at ENTRY or --as-of COMMIT")
    request = ForkRequest(
        conv_id=Seq(0),
        verb="rewind",
        at=None if at is None else Seq(at),
        as_of=None if as_of is None else Seq(as_of),
        label=label,
        request_id=request_id,
        keep_running=keep_running,
    )
    return forked(surface, request, dry_run=dry_run)
