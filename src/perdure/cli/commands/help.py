"""`perdure help`: the help of a command, or of a topic (CM-01, CM-12)."""

from collections.abc import Iterator

import click

from perdure.cli.endings import CODES, MEANINGS, Ending
from perdure.cli.main import PROGRAM, cli, unknown
from perdure.cli.surface import Surface, surfaced
from perdure.cli.tables import table

TOPICS = ("exit-codes", "reference")

PAGE_WIDTH = 100
"""Columns of the reference page, whatever the terminal has."""


@click.command(
    help="""Show the help of a command, or of a topic.

    Topics: exit-codes; reference, the manual page of every command in one text.
    """
)
@surfaced()
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def command(ctx: click.Context, surface: Surface, *, words: tuple[str, ...]) -> Ending:
    """Print the same as `perdure COMMAND --help`."""
    if words == ("exit-codes",):
        rows = [{"code": CODES[one], "outcome": one, "meaning": MEANINGS[one]} for one in CODES]
        return Ending(data=rows, text=_exit_codes())
    if words == ("reference",):
        page = _reference()
        return Ending(data={"text": page}, text=page)
    text = _help_of(ctx.find_root(), words)
    return Ending(data={"text": text}, text=text + "\n")


def _exit_codes() -> str:
    rows = [(str(CODES[one]), one, MEANINGS[one]) for one in CODES]
    return table(("code", "outcome", "meaning"), rows)


def _reference() -> str:
    """Write the page that docs/reference/cli.md holds: the help of every command (CM-12)."""
    root = click.Context(cli, info_name=PROGRAM, terminal_width=PAGE_WIDTH)
    parts = ["# The command line", "", "Printed by `perdure help reference`.", ""]
    for title, text in [*_pages(cli, root), ("Exit codes", _exit_codes())]:
        parts += [f"## {title}", "", "```text", text.rstrip("\n"), "```", ""]
    return "\n".join(parts).rstrip("\n") + "\n"


def _pages(found: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    yield context.command_path, found.get_help(context)
    if isinstance(found, click.Group):
        for name in found.list_commands(context):
            inner = found.get_command(context, name)
            if inner is not None:
                below = click.Context(
                    inner, info_name=name, parent=context, terminal_width=PAGE_WIDTH
                )
                yield from _pages(inner, below)


def _help_of(context: click.Context, words: tuple[str, ...]) -> str:
    """Walk down the commands as click would, and answer the last one's help."""
    current: click.Command = cli
    for word in words:
        names = current.list_commands(context) if isinstance(current, click.Group) else []
        found = current.get_command(context, word) if isinstance(current, click.Group) else None
        if found is None:
            known = [*names, *(TOPICS if current is cli else ())]
            raise click.UsageError(unknown("command or topic", word, known))
        context = click.Context(found, info_name=word, parent=context, **found.context_settings)
        current = found
    return current.get_help(context)
