"""`perdure run`: answer a prompt in a durable session (CM-18, CM-19)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

import perdure
from perdure.cli.choices import store_of
from perdure.cli.driving.drive import drive
from perdure.cli.driving.plan import Plan
from perdure.cli.endings import Ending, UsageProblem
from perdure.cli.last import last_of_folder
from perdure.cli.limiting import budget_of, limiting
from perdure.cli.places import check_writable
from perdure.cli.prompt import read_prompt
from perdure.cli.surface import Surface, surfaced
from perdure.cli.work import Work, prepare, working
from perdure.records.inputs import InputMode

NEW_PREFIX = "run-"
"""Start of the name of a session that was given none."""


@click.command(
    help="""Answer TEXT in a durable session; continue the session when it exists.

    TEXT is the prompt; `-` reads it from standard input, and input piped beside a text is added to
    it. Without --session a new session is made and its name printed on standard error.
    """
)
@surfaced("store", "session", "conversation", "timeout", "config", "json_events")
@working
@click.argument("text", nargs=-1)
@click.option("-c", "--continue", "last", is_flag=True, help="Continue this folder's last session.")
@click.option("--no-session", is_flag=True, help="Keep nothing: the session is in memory.")
@click.option("--steer", is_flag=True, help="Give TEXT to the exchange that runs.")
@click.option("--next", "next_run", is_flag=True, help="Keep TEXT for the next run; start none.")
@limiting("For this prompt and all that follows from it.")
@click.option(
    "--request-id",
    metavar="KEY",
    help="A name for this request: repeating it gives the first answer, not a second one.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write the answer to this file.",
)
def command(
    surface: Surface,
    work: Work,
    *,
    text: tuple[str, ...],
    last: bool,
    no_session: bool,
    steer: bool,
    next_run: bool,
    limits: Mapping[str, Any],
    request_id: str | None,
    output: Path | None,
) -> Ending:
    """Read the prompt, find the session, drive."""
    flags = surface.flags
    if sum((last, no_session, flags.session is not None)) > 1:
        raise UsageProblem("--session, --continue and --no-session exclude each other")
    if steer and next_run:
        raise UsageProblem("--steer and --next exclude each other")
    mode: InputMode = "steer" if steer else "nextRun" if next_run else "prompt"
    if limits and mode != "prompt":
        raise UsageProblem("a budget comes with a prompt of its own, not with --steer or --next")
    budget = budget_of(limits)
    if output is not None:
        check_writable(output, "--output")
    prompt = read_prompt(text)

    async def run() -> Ending:
        url, name = ("memory:", "run") if no_session else (None, flags.session)
        if last:
            name = await last_of_folder(store_of(surface))
        ready = await prepare(surface, work, session=name, url=url)
        opening = ready.opening(
            session=NEW_PREFIX if name is None else name, named_by_id=name is None, create=True
        )
        plan = Plan(
            opening=opening,
            url=ready.url,
            session=name,
            continuing=ready.continuing,
            again=ready.again,
            places=ready.places,
            asks=not work.no_ask,
            mode=mode,
            text=prompt,
            request_id=request_id,
            budget=budget,
            conversation=flags.conversation,
            folder=os.getcwd(),  # noqa: PTH109 - text that is stored
            output=output,
            is_kept=not no_session,
            says_name=name is None,
        )
        return await drive(surface, plan)

    return perdure.run(run())
