"""The shell tool: one command, run by the supervised launch, its true exit told (KT-16 to KT-20).

The tool says what to start and what the end means; launching, time limit, stop and recovery are
the tool kind's (TL-33), the process tree is the `ProcessHost`'s.
"""

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta

from perdure.errors import ToolFailed
from perdure.ports import Approval, ApprovalFunction, OutputPolicy, ProcessHost, Replay, ToolContext
from perdure.records.launches import Exited, LaunchRef, LaunchSpec, Lost
from perdure.toolkits.define import FunctionTool, tool

TIMEOUT_S_MAX: Final = 600
TIMEOUT_S_DEFAULT: Final = 120
LOG_BYTES_MAX: Final = 1024 * 1024
"""Bytes of output kept on disk from its beginning; the last ones are kept besides (KT-17)."""

READ_BYTES_MAX: Final = 160 * 1024
"""Bytes read from the end of the output: what is kept and what control sequences take."""

TRAILER_BYTES: Final = 1024
"""Left free below the cap for the lines this tool adds."""

COMMAND_BYTES_MAX: Final = 64 * 1024
ENVIRONMENT_NAMES: Final = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
"""Variables a command gets, with every `LC_*`, `TERM=dumb`, and the names a host adds (KT-16)."""

_MS_PER_S: Final = 1000

_CONTROL: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colour, cursor, erase
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: title, hyperlink, clipboard
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"  # two-character sequences
    r"|[\x01-\x08\x0b-\x1f\x7f-\x9f]"  # what is left of C0 and C1, not tab, newline, NUL
)
"""Terminal control sequences; each alternative reads on without going back (SX-14)."""


def shell_tools(root: str | os.PathLike[str], *, env: Sequence[str] = ()) -> tuple["ShellTool"]:
    """Answer the shell tool for a root folder.

    Args:
        root: folder commands run in; `cwd` is a folder inside it.
        env: names of further environment variables a command gets.
    """
    return (ShellTool(os.fspath(root), tuple(env)),)


def _face() -> FunctionTool:
    """Make the face: schema, description, checks. Made on use: a schema costs import time."""

    @tool(name="shell", replay="never", approval="ask")
    def shell(
        command: Annotated[str, Meta(description="command line for /bin/sh", min_length=1)],
        timeout_s: Annotated[
            int, Meta(description="seconds it may run", ge=1, le=TIMEOUT_S_MAX)
        ] = TIMEOUT_S_DEFAULT,
        cwd: Annotated[str, "folder to run in, relative to the root"] = ".",
    ) -> None:
        """Run a shell command and return its output, stdout and stderr together, and its exit code.

        Standard input is empty. Only the last 64 KiB of output are returned. Processes that still
        run when the command ends are stopped with it.
        """
        raise ToolFailed(
            f"{command!r} (at most {timeout_s} s, in {cwd!r}) was not launched: "
            "the shell tool needs a process host"
        )

    return shell


class ShellTool:
    """One command in a folder inside the root; a `Tool` and a `LaunchingTool`."""

    def __init__(self, root: str, env: tuple[str, ...] = ()) -> None:
        self._root = root if root.startswith("/") else os.path.abspath(root)  # noqa: PTH100 - text
        self._env = env
        self._face = _face()

    def __repr__(self) -> str:
        return f"<tool shell in {self._root}>"

    @property
    def name(self) -> str:
        """Answer `shell`."""
        return self._face.name

    @property
    def description(self) -> str:
        """Answer what it does, for the model."""
        return self._face.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Answer the schema of command, timeout_s and cwd."""
        return self._face.parameters

    @property
    def replay(self) -> Replay:
        """Answer `never`: nobody knows what a command did (KT-20)."""
        return self._face.replay

    @property
    def approval(self) -> Approval | ApprovalFunction:
        """Answer `ask` (KT-20)."""
        return self._face.approval

    @property
    def output(self) -> OutputPolicy:
        """Answer the tail of 64 KiB."""
        return self._face.output

    def check(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer the arguments coerced; raises InvalidArguments with the path."""
        return self._face.check(args)

    async def execute(self, args: Mapping[str, Any], ctx: ToolContext) -> object:
        """Fail: a command is launched, never run inside the call. Raises ToolFailed."""
        return await self._face.execute(args, ctx)

    def launch(self, args: Mapping[str, Any], ref: LaunchRef) -> LaunchSpec:
        """Answer what to start: `/bin/sh -c command`, in a folder inside the root.

        Raises:
            ToolFailed: for a folder outside, or a command too long to pass on.
        """
        command: str = args["command"]
        if len(command.encode("utf-8", "replace")) > COMMAND_BYTES_MAX:
            raise ToolFailed(f"the command is longer than {COMMAND_BYTES_MAX} bytes")
        return LaunchSpec(
            ref=ref,
            argv=("/bin/sh", "-c", command),
            cwd=self._folder(args.get("cwd", ".")),
            env=self._environment(),
            output_bytes_max=LOG_BYTES_MAX,
            root=self._root,
        )

    def timeout_ms(self, args: Mapping[str, Any]) -> int:
        """Answer how long the command may run, in milliseconds."""
        return args.get("timeout_s", TIMEOUT_S_DEFAULT) * _MS_PER_S

    async def report(
        self,
        args: Mapping[str, Any],
        ctx: ToolContext,
        ended: Exited | Lost,
        *,
        timed_out: bool,
        host: ProcessHost,
        ref: LaunchRef,
    ) -> None:
        """Write the end of the output, then how the command ended; an error unless it exited 0.

        However much was written, only its last part is read; `details` tell the true total.
        """
        raw, total = await _last_output(host, ref, ended)
        text = clean(raw)
        body = _last_bytes(text, self.output.bytes_max - TRAILER_BYTES)
        is_cut = len(body) < len(text) or len(raw) < (total or 0)
        lines = [f"[truncated: {_count(total)} bytes total]"] if is_cut else []
        lines += _ending(ended, self.timeout_ms(args) // _MS_PER_S, timed_out=timed_out)
        gap = "\n" if body and not body.endswith("\n") else ""
        ctx.out.write(body + gap + "\n".join(lines))
        ctx.out.details(
            {
                "exit": _exit(ended),
                "seconds": ended.ran_ms / _MS_PER_S if isinstance(ended, Exited) else None,
                "bytes": total,
                "timed_out": timed_out,
            }
        )
        if timed_out or not isinstance(ended, Exited) or ended.code != 0:
            ctx.out.error()

    def _folder(self, cwd: str) -> str:
        joined = posixpath.normpath(posixpath.join(self._root, cwd))
        root = posixpath.normpath(self._root)
        is_inside = joined == root or joined.startswith(root.rstrip("/") + "/")
        if "\0" in cwd or cwd.startswith("~") or not is_inside:
            raise ToolFailed(f"folder {cwd!r} is refused; accepted: a folder inside {root!r}")
        return joined

    def _environment(self) -> dict[str, str]:
        names = {*ENVIRONMENT_NAMES, *self._env}
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in names or name.startswith("LC_")
        }
        return {**kept, "TERM": "dumb"}


def clean(raw: bytes) -> str:
    """Decode output: U+FFFD for what is no UTF-8, no control sequences, LF line ends (KT-17).

    A NUL stays for the sink's door to name (VD-16). A lone carriage return ends a line.
    """
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", text)


async def _last_output(
    host: ProcessHost, ref: LaunchRef, ended: Exited | Lost
) -> tuple[bytes, int | None]:
    """Read the end of the output; the total is None when nobody is left who counted it."""
    if not isinstance(ended, Exited):
        raw = await host.log(ref, offset=-READ_BYTES_MAX, limit=READ_BYTES_MAX)
        return _whole_start(raw, is_start=len(raw) < READ_BYTES_MAX), None
    offset = max(0, ended.bytes - READ_BYTES_MAX)
    raw = await host.log(ref, offset=offset, limit=READ_BYTES_MAX)
    return _whole_start(raw, is_start=offset == 0), ended.bytes


def _whole_start(raw: bytes, *, is_start: bool) -> bytes:
    """Leave out the rest of a character that was cut in two."""
    if is_start:
        return raw
    for at in range(min(4, len(raw))):
        if raw[at] & 0xC0 != 0x80:
            return raw[at:]
    return raw


def _last_bytes(text: str, limit: int) -> str:
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    return encoded[-limit:].decode("utf-8", "ignore")


def _count(total: int | None) -> str:
    return "unknown" if total is None else str(total)


def _exit(ended: Exited | Lost) -> int | str | None:
    if isinstance(ended, Lost):
        return None
    if ended.code is not UNSET:
        return ended.code
    # A command that could not start has the shell's own code for it (D06).
    return ended.signal if ended.signal is not UNSET else 127


def _ending(ended: Exited | Lost, limit_s: int, *, timed_out: bool) -> list[str]:
    lines = [f"stopped after {limit_s} s"] if timed_out else []
    if isinstance(ended, Lost):
        return [*lines, "how it ended is unknown; nothing of it runs any more"]
    if ended.left:
        lines.append(
            f"[{ended.left} process(es) it left running were stopped with it; "
            "to keep something running, start it with job_start]"
        )
    if ended.error is not UNSET:
        return [*lines, f"could not start: {ended.error}", "exit code 127"]
    if ended.signal is not UNSET:
        return [*lines, f"signal {ended.signal}"]
    return [*lines, f"exit code {ended.code}"]
