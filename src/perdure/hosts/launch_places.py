"""The folders that commands are launched in: made for a store without a place, removed with it."""

import shutil
import tempfile
from pathlib import Path

from perdure.hosts.folders import launch_root


def temporary_place() -> Path:
    """Make a folder for the commands of a store that has no place of its own; blocks."""
    return Path(tempfile.mkdtemp(prefix="perdure-"))


def remove_launches(url: str, session_id: str) -> None:
    """Remove what a deleted session's commands left beside the store (SN-08); blocks."""
    place = launch_root(url)
    if place is not None:
        remove_place(place / session_id)


def remove_place(place: Path) -> None:
    """Remove a folder with all that is in it, as far as that goes; blocks."""
    shutil.rmtree(place, ignore_errors=True)
