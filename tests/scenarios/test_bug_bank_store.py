"""Failures that users of other systems met, as cases: torn tails, full disks, crowds, processes."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from blockbuster import BlockBuster

import perdure
from perdure.errors import Faulted
from perdure.hosts.clock import SystemClock
from perdure.hosts.randomness import SystemRandomness
from perdure.opening import OpenSession
from perdure.providers.script import Reply, call, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.images import image_part
from perdure.records.messages import ImagePart, TextPart, ToolResultMessage, UserMessage
from perdure.records.models import ModelRequest
from perdure.storage.sqlite import SqliteSessions
from perdure.testing.crash_rig.audit import Journal, end_faults
from perdure.testing.power_rig import FULL, IOERR_WRITE, PowerRig
from perdure.testing.storage_lab import Batch
from perdure.testing.strict_wire import StrictWire
from perdure.toolkits.shell import shell_tools
from tests.unit.records.test_images import png

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def may_block(no_blocking_calls: BlockBuster) -> Generator[None]:
    """Copying files between two steps of the engine is what these cases are about."""
    no_blocking_calls.deactivate()
    yield
    no_blocking_calls.activate()


def reply_to(request: ModelRequest) -> Reply:
    newest = request.messages[len(request.messages) - 1]
    if isinstance(newest, ToolResultMessage):
        return say("done")
    return say("fine") if "more" in str(newest.content) else say(call("act"))


class Store:
    """A session in a file, reopened at will; inputs are acknowledged to the test alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.acks: dict[str, int] = {}
        self.runs = 0

    def opened(self, folder: Path | None = None, **options: Any) -> Any:
        @perdure.tool
        async def act() -> str:
            """Act."""
            self.runs += 1
            return "acted"

        self.wire = StrictWire(ScriptedModels(reply_to, clock=SystemClock()))
        place = (folder or self.folder) / "store.db"
        return perdure.open(
            f"sqlite:{place}",
            session="case",
            model="scripted:case",
            models=self.wire,
            tools=[act],
            retry=perdure.RetryPolicy(base_delay_ms=1),
            on_error=lambda error, task: None,
            **options,
        )

    async def say(self, harness: perdure.Harness, request_id: str) -> None:
        root = await harness.root()
        accepted = await root.accept(f"do {request_id}", request_id=request_id)
        self.acks[request_id] = accepted.input_id
        await harness.drive()

    async def say_many(self, harness: perdure.Harness, count: int) -> None:
        for number in range(count):
            await self.say(harness, f"during-{number}")

    async def goes_on(self, harness: perdure.Harness) -> Journal:
        """Everything acknowledged is there and final; one more message is accepted."""
        await harness.drive()
        root = await harness.root()
        assert (await root.prompt("one more")).text == "fine"
        assert not self.wire.refused
        journal = Journal().fold(await harness.commits(after=perdure.Seq(0), limit=1_000))
        assert not end_faults(journal)
        assert {key: journal.requests.get(key) for key in self.acks} == self.acks
        return journal


CUTS = 40


@pytest.mark.timeout(60)
@pytest.mark.spec("BB-07")
async def test_a_torn_tail_costs_the_torn_commit_only(tmp_path: Path) -> None:
    """SQLite's last records are the frames of its write-ahead file: cut there, anywhere."""
    store = Store(tmp_path)
    async with store.opened() as harness:
        for number in range(3):
            await store.say(harness, f"r{number}")
        commits = await harness.commits(after=perdure.Seq(0), limit=1_000)
        shutil.copytree(tmp_path, tmp_path / "torn")
    ends = {commit.last_seq for commit in commits}
    acks, whole = store.acks, (tmp_path / "torn" / "store.db-wal").read_bytes()
    kept: set[int] = set()
    for number in range(CUTS):
        folder = tmp_path / f"cut-{number}"
        shutil.copytree(tmp_path / "torn", folder)
        (folder / "store.db-wal").write_bytes(whole[: len(whole) * number // CUTS])
        for is_again in (False, True):
            async with store.opened(folder) as harness:
                before = await harness.commits(after=perdure.Seq(0), limit=1_000)
                assert before[-1].last_seq in ends
                kept.add(before[-1].last_seq)
                if not is_again:
                    head = before[-1].last_seq
                    store.acks = {key: seq for key, seq in acks.items() if seq <= head}
                ends.add((await store.goes_on(harness)).last_seq)
    assert len(kept) > CUTS // 2, "the cuts fell into nothing"


def full_disk(rig: PowerRig, nth: int) -> None:
    rig.fail_write(nth, code=FULL, keep_bytes=40)


def broken_write(rig: PowerRig, nth: int) -> None:
    rig.fail_write(nth, code=IOERR_WRITE)


def broken_sync(rig: PowerRig, nth: int) -> None:
    rig.fail_sync(1 + nth % 3)


@pytest.fixture
async def rig() -> AsyncIterator[PowerRig]:
    with PowerRig() as rig:
        yield rig


@pytest.mark.skipif(not PowerRig.available(), reason="SQLite's library cannot be reached")
@pytest.mark.timeout(60)
@pytest.mark.spec("BB-08", "BB-09", "BR-08", "FT-01", "FT-03", "FT-04", "FT-05")
@pytest.mark.parametrize("nth", [1, 2, 5, 9, 14, 22, 31])
@pytest.mark.parametrize("fault", [full_disk, broken_write, broken_sync])
async def test_a_failing_disk_is_said_at_once_and_loses_nothing_acknowledged(
    rig: PowerRig, tmp_path: Path, fault: Callable[[PowerRig, int], None], nth: int
) -> None:
    store = Store(tmp_path)
    async with store.opened() as harness:
        await store.say(harness, "before")
        fault(rig, nth)
        with pytest.raises(Faulted) as first:
            await store.say_many(harness, 10)
        # The disk has room again, and still nobody is told "accepted" by this handle.
        root = await harness.root()
        for _ in range(3):
            with pytest.raises(Faulted) as again:
                await root.accept("after")
            assert again.value.code == first.value.code
        with pytest.raises(Faulted):
            await harness.drive()
    async with store.opened() as harness:
        journal = await store.goes_on(harness)
    assert all(row.outcome in ("finished", "interrupted") for row in journal.results)
    calls = [task for task in journal.tasks.values() if task.kind == "tool"]
    assert store.runs <= len(calls)


@pytest.mark.timeout(60)
@pytest.mark.spec("BB-11", "SN-12")
def test_a_crowd_in_one_file_finishes_in_spite_of_a_rude_outsider(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.scenarios.crowd_story", str(tmp_path / "store.db")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert [line[:3] for line in lines] == [["0", "7", "0"]] * 8, ran.stderr
    assert all(int(line[3]) >= 20 for line in lines)
    assert not ran.stderr


@pytest.mark.timeout(60)
@pytest.mark.spec("BB-11", "SN-12")
async def test_a_wait_for_a_lock_that_takes_too_long_is_said(tmp_path: Path) -> None:
    store = Store(tmp_path)
    async with store.opened():
        pass
    sessions = SqliteSessions(
        tmp_path / "store.db",
        clock=SystemClock(),
        randomness=SystemRandomness(),
        busy_seconds=0.05,
    )
    storage = await sessions.open("case", create=False)
    rude = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    rude.execute("BEGIN IMMEDIATE")
    other = SqliteSessions(
        tmp_path / "store.db",
        clock=SystemClock(),
        randomness=SystemRandomness(),
        busy_seconds=0.05,
    )
    with pytest.raises(perdure.StorageBusy):
        await other.open("second", create=True)
    batch = Batch(storage, storage.info.last_commit_ms)
    batch.set("n", 1)
    with pytest.raises(Faulted):
        await batch.commit(barrier=True)
    rude.execute("ROLLBACK")
    rude.close()
    for one in (other, sessions):
        await one.close()


# BB-20: after abort the grandchildren work on.

BEAT = "(while :; do echo beat >> beat.txt; sleep 0.02; done) & {trap} echo here > told; wait"


def beats(folder: Path) -> list[str]:
    """Name the living processes of the command: they stand in its folder."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            if b"beat.txt" in command and (path / "cwd").readlink() == folder:
                found.append(path.name)
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads procfs to see who lives")
@pytest.mark.timeout(60)
@pytest.mark.spec("BB-20")
@pytest.mark.parametrize("how", ["abort", "time limit", "close"])
async def test_when_a_command_is_stopped_its_grandchildren_are(tmp_path: Path, how: str) -> None:
    os.mkfifo(tmp_path / "told")
    timeout = {"timeout_s": 1} if how == "time limit" else {}

    def script(request: ModelRequest) -> Reply:
        newest = request.messages[len(request.messages) - 1]
        if isinstance(newest, ToolResultMessage) or "more" in str(newest.content):
            return say("fine")
        return say(call("shell", {"command": BEAT.format(trap=""), **timeout}))

    wire = StrictWire(ScriptedModels(script, clock=SystemClock()))
    opened = perdure.open(
        f"sqlite:{tmp_path / 'store.db'}",
        session="case",
        model="scripted:case",
        models=wire,
        tools=shell_tools(tmp_path),
        permissions=perdure.Permissions(yes=True),
    )
    async with opened as harness:
        root = await harness.root()
        await root.accept("go")
        driving = asyncio.ensure_future(harness.drive())
        told = asyncio.get_running_loop().run_in_executor(None, (tmp_path / "told").read_text)
        assert await told == "here\n"
        assert beats(tmp_path)
        if how == "abort":
            await root.abort()
        if how == "close":
            await harness.close()
        await driving
        assert beats(tmp_path) == []
        size = (tmp_path / "beat.txt").stat().st_size
        if how != "close":
            assert (await root.prompt("one more")).text == "fine"
        assert (tmp_path / "beat.txt").stat().st_size == size


# BB-28: what is stored grows with the square of the number of turns, or with each fork.

ATTACHMENT_BYTES = 3 * 1024 * 1024


@perdure.tool(replay="safe")
async def five_kilobytes(turn: int) -> str:
    """Answer 5 KB that no other turn answers."""
    return f"{turn:06} " * 730


def stored(folder: Path) -> tuple[int, int]:
    """Count the bytes and the journal's rows of a closed store."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    with closing(sqlite3.connect(folder / "store.db")) as store:
        (rows,) = store.execute("SELECT count(*) FROM journal").fetchone()
    return size, rows


@pytest.mark.parametrize(
    "turns", [100, pytest.param(500, marks=[pytest.mark.deep, pytest.mark.timeout(300)])]
)
async def test_a_store_grows_in_a_straight_line(tmp_path: Path, turns: int) -> None:
    def script(request: ModelRequest) -> Reply:
        newest = request.messages[len(request.messages) - 1]
        if isinstance(newest, ToolResultMessage):
            return say("done")
        return say(call("five_kilobytes", {"turn": len(request.messages)}))

    attachment = image_part(png(640, 480) + Random(28).randbytes(ATTACHMENT_BYTES))
    sizes: list[tuple[int, int]] = []
    turn = 0
    for goal in (turns, 2 * turns, 4 * turns):
        async with perdure.open(
            f"sqlite:{tmp_path / 'store.db'}",
            session="case",
            model="scripted:case",
            models=ScriptedModels(script, clock=SystemClock()),
            tools=[five_kilobytes],
            durability="process",
        ) as harness:
            root = await harness.root()
            while turn < goal:
                said = UserMessage(content=(TextPart(text="go"), attachment)) if turn == 0 else "go"
                assert (await root.prompt(said)).state == "answered"
                turn += 1
        sizes.append(await asyncio.get_running_loop().run_in_executor(None, stored, tmp_path))
    first, second, third = (size for size, _ in sizes)
    assert (third - second) <= 2.2 * (second - first)
    rows = [count for _, count in sizes]
    assert rows[2] - rows[1] <= 2.01 * (rows[1] - rows[0])
    assert first < 1.4 * ATTACHMENT_BYTES + turns * 20_000, "the attachment is stored once"


FORKS = 50


@pytest.mark.spec("BB-28", "BR-14", "FK-02")
async def test_fifty_forks_store_their_attachment_once(tmp_path: Path) -> None:
    attachment = image_part(png(640, 480) + Random(28).randbytes(ATTACHMENT_BYTES))
    asked: list[int] = []

    def script(request: ModelRequest) -> Reply:
        parts = [part for message in request.messages for part in message.content]
        asked.append(sum(isinstance(part, ImagePart) for part in parts))
        return say("seen")

    def opened() -> OpenSession:
        return perdure.open(
            f"sqlite:{tmp_path / 'store.db'}",
            session="case",
            model="scripted:case",
            models=ScriptedModels(script, clock=SystemClock()),
            durability="process",
        )

    loop = asyncio.get_running_loop()
    async with opened() as harness:
        root = await harness.root()
        first = await root.prompt(UserMessage(content=(TextPart(text="look"), attachment)))
    before, _ = await loop.run_in_executor(None, stored, tmp_path)
    async with opened() as harness:
        root = last = await harness.root()
        for number in range(FORKS):
            # Half of them stand beside each other, half are forks of forks.
            source = last if number % 2 else root
            last = await source.fork(at=first.answer if number % 3 else None)
            assert (await last.prompt("and now?")).text == "seen"
    assert asked == [1] * (FORKS + 1), "every fork shows its model the attachment"
    after, _ = await loop.run_in_executor(None, stored, tmp_path)
    assert after - before < FORKS * 5_000
