"""A command with subcommands of which one is meant when none is named."""

import click

from perdure.cli.main import unknown


class DefaultGroup(click.Group):
    """A group that runs `default` for words that name no subcommand.

    Attributes:
        default: the subcommand's name.
        takes_words: the default takes arguments of its own, so that any word may be one.
    """

    default = "list"
    takes_words = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default's name in front when the words do not begin with another one."""
        is_help = bool(args) and args[0] in ctx.help_option_names
        if not is_help and (not args or args[0] not in self.commands):
            if args and not args[0].startswith("-") and not self.takes_words:
                known = list(self.commands)
                raise click.UsageError(unknown(f"command {ctx.command_path}", args[0], known), ctx)
            args = [self.default, *args]
        return super().parse_args(ctx, args)
