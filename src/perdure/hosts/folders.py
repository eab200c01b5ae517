"""Where files of perdure live: a person's by the custom of the platform, a store's beside it."""

import getpass
import os
import sys
from pathlib import Path
from typing import Final

NAME: Final = "perdure"


def user_data_folder() -> Path:
    """Answer the folder for sessions and model files."""
    return _folder("XDG_DATA_HOME", ".local/share")


def user_config_folder() -> Path:
    """Answer the folder for the user's configuration."""
    return _folder("XDG_CONFIG_HOME", ".config")


def user_name() -> str:
    """Name the user that this process runs as, by number when nothing names it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def launch_root(url: str) -> Path | None:
    """Answer where a store's commands are launched, None for one without a place (SN-13)."""
    scheme, _, place = url.partition(":")
    if scheme != "sqlite":
        return None
    file = Path(place).expanduser().absolute()
    return file.with_name(file.name + ".launch")


def _folder(variable: str, below_home: str) -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / NAME
    base = os.environ.get(variable, "")
    # A relative base is to be ignored, says the base directory specification.
    root = Path(base) if base.startswith("/") else Path.home() / below_home
    return root / NAME
