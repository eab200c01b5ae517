"""A second writer is told when the first one came, whatever number stands in the lock."""

import os
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest

import perdure
from perdure.errors import StorageBusy
from perdure.records.sessions import Owner
from perdure.storage.locks import FileLock, holder_of
from perdure.storage.owners import busy, instant
from perdure.testing.scripted_model import UNLIMITED, ScriptedModels, say


def test_the_refusal_says_the_time_and_keeps_the_number() -> None:
    error = busy("the session 'a'", Owner(pid=7, host="h", since=1_700_000_000_999))
    assert str(error).endswith("process 7 on host h since 2023-11-14T22:13:20+00:00")
    assert error.holder == {"pid": 7, "host": "h", "since": 1_700_000_000_999, "epoch": 0}
    assert "another process" in str(busy("it", None))


@pytest.mark.parametrize("ms", [10**15, -(10**17), 10**400, 2**63])
def test_a_number_that_is_no_time_stays_a_number(ms: int) -> None:
    assert instant(ms) == f"{ms} ms"


def test_a_time_before_1970_is_a_time() -> None:
    assert instant(-1_000) == "1969-12-31T23:59:59+00:00"


def left_by_a_dead_owner(folder: Path, name: str = "perdure-control-x") -> Path:
    control = folder / name
    control.mkdir(mode=0o700)
    for file in ("socket", "token"):
        (control / file).write_text("left")
    return control / "socket"


def dead_pid() -> int:
    dead = subprocess.Popen(["true"])
    dead.wait()
    return dead.pid


def lock_of(folder: Path, control: Path, *, host: str | None = None) -> Path:
    path = folder / "lock"
    owner = Owner(pid=dead_pid(), host=host or os.uname().nodename, since=1, control=str(control))
    path.write_bytes(msgspec.json.encode(owner))
    return path


@pytest.mark.spec("SN-11")
def test_the_next_owner_removes_what_a_killed_one_listened_on(tmp_path: Path) -> None:
    control = left_by_a_dead_owner(tmp_path)
    FileLock.acquire(lock_of(tmp_path, control), "it").release()
    assert not control.parent.exists()


@pytest.mark.spec("SN-11")
@pytest.mark.parametrize("case", ["another folder", "another host", "a link", "more files"])
def test_a_lock_file_can_have_nothing_removed_that_is_no_control_address(
    tmp_path: Path, case: str
) -> None:
    control = left_by_a_dead_owner(
        tmp_path, "mine" if case == "another folder" else "perdure-control-x"
    )
    host = "elsewhere" if case == "another host" else None
    if case == "a link":
        link = tmp_path / "perdure-control-link"
        link.symlink_to(control.parent)
        control = link / "socket"
    kept = [control]
    if case == "more files":
        kept = [control.parent / "notes"]
        kept[0].write_text("mine")
    FileLock.acquire(lock_of(tmp_path, control, host=host), "it").release()
    assert all(path.exists() for path in kept)


@pytest.mark.spec("SN-11")
async def test_the_lock_names_pid_host_time_epoch_and_control_address(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'store.db'}"
    models = ScriptedModels([say("x", uses=UNLIMITED)])
    async with perdure.open(url, session="a", model="scripted:x", models=models) as harness:
        (lock,) = tmp_path.glob("*.lock")
        owner = holder_of(lock)
        assert owner is not None
        assert (owner.pid, owner.host) == (os.getpid(), os.uname().nodename)
        assert owner.epoch == harness.info.epoch == 1
        assert owner.since > 0
        assert owner.control is not None
        address = Path(owner.control)
        assert stat.S_ISSOCK(address.lstat().st_mode)
        with pytest.raises(StorageBusy) as refused:
            async with perdure.open(url, session="a", model="scripted:x", models=models):
                pass
        assert refused.value.holder["control"] == owner.control
        assert address.exists()
    assert not address.parent.exists()
    assert holder_of(lock) is None


async def test_a_session_listens_on_nothing_when_it_is_told_to(tmp_path: Path) -> None:
    models = ScriptedModels([say("x", uses=UNLIMITED)])
    for url in ("memory:", f"sqlite:{tmp_path / 'store.db'}"):
        async with perdure.open(
            url, session="a", model="scripted:x", models=models, control=url == "memory:"
        ) as harness:
            assert harness.info.owner is not None
            assert harness.info.owner.control is None
