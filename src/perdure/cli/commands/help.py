"""`perdure help`: the help of a command, or of a topic (CM-01, CM-12)."""

import click

from perdure.cli.endings import CODES, MEANINGS, Ending
from perdure.cli.main import cli, unknown
from perdure.cli.surface import Surface, surfaced
from perdure.cli.tables import table

TOPICS = ("exit-codes",)


@click.command(
    help="""Show the help of a command, or of a topic.

    Topics: exit-codes.
    """
)
@surfaced()
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def command(ctx: click.Context, surface: Surface, *, words: tuple[str, ...]) -> Ending:
    """Print the same as `perdure COMMAND --help`."""
    if words == ("exit-codes",):
        rows = [{"code": CODES[one], "outcome": one, "meaning": MEANINGS[one]} for one in CODES]
        shown = [(str(row["code"]), row["outcome"], row["meaning"]) for row in rows]
        return Ending(data=rows, text=table(("code", "outcome", "meaning"), shown))
    text = _help_of(ctx.find_root(), words)
    return Ending(data={"text": text}, text=text + "\n")


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
