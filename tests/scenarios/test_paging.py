"""Paging while updates arrive: nothing twice, nothing missed, nothing older than what streamed."""

import pytest

from perdure.providers.script import say
from perdure.records.entries import Entry
from perdure.records.seqs import Seq
from perdure.records.watch import WatchBase, WatchCommit
from perdure.records.writes import InsertEntry
from tests.engine import Engine

TURNS = 6


@pytest.mark.spec("IV-32")
async def test_pages_forward_meet_all_that_arrives_meanwhile(engine: Engine) -> None:
    root = await engine.root([say("yes", uses=0)])
    await root.prompt("first")
    seen: list[Entry] = []
    turns = 1
    while True:
        page = await root.entries(after=seen[-1].id if seen else None, limit=3)
        if not page and turns == TURNS:
            break
        seen += page
        if turns < TURNS:
            turns += 1
            await root.prompt(f"turn {turns}")
    whole = await root.entries(limit=1_000)
    assert [entry.id for entry in seen] == [entry.id for entry in whole]
    assert len(whole) == 2 * TURNS


@pytest.mark.spec("IV-32", "IV-13")
async def test_pages_back_from_a_watch_and_its_stream_are_the_transcript(engine: Engine) -> None:
    """A person scrolls up while the agent goes on; both ends meet once."""
    root = await engine.root([say("yes", uses=0)])
    for turn in range(TURNS):
        await root.prompt(f"turn {turn}")
    async with root.watch(limit=2) as watch:
        base = await anext(watch)
        assert isinstance(base, WatchBase)
        held = [entry.id for entry in base.entries]
        while True:
            await root.prompt("meanwhile")
            page = await root.entries(before=held[0], newest_first=True, limit=3)
            held = [*(entry.id for entry in reversed(page)), *held]
            if len(page) < 3:
                break
        last = engine.storage.last_seq
        streamed: list[Seq] = []
        while True:
            event = await anext(watch)
            if isinstance(event, WatchCommit):
                writes = (one for one in event.writes if isinstance(one.change, InsertEntry))
                streamed += [one.seq for one in writes]
                if event.last_seq == last:
                    break
    assert [*held, *streamed] == [entry.id for entry in await root.entries(limit=1_000)]
