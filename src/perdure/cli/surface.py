"""What every subcommand shares: the common options, the terminal, and how its end is printed.

`surfaced` wraps a command: it takes the common options out of click's keywords, makes the terminal,
and hands both to the command, which answers an `Ending`.
"""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import click
from msgspec import Struct

from perdure.cli.endings import CODES, CONTINUABLE, Ending, envelope
from perdure.cli.events import ResultEvent
from perdure.cli.names import session_names
from perdure.cli.terminal import Terminal, When
from perdure.configuration.config import Config
from perdure.records.seqs import SEQ_MAX

Command: TypeAlias = Callable[..., Ending]

Machine: TypeAlias = Literal["no", "document", "events"]


class Flags(Struct, frozen=True, kw_only=True):
    """The options that mean the same on every command (CM-14)."""

    store: str | None = None
    session: str | None = None
    conversation: int | None = None
    config: Path | None = None
    json: bool = False
    json_events: bool = False
    color: When = "auto"
    quiet: bool = False
    timeout: float | None = None

    @property
    def machine(self) -> Machine:
        """Say what standard output is for: words, one document, or events."""
        if self.json_events:
            return "events"
        return "document" if self.json else "no"


class Surface:
    """One run of the command line: what is known of its options, and where it prints."""

    def __init__(self) -> None:
        """Know nothing yet; a usage error may come before any option is parsed."""
        self.command = ""
        self.flags = Flags()
        self.config: Config | None = None
        self._terminal: Terminal | None = None

    @property
    def terminal(self) -> Terminal:
        """Answer the terminal, made at the first need."""
        if self._terminal is None:
            flags = self.flags
            plain = flags.machine != "no"
            color: When = "never" if plain else flags.color
            self._terminal = Terminal(color=color, quiet=flags.quiet, plain=plain)
        return self._terminal

    def begin(self, command: str, flags: Flags) -> None:
        """Take a parsed command's name and options."""
        self.command = command
        self.flags = flags

    def adopt(self, args: Sequence[str]) -> None:
        """Find the options that decide how to print when parsing failed before they were known."""
        if self.command:
            return
        words = list(args[: list(args).index("--")] if "--" in args else args)
        self.command = next((word for word in words if not word.startswith("-")), "")
        self.flags = Flags(
            json="--json" in words, json_events="--json-events" in words, quiet="--quiet" in words
        )

    def finish(self, ending: Ending) -> int:
        """Print an ending and answer its exit code."""
        terminal = self.terminal
        if self.flags.machine != "no":
            document = envelope(self.command, ending)
            as_event = self.flags.machine == "events"
            terminal.document(ResultEvent(result=document) if as_event else document)
        elif ending.text is not None:
            terminal.answer(ending.text)
        if ending.error is not None:
            terminal.complain(f"perdure: {ending.error.message}", "bad")
            if ending.error.hint is not None:
                terminal.complain(f"  {ending.error.hint}")
        terminal.flush()
        is_cut = terminal.broken is not None and ending.code == 0
        if ending.resume is not None and (is_cut or ending.outcome in CONTINUABLE):
            terminal.complain(ending.resume)
        terminal.finish()
        return CODES["pipe"] if is_cut else ending.code


class _Position(click.IntRange):
    """A seq that a person names: one above the last there can be names nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Answer the seq; anything else is a usage error."""
        position: int = super().convert(value, param, ctx)
        if position > SEQ_MAX:
            self.fail(f"{value} is above {SEQ_MAX}, the highest there can be.", param, ctx)
        return position


class _Seconds(click.FloatRange):
    """A time of waiting: click's range lets "nan" pass, and "inf" is no time."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Answer the seconds; anything else is a usage error."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds above 0.", param, ctx)
        return seconds


COMMIT: Final = _Position(min=0)
"""The end of a commit."""

POSITION: Final = _Position(min=1)
"""The id of anything there is."""

COLOR: Final = click.Choice(["auto", "always", "never"])

_OPTIONS: Final[tuple[tuple[str, Callable[..., Any]], ...]] = (
    (
        "store",
        click.option(
            "--store",
            metavar="URL",
            help="Where sessions are kept: memory: or sqlite:FILE.  [default: [store] url of the "
            "configuration, else sessions.db in the data folder]",
        ),
    ),
    (
        "session",
        click.option(
            "-s",
            "--session",
            metavar="NAME",
            shell_complete=session_names,
            help="The session, by name.",
        ),
    ),
    (
        "conversation",
        click.option(
            "--conversation",
            type=POSITION,
            metavar="ID",
            help="A conversation of the session.  [default: the root]",
        ),
    ),
    (
        "timeout",
        click.option(
            "--timeout",
            type=_Seconds(min=0, min_open=True),
            metavar="SECONDS",
            help="End the wait after this time with exit code 5; the session can be continued.",
        ),
    ),
    (
        "config",
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="The configuration file.  [default: PERDURE_CONFIG, else perdure.toml of the "
            "user and of the project]",
        ),
    ),
    (
        "json_events",
        click.option("--json-events", is_flag=True, help="Print one JSON event a line."),
    ),
)

_EVERYWHERE: Final[tuple[Callable[..., Any], ...]] = (
    click.option("--quiet", is_flag=True, help="Only errors on standard error."),
    click.option("--color", type=COLOR, default="auto", show_default=True, help="Colour."),
    click.option("--json", is_flag=True, help="Print one JSON document on standard output."),
)


def surfaced(*names: str) -> Callable[[Command], Command]:
    """Give a command the common options it uses, beside `--json`, `--color` and `--quiet`."""

    def wrap(command: Command) -> Command:
        def run(ctx: click.Context, /, **given: Any) -> Ending:
            surface = cast("Surface", ctx.find_root().obj)
            known = {name: given.pop(name) for name in Flags.__struct_fields__ if name in given}
            surface.begin(_path(ctx), Flags(**known))
            return command(surface, **given)

        wrapped: Any = click.pass_context(wraps(command)(run))
        for option in reversed([one for name, one in _OPTIONS if name in names]):
            wrapped = option(wrapped)
        for option in _EVERYWHERE:
            wrapped = option(wrapped)
        return cast("Command", wrapped)

    return wrap


def _path(ctx: click.Context) -> str:
    """Name the command without the program: `sessions list`."""
    return ctx.command_path.partition(" ")[2]
