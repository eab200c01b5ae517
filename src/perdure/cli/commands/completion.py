"""`perdure completion`: a script that completes commands, options and session names (CM-13)."""

import click
from click.shell_completion import get_completion_class

from perdure.cli.endings import Ending, UsageProblem
from perdure.cli.main import COMPLETE_VARIABLE, PROGRAM, cli
from perdure.cli.surface import Surface, surfaced

SHELLS = ("bash", "zsh", "fish")


@click.command(
    help="""Print a completion script for a shell.

    bash: perdure completion bash > ~/.local/share/bash-completion/completions/perdure
    """
)
@surfaced()
@click.argument("shell", type=click.Choice(SHELLS))
def command(surface: Surface, *, shell: str) -> Ending:
    """Print click's script for the shell."""
    found = get_completion_class(shell)
    if found is None:
        raise UsageProblem(f"there is no completion for {shell!r}")
    text = found(cli, {}, PROGRAM, COMPLETE_VARIABLE).source()
    return Ending(data={"text": text}, text=text + "\n")
