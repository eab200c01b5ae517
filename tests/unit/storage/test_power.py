"""Durability: which commits are synced, and what a power cut or a failing disk leaves."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from perdure.errors import Faulted, Rejected
from perdure.ports import Storage
from perdure.records.addresses import Address
from perdure.records.codec import decode_json
from perdure.testing.power_rig import FULL, PowerRig
from perdure.testing.storage_lab import Batch, journal
from tests.unit.storage.stores import NAME, container, count_up, main, opened

pytestmark = pytest.mark.skipif(
    not PowerRig.available(), reason="this Python's SQLite library cannot be reached by name"
)


@pytest.fixture
def rig() -> Iterator[PowerRig]:
    with PowerRig() as rig:
        yield rig


async def is_stored(storage: Storage) -> bool:
    """Commit once more, with a barrier; say whether that went well."""
    try:
        await count_up(storage, 1, barrier_every=1)
    except Faulted:
        return False
    return True


async def numbers(folder: Path) -> int:
    """Reopen a cut store and count what is there."""
    async with opened(folder, create=False) as storage:
        commits = await journal(storage)
        assert [one.first_seq for one in commits] == list(range(1, len(commits) + 1))
        return len(commits)


@pytest.mark.spec("BR-04", "SQ-04")
@pytest.mark.parametrize(("durability", "syncs"), [("power", 10), ("process", 0)])
async def test_sixty_commits_with_ten_barriers_sync_ten_times(
    rig: PowerRig, tmp_path: Path, durability: str, syncs: int
) -> None:
    sessions = container(tmp_path, durability=durability)
    storage = await sessions.open(NAME, create=True)
    rig.syncs.clear()
    for number in range(60):
        before = len(rig.syncs)
        batch = main(storage)
        batch.set("n", number)
        barrier = number % 6 == 5
        await batch.commit(barrier=barrier)
        assert len(rig.syncs) - before == int(barrier and durability == "power")
    assert rig.syncs == ["store.db-wal"] * syncs
    await sessions.close()


async def test_one_sync_serves_the_barriers_of_a_group(rig: PowerRig, tmp_path: Path) -> None:
    sessions = container(tmp_path)
    storages = [await sessions.open(f"s{number}", create=True) for number in range(20)]
    rig.syncs.clear()
    batches = [Batch(storage, 1_000) for storage in storages]
    for batch in batches:
        batch.set("n", 1)
    await asyncio.gather(*(batch.commit(barrier=True) for batch in batches))
    assert 1 <= len(rig.syncs) <= 3
    await sessions.close()


@pytest.mark.spec("BR-03")
async def test_a_barrier_makes_all_before_it_durable(rig: PowerRig, tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        for number in range(12):
            batch = main(storage)
            batch.set("n", number)
            await batch.commit(barrier=number % 4 == 3)
            working = Batch(storage, 0)
            working.set("w", number, working_scope="a")
            await working.commit(barrier=False)
            for seed in (None, number):
                rig.cut(tmp_path / f"cut-{number}-{seed}", seed=seed)
    for number in range(3, 12):
        for seed in (None, number):
            async with opened(tmp_path / f"cut-{number}-{seed}", create=False) as storage:
                found = await journal(storage)
                assert len(found) >= 1 + number - (number + 1) % 4
                assert storage.last_seq <= 2 * (number + 1)
                value = await storage.commits(after=found[-2].last_seq, limit=1)
                assert list(value) == found[-1:]
                # Before the newest barrier stands a working commit for each number below it.
                stored = await storage.value(
                    Address(kind="value", namespace="w", working_scope="a")
                )
                assert stored is not None
                assert decode_json(stored.value_json) >= number - 1 - (number + 1) % 4
                # Main and working commits take turns: none of them is missing in between.
                assert storage.last_seq in (2 * len(found) - 1, 2 * len(found))


@pytest.mark.spec("BR-07")
async def test_process_durability_opens_at_a_commit(rig: PowerRig, tmp_path: Path) -> None:
    async with opened(tmp_path, durability="process") as storage:
        for number in range(10):
            await count_up(storage, 3, barrier_every=1)
            rig.cut(tmp_path / f"cut-{number}", seed=number)
    for number in range(10):
        folder = tmp_path / f"cut-{number}"
        with suppress(Rejected):  # even the creation of the session may be lost
            assert await numbers(folder) <= 3 * (number + 1)


@pytest.mark.spec("BR-09")
async def test_a_clean_close_is_durable_and_leaves_one_file(rig: PowerRig, tmp_path: Path) -> None:
    sessions = container(tmp_path)
    storage = await sessions.open(NAME, create=True)
    await count_up(storage, 5)
    await storage.close()
    rig.cut(tmp_path / "cut")
    await sessions.close()
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == [".db", ".lock"]
    assert await numbers(tmp_path / "cut") == 5


async def test_closing_under_process_syncs_nothing(rig: PowerRig, tmp_path: Path) -> None:
    sessions = container(tmp_path, durability="process")
    storage = await sessions.open(NAME, create=True)
    await count_up(storage, 5)
    rig.syncs.clear()
    await storage.close()
    assert rig.syncs == []
    await sessions.close()


@pytest.mark.spec("BR-08", "BB-08", "ST-08", "FT-03")
async def test_a_failing_sync_faults_and_is_never_tried_again(
    rig: PowerRig, tmp_path: Path
) -> None:
    sessions = container(tmp_path)
    storage = await sessions.open(NAME, create=True)
    await count_up(storage, 3)
    rig.fail_sync(1)
    batch = main(storage)
    batch.set("n", "uncertain")
    with pytest.raises(Faulted):
        await batch.commit(barrier=True)
    rig.syncs.clear()
    with pytest.raises(Faulted):
        await batch.commit(barrier=True)
    assert rig.syncs == []
    await storage.close()
    again = await sessions.open(NAME, create=False)
    found = await journal(again)
    assert len(found) in (3, 4)
    await count_up(again, 2, barrier_every=1)
    rig.cut(tmp_path / "cut")
    await sessions.close()
    assert await numbers(tmp_path / "cut") == len(found) + 2


@pytest.mark.spec("BB-08", "ST-08", "FT-01")
@pytest.mark.parametrize("keep_bytes", [0, 40, 1000])
async def test_a_short_write_leaves_no_half_commit(
    rig: PowerRig, tmp_path: Path, keep_bytes: int
) -> None:
    for nth in range(1, 9):
        folder = tmp_path / str(nth)
        folder.mkdir()
        sessions = container(folder)
        storage = await sessions.open(NAME, create=True)
        await count_up(storage, 3)
        rig.fail_write(nth, keep_bytes=keep_bytes)
        stored = 3
        while await is_stored(storage):
            stored += 1
            assert stored < 12
        with pytest.raises(Faulted):
            await count_up(storage, 1)
        await storage.close()
        again = await sessions.open(NAME, create=False)
        assert len(await journal(again)) in (stored, stored + 1)
        await count_up(again, 2)
        count = len(await journal(again))
        await sessions.close()
        assert await numbers(folder) == count


@pytest.mark.spec("BB-09")
async def test_a_full_disk_is_said_at_once_and_a_reopening_goes_on(
    rig: PowerRig, tmp_path: Path
) -> None:
    sessions = container(tmp_path)
    storage = await sessions.open(NAME, create=True)
    await count_up(storage, 3)
    rig.fail_write(1, code=FULL, keep_bytes=40)
    with pytest.raises(Faulted) as caught:
        await count_up(storage, 1)
    assert "full" in str(caught.value)
    for _ in range(3):
        with pytest.raises(Faulted):
            await count_up(storage, 1)
    await storage.close()
    again = await sessions.open(NAME, create=False)
    await count_up(again, 2)
    assert len(await journal(again)) == 5
    await sessions.close()
    assert await numbers(tmp_path) == 5


async def test_another_session_of_the_file_faults_too_after_a_failed_sync(
    rig: PowerRig, tmp_path: Path
) -> None:
    """What the system dropped may have been anybody's."""
    sessions = container(tmp_path)
    first = await sessions.open("a", create=True)
    second = await sessions.open("b", create=True)
    rig.fail_sync(1)
    with pytest.raises(Faulted):
        await count_up(first, 1, barrier_every=1)
    with pytest.raises(Faulted):
        await count_up(second, 1)
    await second.close()
    again = await sessions.open("b", create=False)
    await count_up(again, 1)
    await sessions.close()


@pytest.mark.spec("BR-14")
async def test_a_blob_is_on_disk_before_the_commit_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("blob"), real(handle)))
    with PowerRig() as rig:
        rig.on_sync = order.append
        sessions = container(tmp_path)
        storage = await sessions.open(NAME, create=True)
        order.clear()
        batch = main(storage)
        batch.set("n", "x" * 100_000)
        await batch.commit(barrier=True)
        assert order[:2] == ["blob", "blob"]
        assert order[-1] == "store.db-wal"
        await sessions.close()
