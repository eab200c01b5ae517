"""The supervisor: runs one command for a harness that may be killed at any moment (D06).

Started as `python -I -S supervisor.py FOLDER`, in a session of its own. It needs nothing but the
standard library, is imported only for how it reads the process table, and talks by files:

    spec.json      what to run, written before the start
    claim          created exclusively by whoever decides: the supervisor runs it, or nobody will
    alive          locked for life: the lock is the proof of life, and the kernel releases it
    identity.json  the command's pid, start and boot, written before its first instruction
    log, tail-N    output as written: the first bytes up to the cap, then the last ones from byte N
    exit.json      how it ended, written by rename, after every process of the command is gone
    revoked        "never start", written by a harness that holds the lock
    stopped        "a stop is asked for", written by a harness before it signals

On Linux orphans of the command become children of the supervisor, so a process that calls setsid
or forks twice is found (KT-19). On macOS only its process group is found; that path is untested.
"""

import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import Any, Final, NamedTuple, NoReturn

MARK: Final = "PERDURE_LAUNCH"
"""Environment variable with the launch's nonce: finds its processes when all else died."""

LEFTOVER_S_MAX: Final = 1.0
"""How long a process may hold the output, or live, after the command ended (KT-19)."""

TAIL_SEGMENT_BYTES: Final = 256 * 1024
"""Output beyond the log's cap is kept in two rotating files of this size: 256 KiB at least."""

READ_BYTES: Final = 64 * 1024
EXIT_ROOM_BYTES: Final = 1024
"""Taken on disk before the start, so that a full disk cannot lose how the command ended."""

ERROR_CHARACTERS_MAX: Final = 200
KILL_ROUNDS_MAX: Final = 500
KILL_ROUND_MS: Final = 10
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_MS_PER_S: Final = 1000


class ProcessFacts(NamedTuple):
    """One row of the process table: who it is and where it belongs."""

    pid: int
    state: str
    parent: int
    group: int
    start: str


def process_facts(pid: int) -> ProcessFacts | None:
    """Read a process from procfs (Linux); None when there is none of that number.

    `start` is in clock ticks since boot: no clock change moves it.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs 10 ms of start
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return ProcessFacts(
        pid, fields[0].decode(), int(fields[1]), int(fields[2]), fields[19].decode()
    )


def all_processes() -> list[ProcessFacts]:
    """Read the whole process table (Linux)."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - as above
    return [facts for pid in pids if (facts := process_facts(pid)) is not None]


def descendants(ancestor: int, table: list[ProcessFacts]) -> list[ProcessFacts]:
    """List the living processes below one process; zombies are ended and left out."""
    below = {ancestor}
    grown = True
    while grown:
        more = {one.pid for one in table if one.parent in below} - below
        below |= more
        grown = bool(more)
    return [one for one in table if one.pid in below - {ancestor} and one.state not in "ZX"]


def send(target: ProcessFacts, number: int) -> bool:
    """Signal a process through a handle that cannot mean another one; False when it is gone."""
    try:
        handle = os.pidfd_open(target.pid)
    except OSError:
        return False
    try:
        now = process_facts(target.pid)
        if now is None or now.start != target.start:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def start_of(pid: int) -> str:
    """Answer when a living process started, in a form without colons; empty when there is none.

    Clock ticks since boot on Linux, the second that `ps` shows on macOS (untested).
    """
    if sys.platform == "linux":
        facts = process_facts(pid)
        return "" if facts is None or facts.state in "ZX" else facts.start
    return _ask("/bin/ps", "-o", "lstart=", "-p", str(pid)).replace(":", ".").replace(" ", "_")


def _ask(*argv: str) -> str:
    answer, answer_end = os.pipe()
    pid = os.posix_spawn(argv[0], argv, {}, file_actions=[(os.POSIX_SPAWN_DUP2, answer_end, 1)])
    os.close(answer_end)
    text = os.read(answer, READ_BYTES)
    os.close(answer)
    os.waitpid(pid, 0)
    return text.decode().strip()


def boot_id() -> str:
    """Answer what names this boot of the machine; a macOS session UUID there (untested)."""
    if sys.platform != "linux":
        return _ask("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123 - as above
        return file.read().strip()


def _create(name: str, flags: int = 0) -> int:
    return os.open(name, os.O_CREAT | os.O_WRONLY | flags, 0o600)


def _write_whole(name: str, content: dict[str, Any]) -> None:
    """Replace a file in one step, on disk before it has its name."""
    temporary = _create(f"{name}.tmp")
    text = json.dumps(content).encode()
    os.pwrite(temporary, text, 0)
    os.ftruncate(temporary, len(text))
    os.fsync(temporary)
    os.close(temporary)
    os.rename(f"{name}.tmp", name)  # noqa: PTH104 - pathlib costs 10 ms of start
    folder = os.open(".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


class _Log:
    """Output on disk: bounded, with the true total counted, however much is written."""

    def __init__(self, bytes_max: int) -> None:
        self.total = 0
        self._bytes_max = bytes_max
        self._file = _create("log", os.O_APPEND)
        self._tail = -1
        self._segments: list[int] = []
        self._is_full = False

    def write(self, data: bytes) -> None:
        room = max(0, self._bytes_max - self.total)
        self._append(self._file, data[:room])
        rest, at = data[room:], self.total + min(room, len(data))
        while rest:
            if not self._segments or at - self._segments[-1] >= TAIL_SEGMENT_BYTES:
                self._rotate(at)
            piece = rest[: TAIL_SEGMENT_BYTES - (at - self._segments[-1])]
            self._append(self._tail, piece)
            rest, at = rest[len(piece) :], at + len(piece)
        self.total += len(data)

    def _append(self, file: int, data: bytes) -> None:
        if not data or self._is_full:
            return
        try:
            os.write(file, data)
        except OSError:
            # A full disk ends the log, not the command: its pipe is still drained and counted.
            self._is_full = True

    def _rotate(self, at: int) -> None:
        if self._tail >= 0:
            os.close(self._tail)
        while len(self._segments) > 1:
            os.unlink(f"tail-{self._segments.pop(0)}")  # noqa: PTH108 - as above
        self._segments.append(at)
        try:
            self._tail = _create(f"tail-{at}", os.O_APPEND)
        except OSError:
            self._is_full = True

    def sync(self) -> None:
        os.fsync(self._file)


class _Child(NamedTuple):
    """The command, held at its gate."""

    pid: int
    output: int
    gate: int
    failure: int


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _fork(spec: dict[str, Any], environment: dict[str, str]) -> _Child:
    """Fork the command; it executes nothing until one byte comes through the gate."""
    output, output_end = os.pipe()
    gate_end, gate = os.pipe()
    failure, failure_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(gate)
        _run(spec, environment, output=output_end, gate=gate_end, failure=failure_end)
    for end in (output_end, gate_end, failure_end):
        os.close(end)
    return _Child(pid, output, gate, failure)


def _run(
    spec: dict[str, Any], environment: dict[str, str], *, output: int, gate: int, failure: int
) -> NoReturn:
    """Become the command, in the forked child; never returns to the supervisor's code."""
    try:
        os.setpgid(0, 0)
        # Set before the gate opens: should the supervisor die first, the closed gate says so.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.read(gate, 1):
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(spec["cwd"])
            os.execvpe(spec["argv"][0], spec["argv"], environment)  # noqa: S606 - its purpose
    except (OSError, ValueError) as error:
        os.write(failure, str(error).encode(errors="replace"))
    finally:
        os._exit(127)


class _Watch:
    """Copies output and reaps, until the command and everything it started are gone."""

    def __init__(self, child: _Child, log: _Log, wake: int) -> None:
        self.child = child
        self.log = log
        self.status: int | None = None
        self.ended_at = 0.0
        self.left = 0
        self._wake = wake
        self._is_open = True
        self._is_alone = False
        self._poll = select.poll()
        self._poll.register(child.output, select.POLLIN)
        self._poll.register(wake, select.POLLIN)

    def until_all_ended(self) -> None:
        self._reap()
        while not self._is_over():
            self._turn(self._patience_ms())
        if not self._is_alone or self._is_open:
            self._end_leftovers()
        os.set_blocking(self.child.output, False)
        # What a killed process had written is still in the pipe; a pipe's worth, no more.
        for _ in range(32):
            if not self._is_open:
                break
            self._copy()

    def _is_over(self) -> bool:
        if self.status is None:
            return False
        return (self._is_alone and not self._is_open) or self._patience_ms() == 0

    def _patience_ms(self) -> float | None:
        if self.status is None:
            return None
        return max(0.0, (self.ended_at + LEFTOVER_S_MAX - time.monotonic()) * _MS_PER_S)

    def _turn(self, patience_ms: float | None) -> None:
        for source, _ in self._poll.poll(patience_ms):
            if source == self._wake:
                os.read(self._wake, READ_BYTES)
                self._reap()
            else:
                self._copy()

    def _copy(self) -> None:
        try:
            data = os.read(self.child.output, READ_BYTES)
        except BlockingIOError:
            self._is_open = False
            return
        if data:
            self.log.write(data)
        else:
            self._is_open = False
            self._poll.unregister(self.child.output)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._is_alone = True
                return
            if pid == 0:
                return
            if pid == self.child.pid:
                self.status, self.ended_at = status, time.monotonic()

    def _end_leftovers(self) -> None:
        if sys.platform != "linux":
            self._end_group()
            return
        ended: set[int] = set()
        for _ in range(KILL_ROUNDS_MAX):
            # A process may fork while it is looked for: look again until no child is left.
            for one in descendants(os.getpid(), all_processes()):
                if send(one, signal.SIGKILL):
                    ended.add(one.pid)
            self._reap()
            if self._is_alone:
                break
            self._turn(KILL_ROUND_MS)
        self.left = len(ended)

    def _end_group(self) -> None:
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.left = 1
        except OSError:
            self.left = 0


def _how_it_ended(status: int) -> dict[str, Any]:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return {"code": code}
    try:
        return {"signal": signal.Signals(-code).name}
    except ValueError:
        return {"signal": f"SIG{-code}"}


def _take_launch() -> bool:
    """Take the claim and the lock; False when somebody else decided about this launch."""
    try:
        os.close(_create("claim", os.O_EXCL))
    except FileExistsError:
        return False
    alive = os.open("alive", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return not os.path.exists("revoked")  # noqa: PTH110 - pathlib costs 10 ms of start


def _say_ready() -> None:
    """Tell the harness, if it still lives, that identity.json is there; then let go of it."""
    ready = os.dup(1)
    os.dup2(2, 1)
    try:
        os.write(ready, b"1")
    except OSError:
        return
    finally:
        os.close(ready)


def _identify(child: _Child, nonce: str) -> None:
    supervisor = os.getpid()
    _write_whole(
        "identity.json",
        {
            "identity": f"v1:{boot_id()}:{child.pid}:{start_of(child.pid)}:{nonce}",
            "pid": child.pid,
            "supervisor": {"pid": supervisor, "start": start_of(supervisor)},
        },
    )


def _open_gate(child: _Child) -> None:
    """Let the command run, unless a stop was quicker and the child is gone already."""
    try:
        os.write(child.gate, b"1")
    except BrokenPipeError:
        return
    finally:
        os.close(child.gate)


def _wake_only(_number: int, _frame: object) -> None:
    """Do nothing: the byte in the wake-up pipe is what counts."""


def supervise(folder: str) -> None:
    """Run the launch of a folder to its end."""
    os.chdir(folder)
    if not _take_launch():
        return
    with open("spec.json", encoding="ascii") as file:  # noqa: PTH123 - pathlib costs 10 ms of start
        spec: dict[str, Any] = json.load(file)
    room = _create("exit.json.tmp")
    os.write(room, b" " * EXIT_ROOM_BYTES)
    os.close(room)
    environment = {name: os.environ[name] for name in spec["env"] if name in os.environ}
    environment[MARK] = spec["nonce"]
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _wake_only)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    started_at = time.monotonic()
    log = _Log(spec["output_bytes_max"])
    child = _fork(spec, environment)
    _identify(child, spec["nonce"])
    _say_ready()
    _open_gate(child)
    failure = os.read(child.failure, READ_BYTES).decode(errors="replace")
    watch = _Watch(child, log, wake)
    watch.until_all_ended()
    assert watch.status is not None
    ending = {"error": failure[:ERROR_CHARACTERS_MAX]} if failure else _how_it_ended(watch.status)
    log.sync()
    _write_whole(
        "exit.json",
        {
            **ending,
            "ended_ms": time.time_ns() // 1_000_000,
            "ran_ms": round((watch.ended_at - started_at) * _MS_PER_S),
            "bytes": log.total,
            "left": watch.left,
        },
    )


if __name__ == "__main__":
    supervise(sys.argv[1])
    os._exit(0)
