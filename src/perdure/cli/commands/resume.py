"""`perdure resume`: go on with what is live in a session, and accept nothing (CM-21)."""

from collections.abc import Mapping
from typing import Any

import click

import perdure
from perdure.cli.choices import store_of
from perdure.cli.driving.drive import drive
from perdure.cli.driving.plan import Plan
from perdure.cli.endings import Ending
from perdure.cli.last import known_sessions, last_of_folder
from perdure.cli.limiting import limiting
from perdure.cli.reading import reading
from perdure.cli.surface import Surface, surfaced
from perdure.cli.terminal import stdin_is_terminal
from perdure.cli.work import Work, prepare, working

OFFERED: int = 20
"""Sessions offered to choose from."""


@click.command(
    help="""Go on with what is live in a session; accept nothing new.

    Drives what a kill or a pause left behind, and prints the answers of inputs that end meanwhile.
    Without --session: on a terminal choose one, else the last one made in this folder.
    """
)
@surfaced("store", "session", "conversation", "timeout", "config", "json_events")
@working
@limiting("Raise what is waited for.")
@click.option("--poll", is_flag=True, help="Ask for deferred answers once.")
def command(surface: Surface, work: Work, *, poll: bool, limits: Mapping[str, Any]) -> Ending:
    """Find the session, drive."""
    flags = surface.flags

    async def run() -> Ending:
        url = store_of(surface)
        name = await _chosen(surface, url) if flags.session is None else flags.session
        async with reading(url, name):
            pass  # an unknown session is said before anything else is asked for
        ready = await prepare(surface, work, session=name)
        opening = ready.opening(session=name, create=False)
        plan = Plan(
            opening=opening,
            url=url,
            session=name,
            continuing=ready.continuing,
            again=ready.again,
            places=ready.places,
            asks=not work.no_ask,
            conversation=flags.conversation,
            poll=poll,
            raises=limits,
        )
        return await drive(surface, plan)

    return perdure.run(run())


async def _chosen(surface: Surface, url: str) -> str:
    """Let a person choose, or take this folder's last one."""
    names = [info.name for info in await known_sessions(url)][:OFFERED]
    person = stdin_is_terminal() and surface.terminal.err_is_terminal
    if not person or surface.flags.machine != "no" or len(names) < 2:
        return await last_of_folder(url)
    for number, name in enumerate(names, 1):
        surface.terminal.complain(f"{number:3} {name}")
    surface.terminal.complain("which one? [1]")
    surface.terminal.flush()
    choice: int = click.prompt(
        "", type=click.IntRange(1, len(names)), default=1, show_default=False, err=True
    )
    return names[choice - 1]
