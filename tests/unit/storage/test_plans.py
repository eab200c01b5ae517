"""How SQLite finds things: index searches in order, no scan, no temporary sort."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from perdure.records.addresses import input_record, request_input
from perdure.records.conversations import ParentLink
from perdure.records.seqs import Seq
from perdure.records.sessions import ConversationScan, EntryScan, ListPage, TaskScan
from perdure.records.writes import ReplaceContext, SettleTask
from perdure.storage.blobs import Blobs
from perdure.storage.sqlite import contexts, journal, reads, values
from perdure.storage.sqlite.container import find
from perdure.testing.storage_history import list_at, value_at
from tests.unit.storage.stores import container, main, opened

IN_ORDER = [
    values.VERSION,
    values.SESSION_VALUE,
    values.SESSION_VALUES,
    values.NAME,
    values.NAMES,
    values.PARENT,
    values.ELEMENTS.format(order="asc"),
    values.ELEMENTS.format(order="desc"),
    values.WORKING_VALUE,
    values.WORKING_VALUES,
    values.WORKING_ELEMENTS.format(order="asc"),
    values.WORKING_ELEMENTS.format(order="desc"),
    contexts.BASE,
    contexts.APPENDED,
    journal.AT_SEQ,
    journal.AFTER,
    journal.BETWEEN.format(order="desc"),
    reads.CONVERSATION,
    reads.SETTINGS,
    reads.TOUCHED,
    reads.PATCHES,
    reads.OPENINGS,
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    async def make() -> None:
        async with opened(tmp_path):
            pass

    asyncio.run(make())
    return tmp_path / "store.db"


def plan(path: Path, statement: str) -> list[str]:
    """Explain a statement."""
    conn = sqlite3.connect(path)
    try:
        arguments = [1] * statement.count("?")
        return [row[3] for row in conn.execute(f"EXPLAIN QUERY PLAN {statement}", arguments)]
    finally:
        conn.close()


@pytest.mark.spec("SQ-06", "SQ-07", "SQ-12", "SQ-13", "ST-23")
@pytest.mark.parametrize("statement", IN_ORDER, ids=range(len(IN_ORDER)))
def test_a_lookup_is_one_search_in_order(store: Path, statement: str) -> None:
    steps = plan(store, statement)
    assert len(steps) == 1, steps
    assert steps[0].startswith("SEARCH"), steps
    assert "session=?" in steps[0], steps


class Traced:
    """Count what SQLite runs, by the virtual machine's own steps."""

    def __init__(self, path: Path) -> None:
        self.conn = sqlite3.connect(path, isolation_level=None)
        self.conn.execute("PRAGMA query_only = 1")
        self.steps = 0
        self.conn.set_progress_handler(self._step, 1)

    def _step(self) -> int:
        self.steps += 1
        return 0

    def cost(self, work: object) -> int:
        """Answer the steps of one read."""
        self.steps = 0
        assert callable(work)
        work()
        return self.steps


def reading(traced: Traced, path: Path) -> values.ValueReads:
    """Answer reads of the first session over a traced connection."""
    return values.ValueReads(traced.conn, 1, Blobs(path.with_suffix(".blobs"), sync=False), {})


@pytest.mark.spec("SQ-08", "VL-16", "TI-06", "ST-22", "ST-23")
def test_a_key_written_once_is_found_among_many(tmp_path: Path) -> None:
    """The steps SQLite takes do not depend on what else was written."""

    async def build(folder: Path, noise: int) -> None:
        folder.mkdir()
        async with opened(folder, durability="process") as storage:
            batch = main(storage)
            conv_id = batch.conversation()
            batch.set("history", "needle", key="once", conv_id=conv_id)
            batch.append("history", "needle", key="once", conv_id=conv_id)
            batch.entry(conv_id)
            batch.task(conv_id)
            await batch.commit()
            for start in range(0, noise, 500):
                batch = main(storage)
                for number in range(start, start + 500):
                    batch.set("history", number, key=f"k{number % 50}", conv_id=conv_id)
                    batch.append("history", number, key=f"k{number % 50}", conv_id=conv_id)
                await batch.commit()

    def costs(noise: int) -> list[int]:
        folder = tmp_path / str(noise)
        asyncio.run(build(folder, noise))
        traced = Traced(folder / "store.db")
        found = reading(traced, folder / "store.db")
        assert found.value(value_at(Seq(1), "once"), None) is not None
        try:
            return [
                traced.cost(lambda: found.value(value_at(Seq(1), "once"), None)),
                traced.cost(lambda: found.value(value_at(Seq(1), "once"), Seq(6))),
                traced.cost(lambda: found.elements(list_at(Seq(1), "once"), ListPage(limit=9))),
                traced.cost(lambda: found.entry(Seq(4))),
                traced.cost(lambda: found.task(Seq(6), None)),
                traced.cost(lambda: found.conversation(Seq(1), None)),
            ]
        finally:
            traced.conn.close()

    few, many = costs(500), costs(10_000)
    assert all(high <= low + 20 for low, high in zip(few, many, strict=True)), (few, many)


@pytest.mark.spec("BB-29")
def test_opening_costs_what_is_live(tmp_path: Path) -> None:
    """What a harness reads at open does not grow with what has settled."""

    async def build(folder: Path, turns: int) -> None:
        folder.mkdir()
        async with opened(folder, durability="process") as storage:
            batch = main(storage)
            conv_id = batch.conversation()
            for _ in range(3):
                batch.task(conv_id)
            await batch.commit()
            for _ in range(turns):
                batch = main(storage)
                for _ in range(10):
                    task_id = batch.task(conv_id)
                    batch.add(SettleTask, task_id=task_id, status="done")
                await batch.commit()

    def costs(turns: int) -> list[int]:
        folder = tmp_path / str(turns)
        asyncio.run(build(folder, turns))
        traced = Traced(folder / "store.db")
        found = reading(traced, folder / "store.db")
        newest = TaskScan(limit=1, conv_id=Seq(1), kind="generation", order="desc")
        assert [task.id for task in found.scan_tasks(TaskScan(limit=9, live=True))] == [2, 3, 4]
        try:
            return [
                traced.cost(lambda: find(traced.conn, "first")),
                traced.cost(lambda: found.scan_tasks(TaskScan(limit=10_000, live=True))),
                traced.cost(lambda: found.scan_tasks(newest)),
                traced.cost(lambda: found.conversation(Seq(1), None)),
            ]
        finally:
            traced.conn.close()

    few, many = costs(3), costs(300)
    assert all(high <= low + 20 for low, high in zip(few, many, strict=True)), (few, many)


@pytest.mark.spec("CX-19", "CX-20")
def test_context_costs_its_own_length(tmp_path: Path) -> None:
    """Neither other conversations nor what a replacement took away is read."""

    async def build(folder: Path, turns: int) -> Seq:
        folder.mkdir()
        async with opened(folder, durability="process") as storage:
            batch = main(storage)
            first, other = batch.conversation(), batch.conversation()
            await batch.commit()
            for _ in range(turns):
                batch = main(storage)
                for _ in range(20):
                    batch.entry(first)
                    batch.entry(other)
                await batch.commit()
            state = (await storage.conversations([first]))[first]
            batch = main(storage)
            head = batch.entry(first, select=False, kind="summary")
            batch.add(
                ReplaceContext,
                conv_id=first,
                through=state.context[-3],
                head=head,
                expect_prefix_version=0,
            )
            batch.entry(first)
            return await batch.commit()

    def costs(turns: int) -> list[int]:
        folder = tmp_path / str(turns)
        end = asyncio.run(build(folder, turns))
        traced = Traced(folder / "store.db")
        found = reading(traced, folder / "store.db")
        state = found.conversation(Seq(1), None)
        assert state is not None
        assert len(state.context) == 4
        try:
            return [
                traced.cost(lambda: found.conversation(Seq(1), None)),
                traced.cost(lambda: found.conversation(Seq(1), end)),
            ]
        finally:
            traced.conn.close()

    few, many = costs(2), costs(100)
    assert all(high <= low + 20 for low, high in zip(few, many, strict=True)), (few, many)


@pytest.mark.spec("SQ-09", "VL-16", "VL-20")
def test_a_chain_of_forks_costs_a_seek_an_ancestor(tmp_path: Path) -> None:
    async def build() -> list[Seq]:
        async with opened(tmp_path, durability="process") as storage:
            batch = main(storage)
            forks = [batch.conversation()]
            batch.set("history", 1, conv_id=forks[0])
            batch.append("history", 1, conv_id=forks[0])
            await batch.commit()
            for _ in range(100):
                batch = main(storage)
                link = ParentLink(conv_id=forks[-1], as_of=storage.last_seq, inherit_values=True)
                forks.append(batch.conversation(parent=link))
                await batch.commit()
            return forks

    forks = asyncio.run(build())
    traced = Traced(tmp_path / "store.db")
    found = reading(traced, tmp_path / "store.db")
    for read in (
        lambda depth: found.value(value_at(forks[depth], ""), None),
        lambda depth: found.elements(list_at(forks[depth], ""), ListPage(limit=9)),
    ):
        costs = [traced.cost(lambda read=read, depth=depth: read(depth)) for depth in (0, 50, 100)]
        steps = [costs[1] - costs[0], costs[2] - costs[1]]
        assert steps[0] == pytest.approx(steps[1], rel=0.3)
        assert steps[0] / 50 <= 80, costs
    traced.conn.close()


@pytest.mark.spec("SQ-10")
async def test_a_fork_adds_no_value_or_list_rows(tmp_path: Path) -> None:
    sessions = container(tmp_path)
    storage = await sessions.open("first", create=True)
    batch = main(storage)
    root = batch.conversation()
    for number in range(10):
        batch.set("history", number, key=str(number), conv_id=root)
        batch.append("history", number, conv_id=root)
    await batch.commit()

    def rows() -> list[int]:
        conn = sqlite3.connect(tmp_path / "store.db")
        tables = ("version", "element", "session_value", "name")
        found = [conn.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables]
        conn.close()
        return found

    before = rows()
    batch = main(storage)
    link = ParentLink(conv_id=root, as_of=storage.last_seq, inherit_values=True)
    batch.conversation(parent=link)
    child = batch.conversation(
        parent=ParentLink(conv_id=root, as_of=storage.last_seq, inherit_values=False)
    )
    batch.set("history", 1, key="1", conv_id=child)
    await batch.commit()
    assert rows() == [before[0] + 1, *before[1:]]
    await sessions.close()


@pytest.mark.spec("SQ-12")
async def test_a_request_key_is_found_by_its_primary_key(store: Path) -> None:
    steps = plan(store, values.SESSION_VALUE)
    assert steps == ["SEARCH session_value USING PRIMARY KEY (session=? AND namespace=? AND key=?)"]
    async with opened(store.parent) as storage:
        batch = main(storage)
        batch.set("perdure.request-input", 41, key="web-42")
        batch.set("perdure.input", {"v": 1}, key="41")
        await batch.commit()
        found = await storage.value(request_input("web-42").address())
        assert found is not None
        assert bytes(found.value_json) == b"41"
        assert await storage.value(input_record(Seq(41)).address()) is not None


SCANS = [
    (TaskScan(limit=9, live=True), "task USING INDEX task_live (session=?"),
    (TaskScan(limit=9, live=True, conv_id=Seq(1)), "task USING INDEX task_live (session=?"),
    (TaskScan(limit=9, conv_id=Seq(1)), "task USING INDEX task_conv (session=? AND conv=?"),
    (TaskScan(limit=1, conv_id=Seq(1), kind="a", order="desc"), "task_conv (session=? AND conv=?"),
    (EntryScan(limit=9, conv_id=Seq(1)), "timeline USING PRIMARY KEY (session=? AND conv=?"),
    (EntryScan(limit=9, conv_id=Seq(1), key="k"), "timeline_key (session=? AND conv=? AND key=?"),
    (ConversationScan(limit=9), "conversation USING PRIMARY KEY (session=?"),
    (ConversationScan(limit=9, parent=Seq(1)), "conversation_parent (session=? AND parent=?"),
    (ConversationScan(limit=9, owner=Seq(1)), "conversation_owner (session=? AND owner=?"),
]


@pytest.mark.spec("ST-21", "ST-23")
@pytest.mark.parametrize(("scan", "search"), SCANS, ids=range(len(SCANS)))
def test_a_scan_is_one_search_in_order(
    store: Path, scan: TaskScan | EntryScan | ConversationScan, search: str
) -> None:
    conn = sqlite3.connect(store, isolation_level=None)
    statements: list[str] = []
    conn.set_trace_callback(statements.append)
    found = values.ValueReads(conn, 1, Blobs(store, sync=False), {})
    match scan:
        case TaskScan():
            found.scan_tasks(scan)
        case EntryScan():
            found.scan_entries(scan)
        case ConversationScan():
            found.scan_conversations(scan)
    conn.set_trace_callback(None)
    conn.close()
    assert len(statements) == 1
    steps = plan(store, statements[0])
    assert len(steps) == 1, steps
    assert search in steps[0].replace("COVERING ", ""), steps
