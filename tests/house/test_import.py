"""Importing perdure has no effect, and loads almost nothing."""

import json
import subprocess
import sys

import pytest

from tests.house.source import SRC

PROBE = """
import json, sys, threading
touched = []
WATCHED = ("socket.", "subprocess.", "sqlite3.connect", "os.mkdir", "os.rename", "os.remove",
           "os.putenv", "os.system", "os.fork", "_thread.start_new_thread", "shutil.", "tempfile.")
def hook(event, args):
    if event.startswith(WATCHED):
        touched.append(event)
    elif event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        touched.append(f"open {args[0]}")
sys.addaudithook(hook)
before = set(sys.modules)
import perdure
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
foreign = sorted(loaded - set(sys.stdlib_module_names) - {"perdure"})
inside = sorted(name for name in sys.modules if name.startswith("perdure."))
print(json.dumps([touched, foreign, inside, threading.active_count()]))
"""


@pytest.fixture(scope="module")
def probe() -> tuple[list[str], list[str], list[str], int]:
    """Import perdure in a fresh interpreter, with every door watched."""
    command = [sys.executable, "-B", "-c", PROBE]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=9)
    assert result.stderr == ""
    touched, foreign, inside, threads = json.loads(result.stdout)
    return touched, foreign, inside, threads


def test_import_touches_nothing(probe: tuple[list[str], list[str], list[str], int]) -> None:
    touched, _, _, threads = probe
    assert touched == []
    assert threads == 1


def test_import_loads_msgspec_and_no_other_library(
    probe: tuple[list[str], list[str], list[str], int],
) -> None:
    _, foreign, _, _ = probe
    # msgspec itself takes typing_extensions when it is there.
    assert set(foreign) <= {"msgspec", "typing_extensions"}


def test_import_loads_no_adapter_that_needs_one(
    probe: tuple[list[str], list[str], list[str], int],
) -> None:
    _, _, inside, _ = probe
    rooms = {name.split(".")[1] for name in inside}
    assert not rooms & {"cli", "web", "mcp", "cluster", "testing"}


def test_import_is_silent() -> None:
    command = [sys.executable, "-c", "import perdure"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=9)
    assert (result.stdout, result.stderr) == ("", "")
    assert SRC.exists()
