"""The shell tool: what it starts, and what it says about how a command ended."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidArguments, ToolFailed
from perdure.hosts.processes import LocalProcesses
from perdure.hosts.threads import DaemonThreads
from perdure.ports import LaunchingTool, Tool
from perdure.records.launches import Exited, LaunchRef, Lost
from perdure.toolkits.shell import READ_BYTES_MAX, ShellTool, clean, shell_tools
from tests.unit.toolkits.context import Context

REF = LaunchRef(dir="session/shell-0000", nonce=f"nonce-of-shell-{os.getpid()}")


def shell_of(root: Path, *env: str) -> ShellTool:
    (shell,) = shell_tools(root, env=env)
    return shell


async def run(root: Path, shell: ShellTool | None = None, **args: Any) -> Context:
    """Launch, wait, report: what the tool kind does when nothing goes wrong."""
    shell = shell_of(root) if shell is None else shell
    host, ctx = LocalProcesses(root.parent / "launches", DaemonThreads()), Context()
    checked = shell.check(args)
    started = await host.launch(shell.launch(checked, REF))
    ended = started if isinstance(started, Exited) else await host.wait(REF)
    await shell.report(checked, ctx, ended, timed_out=False, host=host, ref=REF)
    return ctx


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def test_it_is_a_tool_that_launches(root: Path) -> None:
    tool: Tool = shell_of(root)
    assert isinstance(tool, LaunchingTool)
    assert set(tool.parameters["properties"]) == {"command", "timeout_s", "cwd"}
    assert tool.parameters["required"] == ["command"]


@pytest.mark.spec("KT-16")
async def test_the_result_is_the_output_and_the_exit(root: Path) -> None:
    ctx = await run(root, command="echo out; echo err >&2; pwd; exit 3")
    assert ctx.out.text == f"out\nerr\n{root}\nexit code 3"
    assert ctx.out.is_error
    seconds = ctx.out.kept_details.pop("seconds")
    assert 0 <= seconds < 5
    size = len(f"out\nerr\n{root}\n")
    assert ctx.out.kept_details == {"exit": 3, "bytes": size, "timed_out": False}


@pytest.mark.spec("KT-16")
async def test_exit_0_is_no_error(root: Path) -> None:
    ctx = await run(root, command="printf no-newline")
    assert (ctx.out.text, ctx.out.is_error) == ("no-newline\nexit code 0", False)


@pytest.mark.spec("KT-16")
async def test_a_signal_is_named(root: Path) -> None:
    ctx = await run(root, command="kill -TERM $$")
    assert (ctx.out.text, ctx.out.is_error) == ("signal SIGTERM", True)
    assert ctx.out.kept_details["exit"] == "SIGTERM"


@pytest.mark.spec("KT-16")
async def test_the_environment_is_what_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "PERDURE_TOKEN", "LC_ALL", "EXTRA"):
        monkeypatch.setenv(name, "C")
    ctx = await run(root, shell_of(root, "EXTRA", "ABSENT"), command="env; cat; echo end")
    lines = ctx.out.text.splitlines()
    names = {line.partition("=")[0] for line in lines if "=" in line}
    shells = {"PWD", "OLDPWD", "SHLVL", "_"}
    allowed = {"PATH", "HOME", "LANG", "TZ", "TMPDIR", "TERM", "EXTRA", "PERDURE_LAUNCH"}
    assert {name for name in names - shells if not name.startswith("LC_")} <= allowed
    assert {"PATH", "EXTRA", "LC_ALL"} <= names
    assert "TERM=dumb" in lines
    # Standard input was empty: `cat` ended at once.
    assert lines[-2:] == ["end", "exit code 0"]


@pytest.mark.spec("KT-16")
@pytest.mark.parametrize("cwd", ["..", "a/../..", "/", "~", "a\0", "/etc"])
def test_a_folder_outside_is_refused(root: Path, cwd: str) -> None:
    with pytest.raises(ToolFailed, match=re.escape(repr(cwd))):
        shell_of(root).launch({"command": "true", "cwd": cwd}, REF)


@pytest.mark.spec("KT-16")
async def test_a_folder_inside_is_taken(root: Path) -> None:
    (root / "in").mkdir()
    assert (await run(root, command="pwd", cwd="in")).out.text == f"{root}/in\nexit code 0"


@pytest.mark.spec("KT-16")
async def test_a_folder_that_is_a_link_outside_is_refused(root: Path) -> None:
    (root / "out").symlink_to("/")
    ctx = await run(root, command="pwd", cwd="out")
    assert ctx.out.text.startswith("could not start: folder")
    assert (ctx.out.kept_details["exit"], ctx.out.is_error) == (127, True)


@pytest.mark.spec("KT-16")
@pytest.mark.parametrize(
    "bad", [{"timeout_s": 0}, {"timeout_s": 601}, {"command": ""}, {"command": 5}, {"x": 1}]
)
def test_arguments_outside_the_bounds_are_refused(root: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArguments, match=next(iter(bad))):
        shell_of(root).check({"command": "true", **bad})


def test_the_time_limit_is_given_in_milliseconds(root: Path) -> None:
    shell = shell_of(root)
    assert shell.timeout_ms(shell.check({"command": "true"})) == 120_000
    assert shell.timeout_ms(shell.check({"command": "true", "timeout_s": "600"})) == 600_000


@pytest.mark.spec("KT-18")
async def test_a_stopped_command_says_so_with_its_output(root: Path) -> None:
    shell, ctx = shell_of(root), Context()
    host = LocalProcesses(root.parent / "launches", DaemonThreads())
    args = {"command": "echo so far; sleep 60", "timeout_s": 7}
    await host.launch(shell.launch(args, REF))
    while not await host.log(REF, offset=0, limit=9):
        pass
    ended = await host.stop(REF, grace_ms=500)
    await shell.report(args, ctx, ended, timed_out=True, host=host, ref=REF)
    assert ctx.out.text == "so far\nstopped after 7 s\nsignal SIGTERM"
    assert (ctx.out.is_error, ctx.out.kept_details["timed_out"]) == (True, True)


@pytest.mark.spec("KT-19")
async def test_what_was_left_running_is_told_with_the_way_to_keep_it(root: Path) -> None:
    ctx = await run(root, command="sleep 60 & echo started")
    assert ctx.out.text.startswith("started\n[1 process(es)")
    assert "job_start" in ctx.out.text
    assert not ctx.out.is_error


@pytest.mark.spec("KT-17", "TL-20")
async def test_the_tail_is_kept_with_the_true_total(root: Path) -> None:
    ctx = await run(root, command="yes 123456789é | head -n 400000; echo END")
    total = 400_000 * 12 + 4
    assert len(ctx.out.text.encode()) <= 65_536
    *_, last, mark, ending = ctx.out.text.splitlines()
    assert (last, mark, ending) == ("END", f"[truncated: {total} bytes total]", "exit code 0")
    assert "\ufffd" not in ctx.out.text
    assert ctx.out.kept_details["bytes"] == total


class Recorded:
    """A process host that has nothing but one ended command's output."""

    adopts = False

    def __init__(self, output: bytes) -> None:
        self._output = output

    async def log(self, ref: LaunchRef, *, offset: int, limit: int) -> bytes:
        return self._output[offset:][:limit]

    async def _nothing(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the command has ended")

    launch = reconcile = wait = stop = forget = _nothing


@pytest.mark.spec("KT-17")
@pytest.mark.parametrize("shift", range(14))
async def test_a_character_at_the_edge_is_whole_or_left_out(root: Path, shift: int) -> None:
    coloured = "\x1b[31m😀\x1b[0m".encode()
    output = coloured * (READ_BYTES_MAX // len(coloured) + 2) + b"z" * shift
    ctx = Context()
    ended = Exited(code=0, ended_ms=0, bytes=len(output))
    host = Recorded(output)
    await shell_of(root).report({}, ctx, ended, timed_out=False, host=host, ref=REF)
    assert "\ufffd" not in ctx.out.text
    assert f"[truncated: {len(output)} bytes total]" in ctx.out.text


@pytest.mark.spec("KT-17")
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x1b[31mred\x1b[0m \x1b[1;38;5;9mx", "red x"),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", "ab"),
        (b"\x1bP1;2q data \x1b\\z", "z"),
        (b"a\x1b(Bb\x1b=c\x1bMd", "abcd"),
        (b"10%\r50%\r\n100%\rdone", "10%\n50%\n100%\ndone"),
        ("c1 \x9b31m\x85 tab\tend\x07\x08".encode(), "c1 31m tab\tend"),
        (b"open \x1b]0;no end\nnext", "open 0;no end\nnext"),
        (b"W\0s\0", "W\0s\0"),
        (b"\xff\xfe literal \\u0000", "\ufffd\ufffd literal \\u0000"),
    ],
)
def test_output_is_decoded_without_control_sequences(raw: bytes, text: str) -> None:
    assert clean(raw) == text


@given(st.binary(max_size=300))
def test_any_bytes_become_text_without_controls(raw: bytes) -> None:
    text = clean(raw)
    text.encode()
    assert not re.search(r"[\x01-\x08\x0b-\x1f\x7f-\x9f]", text)


async def test_a_lost_command_is_unknown_and_an_error(root: Path) -> None:
    shell, ctx = shell_of(root), Context()
    host = LocalProcesses(root.parent / "launches", DaemonThreads())
    await shell.report({"command": "x"}, ctx, Lost(), timed_out=False, host=host, ref=REF)
    assert ctx.out.is_error
    assert "unknown" in ctx.out.text
    assert ctx.out.kept_details == {
        "exit": None,
        "seconds": None,
        "bytes": None,
        "timed_out": False,
    }


async def test_a_command_is_never_run_inside_the_call(root: Path) -> None:
    with pytest.raises(ToolFailed, match="process host"):
        await shell_of(root).execute({"command": "true"}, Context())


def test_a_command_that_is_too_long_is_refused(root: Path) -> None:
    with pytest.raises(ToolFailed, match="65536"):
        shell_of(root).launch({"command": "x" * 65_537}, REF)
