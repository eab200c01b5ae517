"""Stores by URL, sessions in them, and what lies beside them (SN)."""

import asyncio
import hashlib
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockBuster

import perdure
from perdure import opening
from perdure.cli.endings import UsageProblem
from perdure.cli.places import made_ready
from perdure.errors import Rejected, StorageBusy
from perdure.hosts.launch_places import remove_launches
from perdure.opening import SCHEMES, open_store, system_ports
from perdure.providers.script import call, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.codec import encode
from perdure.records.seqs import NO_SEQ
from perdure.storage import locks
from perdure.storage.sqlite.container import TABLES
from perdure.toolkits.shell import shell_tools
from tests.engine import Engine, Probe

YEARS_MS = 10 * 365 * 24 * 3_600_000
REOPENINGS = 1_000


@pytest.fixture(autouse=True)
def may_block(no_blocking_calls: BlockBuster) -> Generator[None]:
    """Looking at files between two steps of the engine is what these tests are about."""
    no_blocking_calls.deactivate()
    yield
    no_blocking_calls.activate()


def session(url: str, name: str = "s", script: Any = (), **options: Any) -> Any:
    models = ScriptedModels([*script, say("fine", uses=0)])
    return perdure.open(url, session=name, model="scripted:x", models=models, **options)


# ------------------------------------------------------------------------------ URLs


@pytest.mark.spec("SN-01")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "memory:x",
        "sqlite",
        "sqlite:",
        "jsonl:d",
        "postgresql://h/d",
        "file:a",
        "a.db",
    ],
)
def test_another_store_is_refused_and_the_ones_there_are_are_named(url: str) -> None:
    with pytest.raises(Rejected) as caught:
        open_store(url, system_ports())
    assert repr(url) in caught.value.message
    for scheme in SCHEMES:
        assert scheme in caught.value.message


@pytest.mark.parametrize("url", ["sqlite:.", "sqlite:/", "sqlite:~", "sqlite:../"])
def test_a_folder_is_no_store(url: str) -> None:
    with pytest.raises(Rejected, match="is a folder; name a file in it"):
        open_store(url, system_ports())


@pytest.mark.spec("SN-01")
async def test_a_file_holds_many_sessions_and_a_missing_folder_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such"
    with pytest.raises(Rejected, match="is missing") as caught:
        async with session(f"sqlite:{missing / 'a.db'}"):
            raise AssertionError
    assert str(missing) in caught.value.message
    assert not missing.parent.exists()
    for name in ("one", "two"):
        async with session(f"sqlite:{tmp_path / 'a.db'}", name) as harness:
            assert (await (await harness.root()).prompt("hi")).text == "fine"
    sessions = open_store(f"sqlite:{tmp_path / 'a.db'}", system_ports())
    assert [info.name for info in await sessions.page(after=None, limit=9)] == ["one", "two"]
    await sessions.close()
    async with session("memory:") as harness:
        assert (await (await harness.root()).prompt("hi")).text == "fine"


@pytest.mark.spec("SN-01")
def test_only_the_data_folder_is_made_and_it_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "deep" / "data"))
    made_ready(f"sqlite:{tmp_path / 'other' / 'a.db'}")
    assert list(tmp_path.iterdir()) == []
    made_ready(f"sqlite:{tmp_path / 'deep' / 'data' / 'sessions.db'}")
    assert stat.S_IMODE((tmp_path / "deep" / "data").stat().st_mode) == 0o700


def test_a_data_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "data"
    monkeypatch.setenv("PERDURE_HOME", str(folder))
    with pytest.raises(UsageProblem) as caught:
        made_ready(f"sqlite:{folder / 'sessions.db'}")
    assert str(folder) in caught.value.message
    assert "PERDURE_HOME" in (caught.value.hint or "")


# ------------------------------------------------------------------------------ deletion


DELETE = """
import asyncio, os, signal, sys
from pathlib import Path
from perdure.hosts.clock import SystemClock
from perdure.hosts.randomness import SystemRandomness
from perdure.storage.sqlite import SqliteSessions, container

def dying(tables, step):
    for number, table in enumerate(tables):
        if number == step:
            os.kill(os.getpid(), signal.SIGKILL)
        yield table

async def main():
    sessions = SqliteSessions(Path(sys.argv[1]), clock=SystemClock(), randomness=SystemRandomness())
    container.TABLES = list(container.TABLES)
    container.TABLES = type("Tables", (list,), {
        "__iter__": lambda self: dying(list.__iter__(self), int(sys.argv[2]))})(container.TABLES)
    await sessions.delete("gone")
    await sessions.close()

asyncio.run(main())
"""


async def played(store: Path, name: str) -> None:
    pixels = "x" * 70_000
    script = [say(call("probe"), call("shell", {"command": "echo hi"})), say(pixels)]
    tools = [Probe("probe"), *shell_tools(store.parent)]
    yes = perdure.Permissions(yes=True)
    async with session(f"sqlite:{store}", name, script, tools=tools, permissions=yes) as harness:
        root = await harness.root()
        await root.prompt("go", request_id="r")
        await root.accept("left over")


async def everything(store: Path, name: str) -> list[bytes]:
    sessions = open_store(f"sqlite:{store}", system_ports())
    storage = await sessions.open(name, create=False, read_only=True)
    found = [encode(commit) for commit in await storage.commits(after=NO_SEQ, limit=1_000)]
    await sessions.close()
    return found


def rows(store: Path) -> dict[str, list[tuple[object, ...]]]:
    """Answer every row that names no session `gone`, table by table."""
    conn = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    try:
        (kept,) = conn.execute("SELECT id FROM session WHERE name='kept'").fetchone()
        return {
            table: conn.execute(f"SELECT * FROM {table} WHERE session=?", (kept,)).fetchall()
            for table in TABLES
        }
    finally:
        conn.close()


def counted(store: Path) -> dict[str, int]:
    conn = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    try:
        return {
            table: conn.execute(f"SELECT count(DISTINCT session) FROM {table}").fetchone()[0]
            for table in TABLES
        }
    finally:
        conn.close()


@pytest.mark.spec("SN-08", "BB-46")
def test_a_kill_while_deleting_leaves_a_session_whole_or_none(tmp_path: Path) -> None:
    store = tmp_path / "a.db"
    for name in ("gone", "kept"):
        asyncio.run(played(store, name))
    whole = asyncio.run(everything(store, "gone"))
    for step in (0, 1, len(TABLES) // 2, len(TABLES) - 1):
        killed = subprocess.run(
            [sys.executable, "-c", DELETE, str(store), str(step)], check=False, timeout=9
        )
        assert killed.returncode == -signal.SIGKILL
        assert asyncio.run(everything(store, "gone")) == whole
    asyncio.run(played(store, "gone"))


@pytest.mark.spec("SN-08")
async def test_deletion_takes_all_of_a_session_and_nothing_of_another(tmp_path: Path) -> None:
    store = tmp_path / "a.db"
    for name in ("gone", "kept"):
        await played(store, name)
    launches = Path(f"{store}.launch")
    sessions = open_store(f"sqlite:{store}", system_ports())
    ids = {info.name: info.id for info in await sessions.page(after=None, limit=9)}
    for one in ids.values():
        (launches / one / "left").mkdir(parents=True, exist_ok=True)
    before, kept = rows(store), files(tmp_path, but=ids["gone"])
    owner = await sessions.open("gone", create=False)
    other = open_store(f"sqlite:{store}", system_ports())
    with pytest.raises(StorageBusy):
        await other.delete("gone")
    await other.close()
    await owner.close()
    await sessions.delete("gone")
    remove_launches(f"sqlite:{store}", ids["gone"])
    await sessions.close()
    assert rows(store) == before
    assert set(counted(store).values()) <= {0, 1}
    left = files(tmp_path, but="")
    assert {name: left.get(name) for name in kept} == kept
    assert not [name for name in left if ids["gone"] in name]
    assert not (launches / ids["gone"]).exists()
    sessions = open_store(f"sqlite:{store}", system_ports())
    with pytest.raises(Rejected, match="there is no session named 'gone'") as caught:
        await sessions.delete("gone")
    assert caught.value.code == "not_found"
    again = await sessions.open("gone", create=True)
    assert again.info.id != ids["gone"]
    assert again.last_seq == 0
    await sessions.close()


def files(folder: Path, *, but: str) -> dict[str, str]:
    """Answer name and digest of every file but the container and one session's own."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("a.db-") and path.name != "a.db"
        if not but or but not in str(path)
    }


@pytest.mark.spec("SN-09")
async def test_ten_years_and_a_thousand_reopenings_change_no_byte(engine: Engine) -> None:
    root = await engine.root([say(call("probe")), say("done")], tools=[Probe("probe")])
    await root.prompt("go")
    await root.accept("left over")
    before = [encode(commit) for commit in await engine.commits()]
    await engine.close()
    for _ in range(REOPENINGS):
        engine.clock.advance(YEARS_MS // REOPENINGS)
        storage = await engine.sessions.open("test", create=True)
        await storage.close()
    for _ in range(3):
        await engine.open(tools=[Probe("probe")])
        assert [encode(commit) for commit in await engine.commits()] == before
        await engine.close()


# ------------------------------------------------------------------------------ launches


@pytest.mark.spec("SN-13")
async def test_launch_folders_lie_beside_the_store_or_in_a_private_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    places = {
        f"sqlite:{tmp_path / 'a.db'}": f"{tmp_path}/a.db.launch/*/*",
        "memory:": f"{tmp_path}/perdure-*/*/*",
    }
    for url, pattern in places.items():
        command = f"for d in {pattern}; do echo $d; done; stat -c %a $(dirname $(dirname $d))"
        script = [say(call("shell", {"command": command})), say("done")]
        async with session(
            url,
            script=script,
            tools=shell_tools(tmp_path),
            permissions=perdure.Permissions(yes=True),
        ) as harness:
            root = await harness.root()
            await root.prompt("go")
            entries = await root.entries(limit=50)
            (result,) = [entry for entry in entries if entry.kind == "tool_result"]
            text = result.payload["message"]["content"][0]["text"]
            place, mode, *_ = text.splitlines()
            assert Path(place).parent.name == harness.info.id
            assert mode == "700"
        assert not Path(place).exists()
    assert not list(tmp_path.glob("perdure-*"))


# ------------------------------------------------------------------------------ other systems


@pytest.mark.spec("SN-15")
async def test_without_file_locks_memory_works_and_the_rest_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "HAS_LOCKS", False)
    async with session("memory:") as harness:
        assert (await (await harness.root()).prompt("hi")).text == "fine"
    with pytest.raises(Rejected, match="needs file locks, which perdure uses on Linux and macOS"):
        async with session(f"sqlite:{tmp_path / 'a.db'}"):
            raise AssertionError
    with pytest.raises(Rejected, match="the tool 'shell' starts commands"):
        async with session("memory:", tools=shell_tools(tmp_path)):
            raise AssertionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("SN-15")
def test_a_memory_session_there_needs_no_module_of_linux_and_macos() -> None:
    code = (
        "import sys; sys.modules.update(fcntl=None, pwd=None, termios=None, resource=None)\n"
        "import perdure\n"
        "from perdure import opening\n"
        "opening.HAS_LOCKS = False\n"
        "from perdure.providers.scripted import ScriptedModels\n"
        "from perdure.providers.script import say\n"
        "async def main():\n"
        "    models = ScriptedModels([say('fine')])\n"
        "    async with perdure.open('memory:', session='s', model='scripted:x',"
        " models=models) as harness:\n"
        "        return (await (await harness.root()).prompt('hi')).text\n"
        "print(perdure.run(main()))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=9
    )
    assert (ended.stdout, ended.returncode) == ("fine\n", 0), ended.stderr


@pytest.mark.spec("SN-15")
async def test_a_file_system_without_locks_is_busy_with_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session(f"sqlite:{tmp_path / 'a.db'}"):
        pass

    def refusing(handle: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refusing)
    with pytest.raises(StorageBusy, match=r"the file system refuses the lock .*No locks available"):
        async with session(f"sqlite:{tmp_path / 'a.db'}"):
            raise AssertionError
    monkeypatch.undo()
    async with session(f"sqlite:{tmp_path / 'a.db'}") as harness:
        assert (await (await harness.root()).prompt("hi")).text == "fine"
