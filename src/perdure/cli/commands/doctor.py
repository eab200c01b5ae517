"""`perdure doctor`: is everything in order, and what to do about the rest (CM-38)."""

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

import perdure
from perdure.cli.commands.checkups import Check, all_checks
from perdure.cli.endings import Ending, Problem
from perdure.cli.places import check_writable, write_whole
from perdure.cli.surface import Surface, surfaced
from perdure.cli.tables import table


@click.command(
    help="""Check the installation, the configuration and the store.

    Writes nothing to any session and asks nothing of the network, unless --network is given.
    """
)
@surfaced("store", "config")
@click.option("--network", is_flag=True, help="Also see whether providers can be reached.")
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the report to this file, without names, paths of yours, or keys.",
)
def command(surface: Surface, *, network: bool, bundle: Path | None) -> Ending:
    """Run every check and print a row each."""
    if bundle is not None:
        check_writable(bundle, "--bundle")
    checks = perdure.run(all_checks(surface.flags, network=network))
    if bundle is not None:
        write_whole(bundle, _report(checks))
        surface.terminal.say(f"the report is in {bundle}")
    failed = [check.name for check in checks if check.result == "fail"]
    rows = [(check.result, check.name, check.found, check.remedy or "") for check in checks]
    return Ending(
        outcome="failed" if failed else "done",
        data=checks,
        text=table(("", "check", "found", "remedy"), rows),
        error=Problem(code="checks", message=f"these checks failed: {', '.join(failed)}")
        if failed
        else None,
    )


def _report(checks: Sequence[Check]) -> str:
    """Write every check down; private words are left out (SX-06)."""
    report = msgspec.json.format(msgspec.json.encode([_redacted(check) for check in checks]))
    return report.decode().replace(str(Path.home()), "~") + "\n"


def _redacted(check: Check) -> Check:
    return msgspec.structs.replace(check, found="(left out)") if check.is_private else check
