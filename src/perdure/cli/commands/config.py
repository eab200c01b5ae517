"""`perdure config`: show, check, write and trust the configuration file (CG-01, CG-08, CG-10)."""

from pathlib import Path

import click

from perdure.cli.choices import config_of
from perdure.cli.endings import Ending, UsageProblem
from perdure.cli.groups import DefaultGroup
from perdure.cli.surface import Surface, surfaced
from perdure.cli.tables import table
from perdure.configuration.effective import effective
from perdure.configuration.loading import FILE_NAME, find_project
from perdure.configuration.template import template
from perdure.configuration.trust import trust
from perdure.hosts.folders import user_config_folder


class ConfigGroup(DefaultGroup):
    """`perdure config` alone shows it."""

    default = "show"


@click.group(cls=ConfigGroup, help="Show, check, write and trust the configuration file.")
def command() -> None:
    """Hold the subcommands."""


@command.command("show", help="Print every key in force.")
@surfaced("store", "config")
@click.option("--origin", is_flag=True, help="Also where each one comes from.")
def show_config(surface: Surface, *, origin: bool) -> Ending:
    """Print the keys; a secret is shown as its reference."""
    config = config_of(surface)
    rows = effective(config, {"store.url": surface.flags.store})
    shown = [(row.key, row.value, *([row.origin] if origin else [])) for row in rows]
    headers = ("key", "value", *(["from"] if origin else []))
    return Ending(data=rows, text=table(headers, shown))


@command.command("check", help="Check the configuration; ends 0 or 2.")
@surfaced("config")
def check_config(surface: Surface) -> Ending:
    """Load it."""
    config = config_of(surface)
    files = [str(file) for file in config.files]
    surface.terminal.say(f"{', '.join(files) or 'no file'}: in order", "good")
    return Ending(data={"files": files, "warnings": config.warnings})


@command.command("init", help="Write a commented file with every key at its default.")
@surfaced()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=Path(FILE_NAME))
def init_config(surface: Surface, *, file: Path) -> Ending:
    """Write the file; one that is there is never overwritten."""
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(template())
    except FileExistsError:
        raise UsageProblem(
            f"{str(file)!r} is there already, and is not overwritten", "give another FILE"
        ) from None
    except OSError as error:
        raise UsageProblem(f"{str(file)!r} cannot be written: {error.strerror}") from None
    surface.terminal.say(f"wrote {file}")
    return Ending(data={"file": str(file)})


@command.command("trust", help="Let the project's file, as it is now, set everything.")
@surfaced()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
def trust_config(surface: Surface, *, file: Path | None) -> Ending:
    """Record the file's digest in the user's folder; any later change ends the trust."""
    chosen = file or find_project(Path.cwd())
    if chosen is None or not chosen.is_file():
        raise UsageProblem("there is no perdure.toml here or above", "name the file")
    digest = trust(chosen.absolute(), user_config_folder())
    surface.terminal.say(f"{chosen} is trusted as it is now")
    return Ending(data={"file": str(chosen), "sha256": digest})
