"""Commands that outlive a killed harness and are found again: the bundled `ProcessHost` (D06).

Each command runs under a supervisor process of its own (`supervisor.py`) that talks by the files
of a launch folder. Nothing here blocks the loop: files and signals are a daemon thread's, and the
end of a command wakes a waiter through a pidfd (Linux) or a look every 250 ms (macOS).
"""

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from perdure.hosts import supervisor
from perdure.hosts.launch_folder import LaunchFolder
from perdure.hosts.process_table import (
    Identity,
    ask_members,
    end_members,
    end_supervisor_of,
    supervisor_pid,
)
from perdure.hosts.supervisor import ProcessFacts
from perdure.ports import Threads
from perdure.records.launches import Exited, LaunchRef, LaunchSpec, Lost, NeverRan, Running

START_S_MAX: Final = 10.0
"""How long a supervisor may take to start; a busy machine needs a tenth of a second."""

IDENTITY_S_MAX: Final = 5.0
"""How long a claimed launch may be without an identity before the lock decides (D06)."""

END_S_MAX: Final = 5.0
"""How long processes may take to be gone after KILL."""

LOOK_S: Final = 0.25
"""Seconds between two looks at a launch where nothing wakes the waiter (D06)."""

_STEP_S: Final = 0.02
_ASK_STEP_S: Final = 0.05
_MS_PER_S: Final = 1000


class LocalProcesses:
    """Launch, find, wait for and stop commands below one launch root, on this machine.

    The same root, opened by a later process, finds what an earlier one started.
    """

    def __init__(
        self, root: str | os.PathLike[str], threads: Threads, *, python: str = sys.executable
    ) -> None:
        self._root = Path(root)
        self._threads = threads
        self._python = python
        self._children: dict[str, int] = {}

    @property
    def adopts(self) -> bool:
        """Answer True: a restarted host finds what a killed one started."""
        return True

    async def launch(self, spec: LaunchSpec) -> Running | Exited:
        """Start a command whose place is committed; answers once its identity is on disk.

        A command that cannot start is `Exited` with `error`. Environment values go to the
        supervisor's own environment, never to disk.

        Raises:
            FileExistsError: when this place was used before: one nonce, one launch.
        """
        return await self._threads.run("launch", partial(self._launch, spec))

    async def reconcile(self, ref: LaunchRef) -> NeverRan | Running | Exited | Lost:
        """Find out what became of a launch, after a restart as before; repeatable.

        `NeverRan` also makes sure it never will; `Lost` also ends what is left of its processes.

        Raises:
            TimeoutError: when a process that holds the launch's lock started nothing yet and cannot
                be ended: nothing can be said of a command that may still start.
        """
        return await self._threads.run("reconcile", partial(self._reconcile, ref))

    async def wait(self, ref: LaunchRef) -> Exited | Lost:
        """Wait for the end; cancelling leaves the command alone."""
        while True:
            ended = await self._threads.run("wait", partial(self._ended, ref))
            if ended is not None:
                return ended
            await self._woken(ref)

    async def stop(self, ref: LaunchRef, *, grace_ms: int) -> Exited | Lost:
        """Stop everything a launch started: TERM, up to `grace_ms`, KILL; answers when it is gone.

        Cancelling the caller does not cancel the stop. A launch that had not started never will.
        """
        return await self._threads.run("stop", partial(self._stop, ref, grace_ms / _MS_PER_S))

    async def log(self, ref: LaunchRef, *, offset: int, limit: int) -> bytes:
        """Read at most `limit` bytes of output as written, from a byte offset.

        A negative offset counts from the end of what is kept. The first `output_bytes_max` bytes
        are kept and at least the last 256 KiB; of what lies between the answer is empty.
        """
        folder = LaunchFolder(self._root, ref)
        return await self._threads.run("log", partial(folder.log, offset, limit))

    async def forget(self, ref: LaunchRef) -> None:
        """Remove the folder of an ended launch; a running one is left as it is.

        Of one that never began the claim stays: a start that is still under way, in a thread that
        outlived its harness's close, must find that it may not (TL-33).
        """
        await self._threads.run("forget", partial(self._forget, ref))

    def _launch(self, spec: LaunchSpec) -> Running | Exited:
        folder = LaunchFolder(self._root, spec.ref)
        fault = _start_fault(spec)
        if fault:
            return _never_started(fault)
        folder.make()
        folder.write_spec(spec)
        try:
            child = self._start_supervisor(folder, spec)
        except OSError as error:
            return _never_started(f"no supervisor could be started: {error}")
        self._children[spec.ref.dir] = child.pid
        assert child.stdout is not None
        with child.stdout:
            _is_readable(child.stdout.fileno(), START_S_MAX)
        # From here on `_reap` collects it: a harness may end before its commands do.
        child.returncode = 0
        identity = folder.identity()
        if identity is not None:
            return Running(pid=identity.pid, identity=identity.identity)
        return self._not_ready(spec.ref)

    def _start_supervisor(self, folder: LaunchFolder, spec: LaunchSpec) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self._python, "-I", "-S", supervisor.__file__, str(folder.path.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder.path,
            env=dict(spec.env),
            start_new_session=True,
        )

    def _not_ready(self, ref: LaunchRef) -> Running | Exited:
        """Settle a start that gave no identity: end the supervisor, then ask the files."""
        folder = LaunchFolder(self._root, ref)
        end_supervisor_of(str(folder.path.absolute()))
        self._reap(ref)
        found = self._reconcile(ref)
        if isinstance(found, NeverRan):
            return _never_started(
                "its supervisor ended, or stood still, before it started the command"
            )
        if isinstance(found, Lost):
            # It began just before its supervisor was ended; who waits for it is told so.
            identity = folder.identity()
            assert identity is not None
            return Running(pid=identity.pid, identity=identity.identity)
        return found

    def _reconcile(self, ref: LaunchRef) -> NeverRan | Running | Exited | Lost:
        folder = LaunchFolder(self._root, ref)
        folder.make()
        if folder.claim():
            return NeverRan()
        deadline = time.monotonic() + IDENTITY_S_MAX
        while True:
            ended = folder.exit()
            if ended is not None:
                self._reap(ref)
                return ended
            identity = folder.identity()
            if identity is not None:
                return self._of_identity(ref, folder, identity)
            with folder.lock() as is_ours:
                if is_ours and folder.identity() is None and folder.exit() is None:
                    folder.revoke()
                    return NeverRan()
            if time.monotonic() > deadline:
                # It holds the lock and stands still before the gate: nothing has run yet.
                end_supervisor_of(str(folder.path.absolute()))
            if time.monotonic() > deadline + END_S_MAX:
                raise _undecided(folder)
            time.sleep(_STEP_S)

    def _of_identity(
        self, ref: LaunchRef, folder: LaunchFolder, identity: Identity
    ) -> Running | Exited | Lost:
        if folder.is_alive():
            return Running(pid=identity.pid, identity=identity.identity)
        return self._after_life(ref, folder, identity)

    def _ended(self, ref: LaunchRef) -> Exited | Lost | None:
        folder = LaunchFolder(self._root, ref)
        ended = folder.exit()
        if ended is None and folder.is_alive():
            return None
        if ended is not None:
            self._reap(ref)
            return ended
        found = self._reconcile(ref)
        if isinstance(found, Running):
            return None
        return Lost() if isinstance(found, NeverRan) else found

    def _after_life(
        self, ref: LaunchRef, folder: LaunchFolder, identity: Identity
    ) -> Exited | Lost:
        """Settle a launch whose supervisor is gone; it may have written the exit just before."""
        self._reap(ref)
        ended = folder.exit()
        if ended is not None:
            return ended
        deadline = time.monotonic() + END_S_MAX
        while end_members(identity) and time.monotonic() < deadline:
            time.sleep(_STEP_S)
        return Lost()

    def _stop(self, ref: LaunchRef, grace_s: float) -> Exited | Lost:
        found = self._reconcile(ref)
        if isinstance(found, NeverRan):
            return _never_started("it was stopped before it started")
        if not isinstance(found, Running):
            return found
        folder = LaunchFolder(self._root, ref)
        identity = folder.identity()
        assert identity is not None
        folder.mark_stopped()
        _ask_to_end(folder, identity, grace_s)
        deadline = time.monotonic() + END_S_MAX
        while folder.is_alive() and time.monotonic() < deadline:
            end_members(identity)
            _await_end(folder, identity, _STEP_S)
        if folder.is_alive():
            # Everything it ran is gone, yet it stands still (stopped, or its disk hangs).
            _kill_supervisor(identity)
            _await_end(folder, identity, END_S_MAX)
        return self._after_life(ref, folder, identity)

    async def _woken(self, ref: LaunchRef) -> None:
        """Return when the launch may have ended, at the latest after a look's time."""
        handle = await self._threads.run("wait", partial(self._handle, ref))
        if handle is None:
            await asyncio.sleep(LOOK_S)
            return
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(handle, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)

    def _handle(self, ref: LaunchRef) -> int | None:
        identity = LaunchFolder(self._root, ref).identity()
        return None if identity is None else _supervisor_handle(identity)

    def _reap(self, ref: LaunchRef) -> None:
        """Collect our own ended child, so that no zombie stays while this harness lives.

        One that does not end though its work is done (stopped, or its disk hangs) is left.
        """
        pid = self._children.pop(ref.dir, None)
        deadline = time.monotonic() + END_S_MAX
        with suppress(ChildProcessError):
            while pid is not None and os.waitpid(pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    self._children[ref.dir] = pid
                    return
                time.sleep(_STEP_S)

    def _forget(self, ref: LaunchRef) -> None:
        folder = LaunchFolder(self._root, ref)
        if not folder.is_alive():
            self._reap(ref)
            folder.remove()


def _start_fault(spec: LaunchSpec) -> str | None:
    """Say why a command cannot even be tried."""
    texts = [*spec.argv, spec.cwd, *spec.env, *spec.env.values()]
    if not spec.argv or any("\0" in text for text in texts):
        return f"command {spec.argv!r} has no program, or a NUL in it or its environment"
    if spec.root is None:
        return None
    root, cwd = os.path.realpath(spec.root), os.path.realpath(spec.cwd)
    if os.path.commonpath([root, cwd]) != root:
        return f"folder {spec.cwd!r} lies outside {spec.root!r}"
    return None if Path(cwd).is_dir() else f"folder {spec.cwd!r} is not there"


def _never_started(error: str) -> Exited:
    return Exited(error=error, ended_ms=time.time_ns() // 1_000_000, bytes=0)


def _undecided(folder: LaunchFolder) -> TimeoutError:
    return TimeoutError(
        f"launch folder {str(folder.path)!r}: a process holds the file 'alive', has started "
        f"nothing and cannot be ended, so that its command may still start; end it, then open again"
    )


def _ask_to_end(folder: LaunchFolder, identity: Identity, grace_s: float) -> None:
    """Send TERM for the whole grace: a process may have forked just before its own came."""
    asked: set[ProcessFacts] = set()
    deadline = time.monotonic() + grace_s
    while folder.is_alive() and (rest_s := deadline - time.monotonic()) > 0:
        ask_members(identity, asked)
        _await_end(folder, identity, min(rest_s, _ASK_STEP_S))


def _await_end(folder: LaunchFolder, identity: Identity, wait_s: float) -> None:
    """Return when the supervisor is gone, at the latest after `wait_s` seconds."""
    deadline = time.monotonic() + wait_s
    handle = _supervisor_handle(identity)
    if handle is not None:
        _is_readable(handle, wait_s)
        os.close(handle)
    while folder.is_alive() and time.monotonic() < deadline:
        time.sleep(_STEP_S)


def _kill_supervisor(identity: Identity) -> None:
    handle = _supervisor_handle(identity)
    if handle is not None:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    elif sys.platform != "linux" and (pid := supervisor_pid(identity)) is not None:
        os.kill(pid, signal.SIGKILL)


def _supervisor_handle(identity: Identity) -> int | None:
    """Open a pidfd of the supervisor; None where there is none, or it is not that process."""
    if sys.platform != "linux":
        return None
    try:
        handle = os.pidfd_open(identity.supervisor.pid)
    except OSError:
        return None
    if supervisor_pid(identity) is None:
        os.close(handle)
        return None
    return handle


def _is_readable(file: int, wait_s: float) -> bool:
    """Wait until a file can be read, or ended; False when `wait_s` seconds passed before."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(wait_s * _MS_PER_S))
