"""What an earlier release stored is read, driven to its end and continued (FM-12, FM-14, FM-16)."""

import asyncio
import base64
import contextlib
import shutil
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

import pytest

from perdure.drive.outcomes import Inspection
from perdure.harness.conversation import Conversation
from perdure.providers.script import Reply, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.addresses import ConversationList, ConversationValue, SessionValue
from perdure.records.codec import encode
from perdure.records.models import ModelRequest
from perdure.records.seqs import NO_SEQ
from perdure.records.sessions import ConversationScan, EntryScan, ListPage, TaskScan
from perdure.records.tasks import Role
from perdure.storage.sqlite import SqliteSessions
from perdure.testing.strict_wire import StrictWire
from tests.engine import Probe
from tests.format.make_sqlite import FOLDER, MOMENTS, PIXEL, AtMoment
from tests.format.released import KINDS, names, released

FROZEN: Final = sorted(FOLDER.glob("*.sqlite"))
UNWRITTEN: Final = frozenset(
    {
        ("tool", "waiting"), ("tool", "finishing"),
        ("approval", "pending"), ("approval", "waiting"),
    }
)  # fmt: skip
"""Statuses that no release has written yet."""

BYTES_MAX: Final = 300_000

LAST: Final = "one more message"

ANSWERED: Final = "prompt: answered an answer"

ENDINGS: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "accepted": [ANSWERED],
        "retrying": [ANSWERED],
        "deferred": ["prompt: answered at last"],
        "polling": ["prompt: answered at last"],
        "streaming": [ANSWERED, "followUp: answered an answer", "write: placed"],
        "calling": [ANSWERED, "pay: interrupted", "look: finished"],
        "queueing": [ANSWERED, "first: interrupted", "second: finished"],
        "truncated": [ANSWERED, "pay: notStarted"],
        "joining": [ANSWERED, "look: finished"],
        "settled": [
            "prompt: answered Done.", "draw: finished",
            "prompt: answered Handed over.", "nothing: notStarted", "hand: finished",
            "prompt: failed", "nextRun: answered an answer",
        ],
    }
)  # fmt: skip
"""What becomes of every input and call of a moment when it is driven to its end."""


@pytest.fixture(params=FROZEN, ids=lambda path: path.stem)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Answer a folder with a copy of a frozen container."""
    copy = Path(shutil.copy(request.param, tmp_path / "store.db"))
    copy.chmod(0o600)
    return tmp_path


@pytest.fixture(params=MOMENTS)
async def frozen(request: pytest.FixtureRequest, store: Path) -> AsyncIterator[AtMoment]:
    """Answer an engine on the session of one moment."""
    engine = AtMoment(store, request.param)
    yield engine
    await engine.aclose()


def answer(request: ModelRequest) -> Reply:
    return say("an answer")


async def opened(engine: AtMoment) -> tuple[Conversation, StrictWire]:
    """Open as this release does, with a model that refuses what real ones refuse."""
    tools = [Probe(name) for name in ("pay", "first", "second", "draw", "hand")]
    wire = StrictWire(ScriptedModels(answer, clock=engine.clock))
    harness = await engine.open(models=wire, tools=[*tools, Probe("look", replay="safe")])
    return await harness.root(), wire


async def patiently(engine: AtMoment, work: Any) -> Any:
    """Let something run while time goes on by itself."""
    task = engine.begin(work)
    while not task.done():
        due = engine.clock.next_due_ms()
        if due is not None:
            engine.clock.advance(due)
        await asyncio.sleep(0)
    return task.result()


async def endings(engine: AtMoment, root: Conversation) -> list[str]:
    """Answer what became of every input and call."""
    found: list[str] = []
    for entry in await root.entries(limit=1_000):
        if entry.kind == "tool_result":
            found.append(f"{entry.payload['message']['toolName']}: {entry.meta.outcome}")
        elif entry.kind in ("user", "input") and not entry.meta.handoff:
            if entry.ref:
                continue
            result = await root.result(entry.id)
            found.append(f"{result.mode}: {result.state} {result.text}".rstrip())
    return found


async def journal(engine: AtMoment) -> list[bytes]:
    return [encode(commit) for commit in await engine.harness.commits(after=NO_SEQ, limit=1_000)]


@pytest.mark.spec("FM-16")
async def test_a_frozen_session_is_read_driven_to_its_end_and_continued(frozen: AtMoment) -> None:
    root, wire = await opened(frozen)
    before = await journal(frozen)
    for _ in range(4):
        drive = await patiently(frozen, frozen.harness.drive(poll_deferred=True))
        if drive.outcome == "idle":
            break
    assert (await patiently(frozen, root.prompt(LAST))).text == "an answer"
    assert not wire.refused
    assert frozen.errors == []
    assert frozen.harness.inspect() == Inspection()
    *ends, last = await endings(frozen, root)
    assert ends == ENDINGS[frozen.session]
    assert last == ANSWERED
    after = await journal(frozen)
    assert after[: len(before)] == before
    await frozen.close()
    root, wire = await opened(frozen)
    assert await journal(frozen) == after
    assert (await patiently(frozen, root.prompt(LAST))).text == "an answer"
    assert not wire.refused


@pytest.mark.spec("FM-16")
async def test_what_a_frozen_session_holds_reads_back_in_full(store: Path) -> None:
    engine = AtMoment(store, "settled")
    root, _ = await opened(engine)
    entries = [entry for entry in await root.entries(limit=1_000) if entry.kind == "tool_result"]
    drawn = next(entry for entry in entries if entry.payload["message"]["toolName"] == "draw")
    message = drawn.payload["message"]
    assert message["details"] == {
        "n": 9007199254740993,
        "text": "Gr\u00fc\u00dfe \U0001f600",
        "none": None,
    }
    assert message["cut"] == {"bytes": 400, "kept": "tail"}
    assert base64.b64decode(message["content"][1]["data"]) == PIXEL
    assert await root.get_value(ConversationValue("app.note"), None) == {"a": [1, None, "x"]}
    assert await engine.harness.get_value(SessionValue("app.count"), None) == 2**64
    log = await root.read_list(ConversationList("app.log"), ListPage(limit=10))
    assert [(one.tag, one.value) for one in log] == [("t0", 0), ("t1", 1), ("t2", 2)]
    totals = await engine.harness.usage_totals()
    assert (totals.reports, totals.input.tokens) == (3, 201)
    await engine.aclose()


@pytest.mark.spec("FM-16")
@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_container_is_small_sound_and_nobodys(path: Path) -> None:
    assert path.stat().st_size < BYTES_MAX
    with contextlib.closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert conn.execute("SELECT count(*) FROM session WHERE owner IS NOT NULL").fetchone() == (
            0,
        )
        assert conn.execute("SELECT DISTINCT host FROM opening").fetchall() == [("host",)]


async def read_all(engine: AtMoment) -> list[object]:
    """Read a session's tasks, entries and conversations through the indexes."""
    storage = await engine.sessions.open(engine.session, create=False, read_only=True)
    try:
        return [
            list(await storage.commits(after=NO_SEQ, limit=1_000)),
            list(await storage.scan_tasks(TaskScan(limit=1_000))),
            list(await storage.scan_entries(EntryScan(limit=1_000))),
            list(await storage.scan_conversations(ConversationScan(limit=1_000))),
        ]
    finally:
        await storage.close()


@pytest.mark.spec("FM-16")
async def test_a_frozen_container_equals_its_own_journal(store: Path) -> None:
    for name in MOMENTS:
        engine = AtMoment(store, name)
        before = await read_all(engine)
        await cast("SqliteSessions", engine.sessions).rebuild()
        assert await read_all(engine) == before
        await engine.sessions.close()


@pytest.mark.spec("FM-16")
async def test_frozen_sessions_hold_every_kind_in_every_status_it_lives_in(tmp_path: Path) -> None:
    held: set[tuple[str, str]] = set()
    for path in FROZEN:
        copy = Path(shutil.copy(path, tmp_path / "store.db"))
        copy.chmod(0o600)
        for name in MOMENTS:
            engine = AtMoment(tmp_path, name)
            storage = await engine.sessions.open(name, create=False, read_only=True)
            live = await storage.scan_tasks(TaskScan(live=True, limit=100))
            held |= {(task.kind, task.status) for task in live}
            await engine.sessions.close()
    lived_in = {
        (kind.facts.name, status)
        for kind in KINDS
        for status, role in kind.facts.roles.items()
        if role is not Role.TERMINAL
    }
    assert held == lived_in - UNWRITTEN


@pytest.mark.spec("FM-14")
def test_names_only_grow() -> None:
    mapped = {
        f"{kind.facts.name} {old} {kind.facts.roles[new].value}"
        for kind in KINDS
        for old, new in kind.facts.mapped.items()
    }
    now = names()
    for what in released().keys() - {"fields"}:
        gone = set(released()[what]) - set(now[what])
        assert gone <= (mapped if what == "statuses" else set()), what


@pytest.mark.spec("FM-14")
def test_every_name_of_this_release_is_listed() -> None:
    for what, words in names().items():
        assert set(words) <= set(released()[what]), "run: python -m tests.format.released"


def test_a_stored_name_never_means_another_field() -> None:
    meant = {tuple(one.split()[:2]): one.split()[2] for one in released()["fields"]}
    for field in names()["fields"]:
        noun, stored, python = field.split()
        assert meant.get((noun, stored), python) == python, field
