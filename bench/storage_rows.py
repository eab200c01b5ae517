"""What a durable command and a historical read cost, below the harness."""

import asyncio
import resource
import sqlite3
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Raw, Struct

from bench.floors import FIVE_ROWS, PAYLOAD, connect, stored_bytes
from perdure.kinds.content import CORE_CONTENT
from perdure.line.command import Command
from perdure.line.facts import KindTable, TaskFacts
from perdure.line.line import Line
from perdure.opening import SilentTelemetry, open_store, system_ports
from perdure.ports import Sessions, Storage
from perdure.records.addresses import ConversationList, ConversationValue, SessionList
from perdure.records.entries import Entry, EntryMeta
from perdure.records.messages import TextPart, UserMessage, UserPayload
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage
from perdure.records.tasks import Role, Task

Figures = dict[str, float]

PARALLEL_SESSIONS = 64
PACED_COMMITS_PER_S = 3_000
PACED_BURST = 4
STALL_MS = 2.0
LIST_PAGE = 100
VERSIONS = 2_000

NOTES: SessionList[object] = SessionList("bench.notes")
BOARD: ConversationValue[object] = ConversationValue("bench.board")
MOVES: ConversationList[object] = ConversationList("bench.moves")


class BenchState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a task that only the benchmark knows."""

    v: Literal[1]
    count: int = 0


KINDS = KindTable(
    [
        TaskFacts(
            name="bench",
            roles={"going": Role.START, "done": Role.TERMINAL},
            initials=frozenset({"going"}),
            transitions={"going": frozenset({"going", "done"})},
            state=BenchState,
        )
    ],
    [kind.facts for kind in CORE_CONTENT.values()],
)


def cpu_s() -> float:
    """Answer the process's CPU seconds, its threads included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Writer:
    """A line over one session, with a conversation and a task to write to."""

    def __init__(self, line: Line, storage: Storage) -> None:
        self.line = line
        self.storage = storage
        self.conv_id = Seq(0)
        self.task_id = Seq(0)
        self._count = 0

    async def start(self) -> None:
        """Create the conversation and the task."""

        def build(tx: Command) -> None:
            self.conv_id = tx.insert_conversation()
            self.task_id = tx.insert_task(self.conv_id, "bench", BenchState(v=1), status="going")

        await self.line.submit(build, barrier=False)
        self.line.residency.attach(self.conv_id)

    async def five_rows(self, *, barrier: bool = False) -> None:
        """Commit an entry of 1 KiB with its context append, a task patch, a list element."""
        self._count += 1
        payload = UserPayload(messages=(UserMessage(content=(TextPart(text=PAYLOAD),)),))

        async def build(tx: Command) -> None:
            task = await tx.task(self.task_id)
            tx.insert_entry(self.conv_id, "user", EntryMeta(timestamp=1), payload)
            tx.patch(task, count=self._count)
            tx.append_list(NOTES, Raw(b'{"v":1,"settings":"digest","attempt":1}'))

        await self.line.submit(build, barrier=barrier)


async def writers(
    folder: Path, number: int, *, durability: str = "process", url: str = ""
) -> tuple[Sessions, list[Writer]]:
    """Open sessions of one store, each with a line."""
    ports = system_ports()
    sessions = open_store(
        url or f"sqlite:{folder / 'rows.db'}",
        ports,
        durability="power" if durability == "power" else "process",
    )
    made: list[Writer] = []
    for at in range(number):
        storage = await sessions.open(f"s{at}", create=True)
        line = Line(
            storage,
            clock=ports.clock,
            kinds=KINDS,
            telemetry=SilentTelemetry(),
            report=lambda error: None,
        )
        await line.hydrate()
        writer = Writer(line, storage)
        await writer.start()
        made.append(writer)
    return sessions, made


async def command(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure durable five-row commands of one session (G1 to G3, G21)."""
    number = int(facts["commits"])
    durability = facts["durability"]
    sessions, (writer,) = await writers(folder, 1, durability=durability)
    for _ in range(50):
        await writer.five_rows()
    took: list[float] = []
    before = cpu_s()
    for _ in range(number):
        began = time.perf_counter()
        await writer.five_rows(barrier=durability == "power")
        took.append(time.perf_counter() - began)
    spent = cpu_s() - before
    await sessions.close()
    return {
        "cpu_us": 1e6 * spent / number,
        "p50_us": 1e6 * statistics.median(took),
        "bytes": stored_bytes(folder) / (number + 50),
    }


async def many(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure commits a second of 64 sessions that share one store (G4)."""
    number = int(facts["commits"]) // PARALLEL_SESSIONS
    durability = facts["durability"]
    sessions, made = await writers(folder, PARALLEL_SESSIONS, durability=durability)

    async def work(writer: Writer) -> None:
        for _ in range(number):
            await writer.five_rows(barrier=durability == "power")

    began = time.perf_counter()
    await asyncio.gather(*(work(writer) for writer in made))
    took = time.perf_counter() - began
    await sessions.close()
    return {"per_s": number * PARALLEL_SESSIONS / took}


async def lateness(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure how late the loop is at 3,000 commits a second, or with none (G5)."""
    seconds = float(facts["seconds"])
    sessions, made = await writers(folder, PARALLEL_SESSIONS)
    late: list[float] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    async def probe() -> None:
        while loop.time() < end:
            due = loop.time() + 0.001
            await asyncio.sleep(0.001)
            late.append(loop.time() - due)

    async def work(writer: Writer) -> None:
        gap = PARALLEL_SESSIONS / PACED_COMMITS_PER_S
        while loop.time() < end:
            await writer.five_rows()
            await asyncio.sleep(gap)

    busy = [work(writer) for writer in made] if facts["busy"] == "yes" else []
    await asyncio.gather(probe(), *busy)
    await sessions.close()
    return {"p99_ms": 1e3 * statistics.quantiles(late, n=100)[98]}


async def stalls(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Count paced commits that took over 2 ms, in a thousand (G6)."""
    number = int(facts["commits"])
    took: list[float] = []
    if facts["who"] == "perdure":
        sessions, (writer,) = await writers(folder, 1)
        for at in range(number):
            began = time.perf_counter()
            await writer.five_rows()
            took.append(time.perf_counter() - began)
            if at % PACED_BURST == 0:
                await asyncio.sleep(0.01)
        await sessions.close()
    else:
        took = await _default_stalls(folder, number)
    return {"per_1000": 1e3 * sum(one > STALL_MS / 1e3 for one in took) / number}


async def _default_stalls(folder: Path, number: int) -> list[float]:
    conn = connect(folder / "floor.db", full=False)
    conn.execute("PRAGMA wal_autocheckpoint = 1000")
    took: list[float] = []
    for at in range(number):
        began = time.perf_counter()
        conn.execute("BEGIN IMMEDIATE")
        for table in range(FIVE_ROWS):
            conn.execute(
                f"INSERT INTO t{table} (s, k, v) VALUES (?,?,?)",
                (at, "row", PAYLOAD if table == 0 else "{}"),
            )
        conn.execute("COMMIT")
        took.append(time.perf_counter() - began)
        if at % PACED_BURST == 0:
            await asyncio.sleep(0.01)
    conn.close()
    return took


async def memory_command(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure commands of eight records over the memory backend (G7)."""
    number = int(facts["commits"])
    sessions, (writer,) = await writers(folder, 1, url="memory:")

    async def build(tx: Command) -> None:
        task = await tx.task(writer.task_id)
        for _ in range(2):
            tx.insert_entry(
                writer.conv_id,
                "user",
                EntryMeta(timestamp=1),
                UserPayload(messages=(UserMessage(content=(TextPart(text="eight"),)),)),
            )
        tx.patch(task, count=1)
        tx.append_list(NOTES, Raw(b"1"))
        tx.append_list(NOTES, Raw(b"2"))
        tx.append_list(NOTES, Raw(b"3"))

    for _ in range(100):
        await writer.line.submit(build)
    before = cpu_s()
    for _ in range(number):
        await writer.line.submit(build)
    spent = cpu_s() - before
    await sessions.close()
    return {"cpu_us": 1e6 * spent / number}


async def floor_eight(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure what eight records cost with a lock, a list and a dictionary only (G7's floor)."""
    number = int(facts["commits"])
    lock = asyncio.Lock()
    rows: dict[int, tuple[Any, ...]] = {}
    head = 0
    before = cpu_s()
    for _ in range(number):
        async with lock:
            built = [
                (head + 1 + at, "record", {"v": 1, "count": at, "text": "eight"}) for at in range(8)
            ]
            for seq, kind, fields in built:
                if seq != head + 1 or kind != "record" or fields["v"] != 1:
                    raise ValueError(seq)
                rows[seq] = (kind, dict(fields))
                head = seq
            await asyncio.sleep(0) if head < 0 else None
    spent = cpu_s() - before
    return {"cpu_us": 1e6 * spent / number}


async def reads(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure a historical value read and a page of 100 elements (G11, G12)."""
    number = int(facts["reads"])
    sessions, (writer,) = await writers(folder, 1)
    bounds = await _versions(writer)
    address = BOARD.bind(writer.conv_id)
    before = cpu_s()
    for at in range(number):
        await writer.storage.value(address, as_of=bounds[(at * 7919) % len(bounds)])
    value_us = 1e6 * (cpu_s() - before) / number
    before = cpu_s()
    for at in range(number):
        await writer.storage.elements(
            MOVES.bind(writer.conv_id),
            ListPage(after=bounds[(at * 7919) % (len(bounds) - LIST_PAGE)], limit=LIST_PAGE),
        )
    page_us = 1e6 * (cpu_s() - before) / number
    await sessions.close()
    return {"value_us": value_us, "page_us": page_us}


async def _versions(writer: Writer) -> list[Seq]:
    bounds: list[Seq] = []
    for at in range(VERSIONS):

        def build(tx: Command, at: int = at) -> None:
            tx.set_value(BOARD.bind(writer.conv_id), {"turn": at, "text": "x" * 100})
            tx.append_list(MOVES.bind(writer.conv_id), {"move": at, "text": "x" * 100})

        await writer.line.submit(build)
        bounds.append(writer.line.last_seq)
    return bounds


async def floor_reads(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure one raw indexed SELECT, and one of 100 rows, decoded (floors of G11, G12)."""
    number = int(facts["reads"])
    conn = sqlite3.connect(folder / "floor.db", isolation_level=None, cached_statements=256)
    conn.execute("PRAGMA journal_mode = WAL")
    conn.execute("CREATE TABLE v (a INT, seq INT, data TEXT)")
    conn.execute("CREATE UNIQUE INDEX v_at ON v (a, seq)")
    conn.execute("BEGIN")
    row = '{"turn":1,"text":"' + "x" * 100 + '"}'
    conn.executemany("INSERT INTO v VALUES (?,?,?)", [(1, at, row) for at in range(VERSIONS)])
    conn.execute("COMMIT")
    before = cpu_s()
    for at in range(number):
        conn.execute(
            "SELECT seq, data FROM v WHERE a=? AND seq<=? ORDER BY seq DESC LIMIT 1",
            (1, (at * 7919) % VERSIONS),
        ).fetchone()
    value_us = 1e6 * (cpu_s() - before) / number
    before = cpu_s()
    for at in range(number):
        conn.execute(
            "SELECT seq, data FROM v WHERE a=? AND seq>? ORDER BY seq LIMIT 100",
            (1, (at * 7919) % (VERSIONS - LIST_PAGE)),
        ).fetchall()
    page_us = 1e6 * (cpu_s() - before) / number
    conn.close()
    return {"value_us": value_us, "page_us": page_us}


async def context(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure a context list as of a past commit, with a reset now and then (G13)."""
    number, turns = int(facts["reads"]), int(facts["turns"])
    sessions, (writer,) = await writers(folder, 1)
    bounds: list[Seq] = []
    for turn in range(turns):
        await writer.five_rows()
        bounds.append(writer.line.last_seq)
        if turn % 140 == 139:
            await writer.line.submit(lambda tx: tx.reset_context(writer.conv_id, ()))
    before = cpu_s()
    for at in range(number):
        as_of = bounds[(at * 7919) % len(bounds)]
        await writer.storage.conversations([writer.conv_id], as_of=as_of)
    spent = cpu_s() - before
    await sessions.close()
    return {"us": 1e6 * spent / number}


async def floor_context(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure two raw SELECTs that answer a list and 70 appends (G13's floor)."""
    number = int(facts["reads"])
    conn = sqlite3.connect(folder / "floor.db", isolation_level=None, cached_statements=256)
    conn.execute("CREATE TABLE c (conv INT, seq INT, ids TEXT)")
    conn.execute("CREATE UNIQUE INDEX c_at ON c (conv, seq)")
    conn.execute("CREATE TABLE e (conv INT, id INT, selected INT)")
    conn.execute("CREATE INDEX e_at ON e (conv, id)")
    conn.execute("BEGIN")
    conn.executemany("INSERT INTO c VALUES (1,?,'[]')", [(at * 140,) for at in range(20)])
    conn.executemany("INSERT INTO e VALUES (1,?,1)", [(at,) for at in range(2_800)])
    conn.execute("COMMIT")
    before = cpu_s()
    for at in range(number):
        bound = (at * 7919) % 2_800
        base, _ = conn.execute(
            "SELECT seq, ids FROM c WHERE conv=1 AND seq<=? ORDER BY seq DESC LIMIT 1", (bound,)
        ).fetchone()
        conn.execute(
            "SELECT id FROM e WHERE conv=1 AND id>? AND id<=? AND selected=1 ORDER BY id",
            (base, bound),
        ).fetchall()
    spent = cpu_s() - before
    conn.close()
    return {"us": 1e6 * spent / number}


class _PlainTask(Struct, frozen=True, gc=False):
    """The fields of a resident task, and nothing of ours."""

    id: int
    conv_id: int
    kind: str
    at_entry: object
    spawned_by: object
    after: tuple[int, ...]
    status: str
    state_json: object
    owns: object
    abort_requested: object


async def resident(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Measure the bytes of a resident record beside a plain Struct's (G18)."""
    task = Task(id=Seq(1), conv_id=Seq(1), kind="tool", status="planned", state_json=Raw(b"{}"))
    plain = _PlainTask(1, 1, "tool", None, None, (), "planned", task.state_json, None, None)
    entry_bytes = sys.getsizeof(
        Entry(id=Seq(1), conv_id=Seq(1), kind="user", meta_json=Raw(b"{}"), commit_end=Seq(1))
    )
    return {
        "task_bytes": sys.getsizeof(task),
        "plain_bytes": sys.getsizeof(plain),
        "entry_bytes": entry_bytes,
    }


MEASURES: Mapping[str, Callable[[Path, Mapping[str, str]], Awaitable[Figures]]] = {
    "command": command,
    "many": many,
    "lateness": lateness,
    "stalls": stalls,
    "memory_command": memory_command,
    "floor_eight": floor_eight,
    "reads": reads,
    "floor_reads": floor_reads,
    "context": context,
    "floor_context": floor_context,
    "resident": resident,
}
