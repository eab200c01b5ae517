"""Which living processes belong to a launch, and signals that reach no other.

A pid alone names nobody: it may be reused at any moment. A process belongs to a launch when its
environment holds the launch's nonce, or it descends from the launch's supervisor, or it is in the
process group of the launch's command; supervisor and command count only with the recorded start
(D06). A signal goes through a pidfd whose process is looked at again after it was opened.

On macOS there is no procfs and no pidfd: the command's process group is signalled while `ps` still
shows the recorded start. That path is untested.
"""

import os
import signal
import sys
from pathlib import Path

from msgspec import Struct

from perdure.hosts.supervisor import (
    MARK,
    ProcessFacts,
    all_processes,
    boot_id,
    descendants,
    send,
    start_of,
)
from perdure.hosts.supervisor import __file__ as supervisor_file


class SupervisorPid(Struct, frozen=True):
    """The supervisor's pid and start."""

    pid: int
    start: str


class Identity(Struct, frozen=True):
    """What `identity.json` says: `identity` is `v1:<boot id>:<pid>:<start>:<nonce>`."""

    identity: str
    pid: int
    supervisor: SupervisorPid

    @property
    def boot(self) -> str:
        """Answer the boot the command ran in."""
        return self.identity.split(":")[1]

    @property
    def start(self) -> str:
        """Answer the command's start."""
        return self.identity.split(":")[3]

    @property
    def nonce(self) -> str:
        """Answer the launch's nonce."""
        return self.identity.split(":")[4]


def supervisor_pid(identity: Identity) -> int | None:
    """Answer the supervisor's pid while that very process lives; None otherwise."""
    recorded = identity.supervisor
    if identity.boot != boot_id() or start_of(recorded.pid) != recorded.start:
        return None
    return recorded.pid


def members(identity: Identity) -> list[ProcessFacts]:
    """List the living processes of a launch, the supervisor not among them (Linux)."""
    if identity.boot != boot_id():
        return []
    table = all_processes()
    living = [one for one in table if one.state not in "ZX" and one.pid != os.getpid()]
    found = {one.pid for one in living if _is_marked(one.pid, identity.nonce)}
    supervisor = supervisor_pid(identity)
    if supervisor is not None:
        found |= {one.pid for one in descendants(supervisor, table)}
    # A zombie still owns its pid, so that its group is still the command's.
    if any(one.pid == identity.pid and one.start == identity.start for one in table):
        found |= {one.pid for one in living if one.group == identity.pid}
    found.discard(identity.supervisor.pid)
    return [one for one in living if one.pid in found]


def end_members(identity: Identity) -> int:
    """Send KILL to every living process of a launch; answers how many there were."""
    if sys.platform != "linux":
        return _signal_group(identity, signal.SIGKILL)
    targets = members(identity)
    for one in targets:
        send(one, signal.SIGKILL)
    return len(targets)


def ask_members(identity: Identity, asked: set[ProcessFacts]) -> None:
    """Send TERM to every living process of a launch that is not in `asked`, and add it there."""
    if sys.platform != "linux":
        if not asked and _signal_group(identity, signal.SIGTERM):
            asked.add(ProcessFacts(identity.pid, "", 0, identity.pid, identity.start))
        return
    known = {(one.pid, one.start) for one in asked}
    for one in members(identity):
        if (one.pid, one.start) not in known and send(one, signal.SIGTERM):
            # A stopped process takes its TERM only once it goes on.
            send(one, signal.SIGCONT)
            asked.add(one)


def end_supervisor_of(folder: str) -> None:
    """Kill the supervisor that was started for a launch folder (Linux): its last argument."""
    if sys.platform != "linux":
        return
    for one in all_processes():
        try:
            argv = Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if argv[-3:-1] == [os.fsencode(supervisor_file), os.fsencode(folder)]:
            send(one, signal.SIGKILL)


def _is_marked(pid: int, nonce: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{MARK}={nonce}".encode() in environment.split(b"\0")


def _signal_group(identity: Identity, number: int) -> int:
    if identity.boot != boot_id() or start_of(identity.pid) != identity.start:
        return 0
    try:
        os.killpg(identity.pid, number)
    except OSError:
        return 0
    return 1
