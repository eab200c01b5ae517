"""Random histories on both backends: the same answers as the reference, at every boundary."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.records.sessions import ConversationScan
from perdure.testing.storage_checks import reads
from perdure.testing.storage_checks.reads import compare_current, compare_entities, compare_values
from perdure.testing.storage_history import History
from perdure.testing.storage_lab import Lab, Place, journal
from perdure.testing.storage_model import ReferenceModel
from perdure.testing.storage_suite import run
from tests.conformance.places import MemoryPlace, SqlitePlace

SEEDS = st.integers(min_value=0, max_value=2**32)


async def compare(place: Place, seed: int, commits: int) -> list[bytes]:
    """Write a history, compare every answer, and name the boundaries."""
    lab = Lab(place)
    await lab.start()
    try:
        history = History(lab, seed)
        await history.run(commits)
        await lab.reopen()
        found = await journal(lab.storage)
        model = ReferenceModel(found)
        for as_of in history.boundaries[::4]:
            await compare_entities(lab, model, as_of)
            await compare_values(lab, model, history.conversations, as_of)
        await compare_current(lab, model, history.boundaries[-1])
        return [repr(commit.last_seq).encode() for commit in found]
    finally:
        await lab.stop()


@pytest.mark.spec("CX-17", "ST-21", "TI-02", "TI-03", "ST-34")
@settings(max_examples=12)
@given(seed=SEEDS)
@example(seed=513_369)  # a conversation deleted twice is deleted from the first time on
def test_both_backends_answer_like_the_reference(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        memory = asyncio.run(compare(MemoryPlace(), seed, 24))
        sqlite = asyncio.run(compare(SqlitePlace(Path(folder)), seed, 24))
    assert memory == sqlite


async def history_of(place: Place, seed: int, commits: int) -> list[object]:
    """Write a history and answer its whole journal and states."""
    lab = Lab(place)
    await lab.start()
    try:
        await History(lab, seed).run(commits)
        states = await lab.storage.scan_conversations(ConversationScan(limit=10_000))
        return [*await journal(lab.storage), *states]
    finally:
        await lab.stop()


@pytest.mark.spec("BR-10", "ST-35")
def test_one_seed_writes_one_journal_on_every_backend(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    found = [
        asyncio.run(history_of(place, 7, 60))
        for place in (
            MemoryPlace(),
            MemoryPlace(),
            SqlitePlace(tmp_path / "a"),
            SqlitePlace(tmp_path / "b"),
        )
    ]
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.deep
@pytest.mark.spec("BR-11")
@pytest.mark.timeout(300)
async def test_a_long_history_is_replayed_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "HISTORY_COMMITS", 2_000)
    await run(reads.a_replay_answers_like_the_store, SqlitePlace(tmp_path))
