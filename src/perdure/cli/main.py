"""The command `perdure`: a lazy group of subcommands, and how every one of them ends.

A subcommand is a module imported when it is named (K06), so that help and version cost no more
than click. `main` turns what a command answers or raises into words, a document and an exit code.
"""

import difflib
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any, Final, cast

import click

from perdure.cli.endings import CODES, Ending, Problem, ending_of
from perdure.cli.surface import Surface

COMMANDS: Final = MappingProxyType(
    {
        "run": "Answer a prompt in a durable session; continue it when it exists.",
        "resume": "Go on with what is live in a session; accept nothing new.",
        "inspect": "Show what is live in a session and what it waits for; write nothing.",
        "approve": "List the calls that wait for a decision, and decide one.",
        "budget": "Raise the budget that work waits for.",
        "deny": "Refuse one call that waits for a decision.",
        "steer": "Say something to the running exchange of a session.",
        "follow-up": "Queue a text for after the next answer of a session.",
        "abort": "Cancel what runs in a session, and withdraw what is queued.",
        "fork": "Begin a conversation at an earlier point of another one, or now.",
        "rewind": "Cancel what runs, and begin a conversation at an earlier point.",
        "diff": "Show how two commits or two forks differ.",
        "watch": "Show what happens in a session while another process drives it.",
        "context": "Print the exact next request of a session, with tokens by source.",
        "sessions": "List, show, rename and delete sessions.",
        "serve": "Serve sessions over HTTP, with the inspector page.",
        "acp": "Be the agent of an editor, over the Agent Client Protocol.",
        "models": "List providers and models, check one, fetch the local one.",
        "doctor": "Check the installation, the configuration and the store.",
        "config": "Show, check and write the configuration file.",
        "schema": "Print the JSON Schema of a document.",
        "completion": "Print a completion script for a shell.",
        "help": "Show the help of a command, or of a topic such as exit-codes.",
    }
)
"""Every subcommand and its one line, so that `--help` imports none of them."""

PROGRAM: Final = "perdure"

COMPLETE_VARIABLE: Final = "_PERDURE_COMPLETE"
"""What a completion script sets when it asks for completions."""


def load(name: str) -> ModuleType:
    """Import a module when it is needed: a subcommand, or what few command lines ask for (K06)."""
    return import_module(name)


def module_of(command: str) -> str:
    """Name the module of a subcommand."""
    return f"perdure.cli.commands.{command.replace('-', '_')}"


class LazyGroup(click.Group):
    """A group whose subcommands are imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module."""
        if cmd_name not in COMMANDS:
            return None
        return cast("click.Command", load(module_of(cmd_name)).command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or refuse the word naming the nearest one (CM-12)."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(unknown("command", args[0], list(COMMANDS)), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def unknown(what: str, given: str, known: Sequence[str]) -> str:
    """Word the refusal of a name, with the nearest one there is."""
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known)}"
    return f"there is no {what} {given!r}{hint}"


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value and not ctx.resilient_parsing:
        click.echo(f"{PROGRAM} {load('importlib.metadata').version(PROGRAM)}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> int | None:
    """Run AI agents in durable sessions: kill it anywhere, open it again, go on."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        return 2
    return None


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    code = run_command(list(sys.argv[1:] if args is None else args))
    # What was said is written; there is nothing left that a flush at exit could fail on.
    sys.exit(code)


def run_command(args: Sequence[str]) -> int:
    """Run one command line and answer its exit code; everything it says is written."""
    surface = Surface()
    ending: Ending | None = None
    try:
        result: Any = cli.main(list(args), prog_name=PROGRAM, standalone_mode=False, obj=surface)
        if not isinstance(result, Ending):
            return int(result or 0)
        ending = result
    except click.UsageError as error:
        ending = _usage(error)
    except (click.Abort, KeyboardInterrupt):
        ending = Ending(outcome="interrupt")
    except SystemExit as end:
        # Click ends a completion so, and a help that nobody reads any more.
        return int(end.code or 0) if os.environ.get(COMPLETE_VARIABLE) else CODES["pipe"]
    except Exception as error:  # noqa: BLE001 - every other end is a defect and gets a report
        ending = ending_of(error) or _defect(error)
    surface.adopt(args)
    try:
        return surface.finish(ending)
    except KeyboardInterrupt:
        return CODES["interrupt"]


def _usage(error: click.UsageError) -> Ending:
    path = error.ctx.command_path if error.ctx is not None else PROGRAM
    hint = f"see: {path} --help"
    if isinstance(error, click.NoSuchOption) and path == PROGRAM:
        hint = f"options stand after the command, as in: {PROGRAM} sessions --json"
    return Ending(
        outcome="usage", error=Problem(code="usage", message=error.format_message(), hint=hint)
    )


def _defect(error: Exception) -> Ending:
    """Write the traceback to a file that only its owner can read, and name it (CM-01)."""
    text = "".join(traceback.format_exception(error))
    try:
        handle, name = tempfile.mkstemp(prefix="perdure-fault-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError:
        name = ""
    message = f"perdure has a defect: {type(error).__name__}: {error}"
    hint = f"the report is in {name}" if name else "the report could not be written"
    return Ending(outcome="fault", error=Problem(code="defect", message=message, hint=hint))
