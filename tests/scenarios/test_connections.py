"""Who perdure talks to: nobody but the configured provider, and nothing listens (SX-11, SX-15)."""

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.surfaces.desk import Desk
from tests.unit.providers.local_real import data_folder, needs_model

pytestmark = pytest.mark.timeout(60)

WATCH = """
import json, os, runpy, sys
seen = []
def hook(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname",
                 "socket.bind", "socket.sendmsg", "urllib.Request", "ftplib.connect"):
        seen.append([event, repr(args[1:] if event.startswith("socket.") else args)])
sys.addaudithook(hook)
import atexit
atexit.register(lambda: open(os.environ["SEEN"], "a").write(json.dumps(seen) + chr(10)))
"""
"""Written as sitecustomize, so that every Python process of a run is watched."""


def watched(desk: Desk) -> dict[str, str]:
    folder = desk.home / "watch"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WATCH)
    path = f"{folder}:{desk.env['PYTHONPATH']}"
    return {"PYTHONPATH": path, "SEEN": str(desk.home / "seen.jsonl")}


def events(desk: Desk) -> list[list[str]]:
    lines = (desk.home / "seen.jsonl").read_text().splitlines()
    return [event for line in lines for event in json.loads(line)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Answer a fresh desk."""
    return Desk(tmp_path)


@pytest.mark.spec("SX-11")
def test_a_scripted_session_with_tools_connects_to_nobody(desk: Desk) -> None:
    env = watched(desk)
    (desk.folder / "a.txt").write_text("hello")
    calls = [
        {"name": "shell", "args": {"command": "echo hi; cat a.txt"}},
        {"name": "read", "args": {"path": "a.txt"}},
        {"name": "write", "args": {"path": "b.txt", "content": "x"}},
        {"name": "search", "args": {"pattern": "hello"}},
    ]
    model = desk.script({"when": "go", "calls": calls}, {"text": "fine", "uses": 0})
    for words in (
        ("run", "-s", "s", "-m", model, "--yes", "go"),
        ("run", "-s", "s", "--json", "again"),
        ("resume", "-s", "s", "--json"),
        ("inspect", "-s", "s"),
        ("sessions",),
        ("models",),
        ("doctor",),
        ("sessions", "delete", "s", "--yes"),
    ):
        ended = desk.run(*words, wait_s=30, **env)
        assert ended.code in (0, 1), (words, ended)
    found = events(desk)
    assert len((desk.home / "seen.jsonl").read_text().splitlines()) >= 8
    # The control address, a private Unix socket of the owner's, is listened on by what drives.
    assert [event for event in found if "perdure-control-" not in event[1]] == []
    assert {event for event, _ in found} <= {"socket.bind"}


@pytest.mark.spec("SX-11")
def test_the_watch_sees_a_connection(desk: Desk) -> None:
    env = {**desk.env, **watched(desk)}
    code = "import socket; s=socket.socket(); s.settimeout(1); s.connect_ex(('127.0.0.1', 9))"
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=9)
    assert [event for event, _ in events(desk)] == ["socket.connect"]


def listening() -> dict[str, str]:
    """Answer the listening sockets of this machine: inode to local address, as the kernel says."""
    found: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                found[fields[9]] = fields[1].rpartition(":")[0]
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & 0x10000:
            found[fields[6]] = f"unix {fields[7] if len(fields) > 7 else ''}"
    return found


def listeners(pid: int) -> list[str]:
    """Answer the addresses a process and its descendants listen on."""
    held: set[str] = set()
    for process in tree(pid):
        for link in Path(f"/proc/{process}/fd").glob("*"):
            try:
                target = str(link.readlink())
            except FileNotFoundError:
                continue  # what listed the folder
            if target.startswith("socket:["):
                held.add(target[8:-1])
    return [address for inode, address in listening().items() if inode in held]


def tree(pid: int) -> list[int]:
    found = [pid]
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found += tree(int(status.parent.name))
    return found


linux = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the kernel's own list")


@linux
def test_the_list_holds_what_a_process_listens_on(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX) as private:
        private.bind(path)
        private.listen()
        assert {"0100007F", f"unix {path}"} <= set(listeners(os.getpid()))


@linux
@pytest.mark.spec("SX-15")
def test_a_running_command_listens_on_its_private_control_address_only(desk: Desk) -> None:
    read = desk.fifo("begun")
    model = desk.script(
        {"calls": [{"name": "shell", "args": {"command": "echo x >begun; sleep 60"}}]}
    )
    running = desk.start("run", "-s", "s", "-m", model, "--yes", "go")
    try:
        assert read() == "x\n"
        (address,) = listeners(running.process.pid)
        socket_file = Path(address.removeprefix("unix "))
        assert stat.S_IMODE(socket_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket_file.parent.stat().st_mode) == 0o700
    finally:
        running.process.kill()
        running.end()


@linux
@needs_model
@pytest.mark.spec("SX-15")
def test_the_local_model_listens_on_a_private_unix_socket_only(desk: Desk) -> None:
    words = ("run", "--no-session", "--json-events", "-m", "local:smollm2", "--no-tools", "Hello.")
    running = desk.start(*words, PERDURE_HOME=str(data_folder()))
    try:
        running.until('"delta"', "out")
        found = listeners(running.process.pid)
    finally:
        running.process.kill()
        running.end()
    assert all(address.startswith("unix ") for address in found), found
    for address in found:
        path = Path(address.removeprefix("unix "))
        assert not path.exists() or stat.S_IMODE(path.parent.stat().st_mode) == 0o700
