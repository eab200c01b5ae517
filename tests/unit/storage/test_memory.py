"""What is particular to the memory backend: costs, publication, what it lets go."""

import gc
import sys
import tracemalloc
from types import FrameType
from typing import Any

import pytest

from perdure.records.codec import decode_json, encode
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage
from perdure.records.writes import RetireScope
from perdure.storage.memory import MemorySessions, MemoryStorage, replay
from perdure.testing.manual_clock import ManualClock
from perdure.testing.storage_history import list_at, value_at
from perdure.testing.storage_lab import Batch, CountedRandomness, journal
from tests.unit.storage.stores import NAME, main


@pytest.fixture
async def storage() -> MemoryStorage:
    sessions = MemorySessions(clock=ManualClock(), randomness=CountedRandomness())
    return await sessions.open(NAME, create=True)


class Lines:
    """Count the lines of our own code that run: a cost that no neighbour disturbs."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> "Lines":
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        self.count += event == "line"
        return self._trace


async def fill(storage: MemoryStorage, commits: int) -> None:
    """Write a history: one conversation, values, lists, tasks."""
    if storage.last_seq == 0:
        batch = main(storage)
        batch.conversation()
        await batch.commit()
    for number in range(commits):
        batch = main(storage)
        batch.entry(Seq(1))
        batch.task(Seq(1))
        batch.set("history", number, conv_id=Seq(1))
        batch.append("history", number, conv_id=Seq(1))
        await batch.commit()


@pytest.mark.spec("MM-02")
async def test_a_commit_costs_the_same_after_a_long_history(storage: MemoryStorage) -> None:
    counts: list[int] = []
    for commits in (5, 500):
        await fill(storage, commits)
        with Lines() as lines:
            await fill(storage, 1)
        counts.append(lines.count)
    assert counts[1] <= counts[0] + 5, counts


@pytest.mark.spec("MM-05")
async def test_reads_halve_their_way(storage: MemoryStorage) -> None:
    counts: list[int] = []
    for commits in (5, 500):
        await fill(storage, commits)
        early = (await storage.commits(after=Seq(1), limit=1))[0].last_seq
        with Lines() as lines:
            await storage.value(value_at(Seq(1), ""), as_of=early)
            await storage.elements(list_at(Seq(1), ""), ListPage(limit=3, as_of=early))
            await storage.tasks([Seq(4)], as_of=early)
        counts.append(lines.count)
    assert counts[1] <= counts[0] + 5, counts


@pytest.mark.spec("MM-03")
async def test_a_commit_is_published_without_a_pause(storage: MemoryStorage) -> None:
    """The coroutine never yields, so nobody can look in between."""
    batch = main(storage)
    conv_id = batch.conversation()
    batch.entry(conv_id)
    coroutine = storage.commit(batch.build(), barrier=True)
    with pytest.raises(StopIteration):
        coroutine.send(None)
    assert storage.last_seq == 3


@pytest.mark.spec("MM-04")
async def test_retired_contents_become_collectable(storage: MemoryStorage) -> None:
    batch = Batch(storage, 0)
    for number in range(5):
        batch.append("frames", "x" * 1_000, working_scope="a")
        batch.set("n", number, working_scope="a")
    await batch.commit()
    assert storage._index.scopes
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    batch = Batch(storage, 0)
    for _ in range(50):
        batch.append("frames", "x" * 10_000, working_scope="b")
        batch.set("n", "x" * 10_000, working_scope="b")
    await batch.commit()
    del batch
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    await _retire(storage)
    gc.collect()
    left = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert held > 500_000
    assert left < 50_000
    assert storage._index.scopes == {}


async def _retire(storage: MemoryStorage) -> None:
    batch = main(storage)
    batch.add(RetireScope, working_scope="a")
    batch.add(RetireScope, working_scope="b")
    await batch.commit()


@pytest.mark.spec("MM-06")
async def test_what_the_journal_holds_is_not_changed_by_who_replays_it(
    storage: MemoryStorage,
) -> None:
    await fill(storage, 5)
    before = [bytes(encode(commit)) for commit in await journal(storage)]
    copy = replay(await journal(storage))
    state = (await copy.entries([Seq(2)]))[Seq(2)].payload
    state["text"] = "changed by a replica"
    found = await copy.value(value_at(Seq(1), ""))
    assert found is not None
    decoded = decode_json(found.value_json)
    assert decoded == 4
    assert [bytes(encode(commit)) for commit in await journal(storage)] == before
    assert (await storage.entries([Seq(2)]))[Seq(2)].payload == {"text": ""}
