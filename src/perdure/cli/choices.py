"""Store and configuration that a command means: flag, environment, files, default (CG-02)."""

from typing import Final

import perdure
from perdure.cli.endings import UsageProblem
from perdure.cli.places import store_url
from perdure.cli.surface import Surface
from perdure.configuration.config import Config

CHECK: Final = "config check"
"""The command that says no more of a wrong file than every other one does."""


def config_of(surface: Surface) -> Config:
    """Load the configuration once a command, and say what of it was not obeyed.

    Raises:
        UsageProblem: with every fault of the files.
    """
    if surface.config is None:
        try:
            surface.config = perdure.load_config(surface.flags.config)
        except perdure.Rejected as error:
            hint = None if surface.command == CHECK else f"see: perdure {CHECK}"
            raise UsageProblem(error.message, hint, code="config") from None
        for warning in surface.config.warnings:
            surface.terminal.say(warning, "warn")
    return surface.config


def store_of(surface: Surface) -> str:
    """Answer the store's URL."""
    return store_url(surface.flags.store, config_of(surface))
