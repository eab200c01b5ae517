"""The effect counter sees every execution, whoever dies."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.testing.effect_counter import EffectCounter
from tests.unit.toolkits.context import Context


async def test_each_execution_of_its_tool_is_one_line(tmp_path: Path) -> None:
    counter = EffectCounter(tmp_path / "effects")
    assert counter.count("act:a") == 0
    tool = counter.tool(replay="safe")
    for key in ("a", "b", "a"):
        await tool.execute({"key": key}, Context())
    assert counter.counts() == {"act:a": 2, "act:b": 1}
    assert (tool.name, tool.replay) == ("act", "safe")


def test_a_line_survives_sigkill_and_writers_do_not_mix(tmp_path: Path) -> None:
    script = (
        "import os, sys; from perdure.testing.effect_counter import EffectCounter\n"
        "counter = EffectCounter(sys.argv[1])\n"
        "for _ in range(50): counter.add('x' * 100)\n"
        "os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "effects"
    running = [subprocess.Popen([sys.executable, "-c", script, str(path)]) for _ in range(2)]
    assert [one.wait() for one in running] == [-signal.SIGKILL] * 2
    assert EffectCounter(path).counts() == {"x" * 100: 100}


@pytest.mark.parametrize("name", ["", "two\nlines"])
def test_a_name_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        EffectCounter(tmp_path / "effects").add(name)
