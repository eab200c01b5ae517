"""Where a person's files of perdure live: by the custom of the platform, nothing is created."""

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


def _folder(variable: str, below_home: str) -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / NAME
    base = os.environ.get(variable, "")
    # A relative base is to be ignored, says the base directory specification.
    root = Path(base) if base.startswith("/") else Path.home() / below_home
    return root / NAME
