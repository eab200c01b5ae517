"""The tutorial's commands, run as one script, print what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks
from tests.house.source import ROOT

TUTORIAL = ROOT / "docs" / "tutorial.md"
WAIT_S = 50


def is_shown(line: str, out: str) -> bool:
    """Say whether a line of the page stands in the output; `…` stands for anything."""
    pattern = ".*".join(re.escape(piece) for piece in line.split("…"))
    return re.search(f"^{pattern}$", out, re.MULTILINE) is not None


@pytest.mark.timeout(60)
def test_the_tutorial_is_true(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    script = "".join(text for _, text in blocks(TUTORIAL, "sh"))
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "PERDURE_HOME": str(tmp_path / "data"),
            "LANG": "C.UTF-8",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=WAIT_S,
        check=False,
        text=True,
    )
    lines = [line for _, text in blocks(TUTORIAL, "text") for line in text.splitlines()]
    assert [line for line in lines if not is_shown(line, ended.stdout)] == [], ended.stdout
    assert ended.stdout.count("\nended\n") == 1
    assert ended.returncode == 0
