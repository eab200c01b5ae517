"""A person's desk: the installed command in child processes, in a home of its own."""

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema

import perdure
from perdure.cli.commands.schemas import schema_of
from perdure.cli.last import FOLDER

ENVELOPE = schema_of("envelope")
EVENTS = schema_of("events")

PERDURE = str(Path(sys.executable).with_name("perdure"))
WAIT_S = 25
"""Long, for a machine that does much else; nothing here waits when all goes well."""


class Ended(NamedTuple):
    """How a child process ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Parse the one document of `--json`, which fits its schema (CM-05)."""
        assert self.out.count("\n") == 1, self.out
        assert self.out.endswith("\n")
        document = json.loads(self.out)
        jsonschema.validate(document, ENVELOPE)
        assert document["exit_code"] == self.code
        return document

    @property
    def events(self) -> list[dict[str, Any]]:
        """Parse the lines of `--json-events`, each alone."""
        events = [json.loads(line) for line in self.out.splitlines()]
        for event in events:
            jsonschema.validate(event, EVENTS)
        return events

    @property
    def last_words(self) -> str:
        """Answer the last line on standard error."""
        return self.err.rstrip("\n").rpartition("\n")[2]


class Desk:
    """Run `perdure` with a home, a data folder and a current folder below one temporary place."""

    def __init__(self, place: Path) -> None:
        self.home = place / "home"
        self.data = place / "data"
        self.folder = place / "project"
        self.home.mkdir()
        self.folder.mkdir()
        self.env = {
            "HOME": str(self.home),
            "PATH": f"{Path(PERDURE).parent}{os.pathsep}{os.environ['PATH']}",
            "PERDURE_HOME": str(self.data),
            # The package that the tests import, also where another one is installed.
            "PYTHONPATH": str(Path(perdure.__file__).parents[1]),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "LANG": "C.UTF-8",
            "TERM": "xterm",
        }
        if "PYTHONPATH" in os.environ:  # a checkout that is not the installed one tests itself
            self.env["PYTHONPATH"] = os.environ["PYTHONPATH"]

    @property
    def store(self) -> Path:
        """Answer the file of the default store."""
        return self.data / "sessions.db"

    def script(self, *replies: dict[str, Any], name: str = "script.json", chunk: int = 0) -> str:
        """Write a script and answer its model text."""
        file = self.home / name
        file.write_text(json.dumps({"replies": list(replies), "chunk": chunk}))
        return f"scripted:{file}"

    def make(self, *names: str) -> None:
        """Make sessions of one answered input each, quicker than by child processes."""
        self.data.mkdir(mode=0o700, exist_ok=True)
        model = self.script({"text": "Hello there.", "uses": 0})

        async def make() -> None:
            for name in names:
                async with perdure.open(
                    f"sqlite:{self.store}", session=name, model=model
                ) as harness:
                    await harness.set_value(FOLDER, str(self.folder))
                    await (await harness.root()).prompt("hi")

        perdure.run(make())

    def fifo(self, name: str) -> Callable[[], str]:
        """Make a FIFO in the folder; answers what waits for one text written into it."""
        file = self.folder / name
        os.mkfifo(file)
        # Both ends are held, so that neither side waits for the other to open it.
        handle = os.open(file, os.O_RDWR)

        def read() -> str:
            ready, _, _ = select.select([handle], [], [], WAIT_S)
            assert ready, f"nothing was written into {name}"
            return os.read(handle, 4_096).decode()

        return read

    def config(self, text: str) -> Path:
        """Write the user's configuration file."""
        folder = self.home / "config" / "perdure"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "perdure.toml"
        file.write_text(text)
        return file

    def run(
        self, *words: str, typed: str | bytes | None = None, wait_s: float = WAIT_S, **env: str
    ) -> Ended:
        """Run to the end."""
        data = typed.encode() if isinstance(typed, str) else typed
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if data is None else {"input": data}
        ended = subprocess.run(
            [PERDURE, *words],
            env={**self.env, **env},
            cwd=self.folder,
            capture_output=True,
            timeout=wait_s,
            check=False,
            **given,
        )
        return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())

    def shell(self, line: str, **env: str) -> Ended:
        """Run a line of bash."""
        ended = subprocess.run(
            ["bash", "-c", line],
            env={**self.env, **env},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def start(self, *words: str, **env: str) -> "Running":
        """Start and go on."""
        return Running(
            subprocess.Popen(
                [PERDURE, *words],
                env={**self.env, **env},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # A test run in the background ignores Ctrl-C; a person's command does not.
                preexec_fn=hear_signals,  # noqa: PLW1509 - it only calls signal.signal
            )
        )

    def on_terminal(self, *words: str, typed: str = "", **env: str) -> tuple[int, str]:
        """Run on a pseudo-terminal; answers exit code and everything shown."""
        terminal = self.terminal(*words, **env)
        terminal.type(typed)
        return terminal.end()

    def terminal(self, *words: str, **env: str) -> "TypedTerminal":
        """Start on a pseudo-terminal of its own, as a shell does."""
        return self._on_pty([PERDURE, *words], **env)

    def shell_terminal(self) -> "TypedTerminal":
        """Start a shell on a pseudo-terminal, with job control, as a person has it."""
        return self._on_pty(["bash", "--norc", "--noprofile", "-i"], PS1="$ ")

    def _on_pty(self, line: list[str], **env: str) -> "TypedTerminal":
        main, child = pty.openpty()
        process = subprocess.Popen(
            line,
            env={**self.env, **env},
            cwd=self.folder,
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            preexec_fn=take_terminal,  # noqa: PLW1509 - signal and ioctl calls only
        )
        os.close(child)
        return TypedTerminal(process, main)


class TypedTerminal:
    """A child process on a pseudo-terminal, and the keys of a person."""

    def __init__(self, process: "subprocess.Popen[bytes]", main: int) -> None:
        self._process = process
        self._main = main
        self._shown = b""
        self._seen = 0

    @property
    def shown(self) -> str:
        """Answer everything shown so far."""
        return self._shown.decode(errors="replace")

    def until(self, words: str) -> None:
        """Wait until words are shown."""
        self._until(words, 0)

    def until_again(self, words: str) -> None:
        """Wait until words are shown after what was waited for before."""
        self._until(words, self._seen)

    def _until(self, words: str, start: int) -> None:
        while (found := self._shown.find(words.encode(), start)) < 0:
            ready, _, _ = select.select([self._main], [], [], WAIT_S)
            assert ready, f"{words!r} was not shown; it showed {self._shown!r}"
            self._shown += os.read(self._main, 4_096)
        self._seen = max(self._seen, found + len(words.encode()))

    def hang_up(self) -> int:
        """Close the terminal, as a lost connection does; answers the exit code."""
        os.close(self._main)
        return self._process.wait(WAIT_S)

    def type(self, keys: str) -> None:
        """Press keys; `\\x03` is Ctrl-C."""
        os.write(self._main, keys.encode())

    def end(self) -> tuple[int, str]:
        """Wait for the end; answers exit code and everything shown."""
        try:
            while block := os.read(self._main, 4_096):
                self._shown += block
        except OSError:
            pass  # the child closed its side
        os.close(self._main)
        return self._process.wait(WAIT_S), self._shown.decode(errors="replace")


class Running:
    """A child process that still runs."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._seen = {"out": b"", "err": b""}

    def until(self, words: str, stream: str = "err") -> None:
        """Wait until the child has said something."""
        file = self.process.stdout if stream == "out" else self.process.stderr
        assert file is not None
        while words.encode() not in self._seen[stream]:
            ready, _, _ = select.select([file], [], [], WAIT_S)
            assert ready, f"{words!r} was not said; it said {self._seen[stream]!r}"
            block = os.read(file.fileno(), 4_096)
            assert block, f"{words!r} was not said; it said {self._seen[stream]!r}"
            self._seen[stream] += block

    def said(self, stream: str = "err") -> str:
        """Answer what was heard so far."""
        return self._seen[stream].decode()

    def tell(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> Ended:
        """Wait for the end."""
        out, err = self.process.communicate(timeout=WAIT_S)
        seen_out, seen_err = self._seen["out"] + out, self._seen["err"] + err
        return Ended(self.process.returncode, seen_out.decode(), seen_err.decode())


def hear_signals() -> None:
    """Undo what the parent ignores."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def take_terminal() -> None:
    """Make standard input the terminal whose Ctrl-C this process hears."""
    hear_signals()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
