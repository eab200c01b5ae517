"""What D06 promises beyond the suite: deaths at the wrong moment, decoys, escaped children."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from perdure.errors import Rejected
from perdure.hosts import process_table, processes, supervisor
from perdure.hosts.launch_folder import LaunchFolder
from perdure.hosts.process_table import Identity, members
from perdure.hosts.processes import LocalProcesses
from perdure.hosts.supervisor import all_processes, process_facts
from perdure.hosts.threads import DaemonThreads
from perdure.records.launches import Exited, LaunchRef, LaunchSpec, Lost, NeverRan, Running
from perdure.testing.process_suite import shell_spec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into procfs")

T = TypeVar("T")

REF = LaunchRef(dir="session/one-0000", nonce=f"nonce-of-run-{os.getpid()}")


@pytest.fixture
def host(tmp_path: Path) -> LocalProcesses:
    return LocalProcesses(tmp_path / "launches", DaemonThreads())


def folder_of(tmp_path: Path, ref: LaunchRef = REF) -> LaunchFolder:
    return LaunchFolder(tmp_path / "launches", ref)


async def off_loop(work: Callable[[], T]) -> T:
    return await DaemonThreads().run("test", work)


async def identity_of(tmp_path: Path) -> Identity:
    identity = await off_loop(folder_of(tmp_path).identity)
    assert identity is not None
    return identity


async def pids_of(tmp_path: Path) -> set[int]:
    identity = await identity_of(tmp_path)
    return {one.pid for one in await off_loop(lambda: members(identity))}


async def until_log(host: LocalProcesses, text: bytes) -> None:
    while text not in await host.log(REF, offset=-1_000, limit=1_000):  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def alive(pids: set[int]) -> set[int]:
    table = await off_loop(all_processes)
    return {one.pid for one in table if one.pid in pids and one.state not in "ZX"}


@pytest.mark.spec("KT-19")
@pytest.mark.parametrize(
    "leave",
    [
        "sleep 60 &",
        "setsid sleep 60 &",
        "(setsid sleep 60 >/dev/null 2>&1 &)",
        "/bin/sh -c 'trap \"\" TERM; sleep 60' >/dev/null 2>&1 &",
        "(/bin/sh -c '/bin/sh -c \"sleep 60 & sleep 60\" &' &)",
    ],
)
async def test_no_process_outlives_the_end(
    host: LocalProcesses, tmp_path: Path, leave: str
) -> None:
    await host.launch(shell_spec(REF, f"{leave}\nsleep 0.05; echo done"))
    await until_log(host, b"done")
    ended = await host.wait(REF)
    assert isinstance(ended, Exited)
    assert (ended.code, ended.left > 0) == (0, True)
    assert await pids_of(tmp_path) == set()
    # The end came a second after the command's, not when its children wanted.
    assert ended.ran_ms < 900


@pytest.mark.spec("KT-19")
async def test_children_that_end_in_time_are_no_leftovers(host: LocalProcesses) -> None:
    await host.launch(shell_spec(REF, "(sleep 0.1; echo late) & echo early"))
    ended = await host.wait(REF)
    assert isinstance(ended, Exited)
    assert (ended.code, ended.left) == (0, 0)
    assert await host.log(REF, offset=0, limit=100) == b"early\nlate\n"


@pytest.mark.spec("KT-18")
async def test_stop_reaches_children_in_other_sessions(
    host: LocalProcesses, tmp_path: Path
) -> None:
    await host.launch(
        shell_spec(REF, "(setsid /bin/sh -c 'trap \"\" TERM; echo in; sleep 60' &) ; sleep 60")
    )
    await until_log(host, b"in")
    pids = await pids_of(tmp_path)
    assert len(pids) >= 3
    ended = await host.stop(REF, grace_ms=300)
    assert isinstance(ended, Exited)
    assert await alive(pids) == set()


@pytest.mark.spec("KT-18")
async def test_stop_wakes_what_was_stopped(host: LocalProcesses) -> None:
    await host.launch(shell_spec(REF, "trap 'exit 4' TERM; echo up; kill -STOP $$; sleep 60"))
    await until_log(host, b"up")
    ended = await host.stop(REF, grace_ms=5_000)
    assert isinstance(ended, Exited)
    assert ended.code == 4


@pytest.mark.spec("TL-33")
async def test_killed_supervisor_leaves_nothing_and_is_lost(
    host: LocalProcesses, tmp_path: Path
) -> None:
    await host.launch(shell_spec(REF, "(setsid sleep 60 >/dev/null 2>&1 &) ; echo up; sleep 60"))
    await until_log(host, b"up")
    pids = await pids_of(tmp_path)
    os.kill((await identity_of(tmp_path)).supervisor.pid, signal.SIGKILL)
    assert await host.wait(REF) == Lost()
    assert await alive(pids) == set()
    assert await host.reconcile(REF) == Lost()


@pytest.mark.spec("TL-33")
async def test_a_recycled_pid_is_never_signalled(host: LocalProcesses, tmp_path: Path) -> None:
    # The second has a child: it would fall with a supervisor that is taken for ours.
    lines = ("exec sleep 60", "sleep 60 & wait")
    decoys = [subprocess.Popen(["/bin/sh", "-c", line], start_new_session=True) for line in lines]
    try:
        await host.launch(shell_spec(REF, "echo up; sleep 60"))
        await until_log(host, b"up")
        real = await identity_of(tmp_path)
        os.kill(real.supervisor.pid, signal.SIGKILL)
        assert await host.wait(REF) == Lost()
        command, keeper = (decoy.pid for decoy in decoys)
        # Starts count in hundredths of a second, so a decoy could start in the real one's tick.
        other_start = f"{real.start}0"
        forged = {
            "identity": f"v1:{real.boot}:{command}:{other_start}:{REF.nonce}",
            "pid": command,
            "supervisor": {"pid": keeper, "start": other_start},
        }
        (folder_of(tmp_path).path / "identity.json").write_text(json.dumps(forged))
        assert await host.reconcile(REF) == Lost()
        assert await host.stop(REF, grace_ms=100) == Lost()
        assert [decoy.poll() for decoy in decoys] == [None, None]
    finally:
        for decoy in decoys:
            os.killpg(decoy.pid, signal.SIGKILL)
            decoy.wait()


async def test_another_boot_is_lost_and_signals_nobody(
    host: LocalProcesses, tmp_path: Path
) -> None:
    decoy = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        folder = folder_of(tmp_path)
        await off_loop(folder.make)
        facts = await off_loop(lambda: process_facts(decoy.pid))
        assert facts is not None
        before = {
            "identity": f"v1:another-boot:{decoy.pid}:{facts.start}:{REF.nonce}",
            "pid": decoy.pid,
            "supervisor": {"pid": decoy.pid, "start": facts.start},
        }
        (folder.path / "claim").touch()
        (folder.path / "alive").touch()
        (folder.path / "identity.json").write_text(json.dumps(before))
        assert await host.reconcile(REF) == Lost()
        assert decoy.poll() is None
    finally:
        decoy.kill()
        decoy.wait()


def run_harness(tmp_path: Path, moment: str) -> None:
    """Start a harness in a process of its own that kills itself around a launch."""
    script = f"""
import asyncio, os, signal
from perdure.hosts import processes
from perdure.hosts.threads import DaemonThreads
from perdure.records.launches import LaunchRef
from perdure.testing.process_suite import shell_spec

REF = LaunchRef(dir={REF.dir!r}, nonce={REF.nonce!r})

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

class Dying(processes.LocalProcesses):
    def _start_supervisor(self, folder, spec):
        if {moment!r} == "before":
            die()
        child = super()._start_supervisor(folder, spec)
        if {moment!r} == "at once":
            die()
        return child

async def main():
    host = Dying({str(tmp_path / "launches")!r}, DaemonThreads())
    await host.launch(shell_spec(REF, "echo up; sleep 0.2; echo end; exit 9"))
    die()

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()


@pytest.mark.spec("TL-33")
async def test_harness_killed_before_the_supervisor_started(
    host: LocalProcesses, tmp_path: Path
) -> None:
    run_harness(tmp_path, "before")
    assert await host.reconcile(REF) == NeverRan()


@pytest.mark.spec("TL-33")
async def test_harness_killed_while_the_supervisor_starts(
    host: LocalProcesses, tmp_path: Path
) -> None:
    run_harness(tmp_path, "at once")
    found = await host.reconcile(REF)
    if isinstance(found, NeverRan):
        assert await host.log(REF, offset=0, limit=10) == b""
    else:
        ended = await host.wait(REF)
        assert isinstance(ended, Exited)
        assert ended.code == 9


@pytest.mark.spec("TL-33")
async def test_harness_killed_while_the_command_runs(host: LocalProcesses, tmp_path: Path) -> None:
    run_harness(tmp_path, "after")
    ended = await host.wait(REF)
    assert isinstance(ended, Exited)
    assert (ended.code, await host.log(REF, offset=0, limit=99)) == (9, b"up\nend\n")


async def test_a_revoked_launch_never_starts(host: LocalProcesses, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    await off_loop(folder.make)
    await off_loop(lambda: folder.write_spec(shell_spec(REF, f"touch {tmp_path}/ran")))
    await off_loop(folder.revoke)
    subprocess.run([sys.executable, "-I", "-S", supervisor.__file__, str(folder.path)], check=True)
    assert not (tmp_path / "ran").exists()
    assert await host.reconcile(REF) == NeverRan()


@pytest.mark.spec("TL-33")
@pytest.mark.parametrize("call", ["reconcile", "stop"])
async def test_a_launch_that_may_still_start_is_never_settled(
    host: LocalProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(processes, "IDENTITY_S_MAX", 0.02)
    monkeypatch.setattr(processes, "END_S_MAX", 0.02)
    folder = folder_of(tmp_path)
    await off_loop(folder.make)
    assert await off_loop(folder.claim)

    async def asked() -> object:
        if call == "stop":
            return await host.stop(REF, grace_ms=10)
        return await host.reconcile(REF)

    with folder.lock() as is_held:
        assert is_held
        with pytest.raises(TimeoutError, match="may still start; end it"):
            await asked()
        assert not (folder.path / "revoked").exists()
    assert isinstance(await asked(), NeverRan | Exited)
    assert (folder.path / "revoked").exists()


@pytest.mark.spec("TL-33")
async def test_a_command_that_began_at_the_last_moment_is_no_start_that_failed(
    host: LocalProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_late(folder: str) -> None:
        while not (tmp_path / "ran").exists():
            time.sleep(0.005)
        process_table.end_supervisor_of(folder)

    monkeypatch.setattr(processes, "START_S_MAX", 0.0)
    monkeypatch.setattr(processes, "end_supervisor_of", end_late)
    # Its identity is read too early, as by a harness that had waited its ten seconds.
    read, early = LaunchFolder.identity, [None]
    monkeypatch.setattr(
        LaunchFolder, "identity", lambda folder: early.pop() if early else read(folder)
    )
    started = await host.launch(shell_spec(REF, f"touch {tmp_path}/ran; sleep 60"))
    assert isinstance(started, Running)
    assert await host.wait(REF) == Lost()


async def test_a_supervisor_that_stands_still_after_the_end_holds_nobody_up(
    host: LocalProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "END_S_MAX", 0.02)
    await host.launch(shell_spec(REF, "exit 3"))
    supervised = (await identity_of(tmp_path)).supervisor.pid
    await host.wait(REF)
    still = subprocess.Popen(["/bin/sleep", "60"])
    try:
        host._children[REF.dir] = still.pid
        for _ in range(2):
            ended = await host.reconcile(REF)
            assert isinstance(ended, Exited)
            assert ended.code == 3
        assert process_facts(supervised) is None
    finally:
        still.kill()
        still.wait()


async def test_a_second_supervisor_of_one_launch_exits(
    host: LocalProcesses, tmp_path: Path
) -> None:
    await host.launch(shell_spec(REF, f"echo x >> {tmp_path}/ran; sleep 60"))
    folder = folder_of(tmp_path)
    subprocess.run([sys.executable, "-I", "-S", supervisor.__file__, str(folder.path)], check=True)
    assert isinstance(await host.reconcile(REF), Running)
    await host.stop(REF, grace_ms=300)
    with pytest.raises(FileExistsError):
        await host.launch(shell_spec(REF, f"echo x >> {tmp_path}/ran"))


@pytest.mark.spec("TL-33")
async def test_a_start_that_outlived_its_harness_cannot_run_what_was_settled(
    host: LocalProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    make = LaunchFolder.make

    def late(folder: LaunchFolder) -> None:
        monkeypatch.setattr(LaunchFolder, "make", make)
        reached.set()
        go_on.wait()
        folder.make()

    monkeypatch.setattr(LaunchFolder, "make", late)
    starting = asyncio.ensure_future(host.launch(shell_spec(REF, f"touch {tmp_path}/ran")))
    await off_loop(reached.wait)
    # A later process settles the call as not started, and forgets it.
    heir = LocalProcesses(tmp_path / "launches", DaemonThreads())
    assert await heir.reconcile(REF) == NeverRan()
    await heir.forget(REF)
    go_on.set()
    started = await starting
    assert isinstance(started, Exited)
    assert "before it started the command" in str(started.error)
    assert not (tmp_path / "ran").exists()


async def test_a_stopped_launch_that_had_not_started_never_will(
    host: LocalProcesses, tmp_path: Path
) -> None:
    ended = await host.stop(REF, grace_ms=10)
    assert isinstance(ended, Exited)
    assert "before it started" in str(ended.error)
    assert await host.reconcile(REF) == NeverRan()


@pytest.mark.spec("SX-10")
async def test_a_command_inherits_three_descriptors(host: LocalProcesses, tmp_path: Path) -> None:
    secret = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(secret, True)
    try:
        await host.launch(shell_spec(REF, "ls /proc/$$/fd; :"))
        await host.wait(REF)
    finally:
        os.close(secret)
    assert (await host.log(REF, offset=0, limit=100)).split() == [b"0", b"1", b"2"]


@pytest.mark.spec("SX-06")
async def test_launch_files_are_private_whatever_the_umask(
    host: LocalProcesses, tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        await host.launch(shell_spec(REF, "yes | head -c 200000", output_bytes_max=10))
        await host.wait(REF)
    finally:
        os.umask(before)
    modes = {
        path.relative_to(tmp_path).as_posix(): oct(path.stat().st_mode & 0o777)
        for path in (tmp_path / "launches", *(tmp_path / "launches").rglob("*"))
    }
    files = {name: mode for name, mode in modes.items() if "." in name or "log" in name}
    assert set(modes.values()) == {"0o700", "0o600"}
    assert set(files.values()) == {"0o600"}


async def test_environment_values_are_not_on_disk(host: LocalProcesses, tmp_path: Path) -> None:
    spec = LaunchSpec(
        ref=REF,
        argv=("/bin/sh", "-c", "echo ${#TOKEN}"),
        cwd="/",
        env={"TOKEN": "s3cr3t-value"},
        output_bytes_max=100,
    )
    await host.launch(spec)
    await host.wait(REF)
    assert await host.log(REF, offset=0, limit=9) == b"12\n"
    texts = [path.read_bytes() for path in folder_of(tmp_path).path.iterdir()]
    assert not [text for text in texts if b"s3cr3t" in text]


@pytest.mark.spec("KT-16")
async def test_a_folder_outside_the_root_is_refused(host: LocalProcesses, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "out").symlink_to("/")
    spec = LaunchSpec(
        ref=REF,
        argv=("/bin/true",),
        cwd=str(tmp_path / "root" / "out"),
        env={},
        output_bytes_max=1,
        root=str(tmp_path / "root"),
    )
    ended = await host.launch(spec)
    assert isinstance(ended, Exited)
    assert "outside" in str(ended.error)


@pytest.mark.parametrize("argv", [(), ("/bin/sh\0",), ("/bin/echo", "x" * 3_000_000)])
async def test_a_command_that_cannot_be_passed_on_is_an_error(
    host: LocalProcesses, argv: tuple[str, ...]
) -> None:
    spec = LaunchSpec(ref=REF, argv=argv, cwd="/", env={}, output_bytes_max=1)
    started = await host.launch(spec)
    ended = started if isinstance(started, Exited) else await host.wait(REF)
    assert isinstance(ended, Exited)
    assert ended.error


@pytest.mark.parametrize("place", ["", "/abs", "../up", "a/../../b", "nul\0"])
async def test_a_launch_folder_outside_the_launch_root_is_refused(
    host: LocalProcesses, place: str
) -> None:
    with pytest.raises(Rejected, match="below the launch root"):
        await host.reconcile(LaunchRef(dir=place, nonce="n"))


@pytest.mark.spec("KT-17")
async def test_a_flood_of_output_costs_the_supervisor_no_memory(
    host: LocalProcesses, tmp_path: Path
) -> None:
    await host.launch(
        shell_spec(
            REF, "head -c 200000000 /dev/zero; echo; echo full; sleep 60", output_bytes_max=99
        )
    )
    await until_log(host, b"full")
    pid = (await identity_of(tmp_path)).supervisor.pid
    peak = next(
        int(line.split()[1])
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    ended = await host.stop(REF, grace_ms=300)
    assert isinstance(ended, Exited)
    assert ended.bytes == 200_000_006
    assert peak < 20 * 1024
    on_disk = sum(path.stat().st_size for path in folder_of(tmp_path).path.iterdir())
    assert on_disk < 600_000


async def test_ended_supervisors_leave_no_zombie(host: LocalProcesses, tmp_path: Path) -> None:
    await host.launch(shell_spec(REF, "exit 0"))
    await host.wait(REF)
    identity = await identity_of(tmp_path)
    assert identity.supervisor.pid not in {one.pid for one in await off_loop(all_processes)}
