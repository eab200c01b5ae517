"""Row G22 tells a store that lost or tore a commit from one that did not."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from blockbuster import BlockBuster

from bench import kills
from bench.storage_rows import writers
from perdure.records.seqs import Seq
from perdure.records.writes import Commit

COMMITS = 5


@pytest.fixture(scope="module", autouse=True)
def may_block(no_blocking_calls: BlockBuster) -> Iterator[None]:
    """Open stores on the loop, as the benchmark does: nothing else runs there."""
    no_blocking_calls.deactivate()
    yield
    no_blocking_calls.activate()


def written(folder: Path) -> list[Commit]:
    """Write the start and some commits, and answer them all."""

    async def work() -> list[Commit]:
        sessions, (writer,) = await writers(folder, 1)
        for _ in range(COMMITS):
            await writer.five_rows()
        commits = await writer.storage.commits(after=Seq(0), limit=100)
        await sessions.close()
        return list(commits)

    return asyncio.run(work())


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> list[Commit]:
    return written(tmp_path_factory.mktemp("kills"))


def test_every_page_of_a_store_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [commit.last_seq for commit in written(tmp_path)]
    monkeypatch.setattr(kills, "PAGE", 2)
    for missing, noted in ((0, ends), (1, [*ends, ends[-1] + 4])):
        (tmp_path / kills.NOTES).write_text("".join(f"{seq}\n" for seq in noted) + "12")
        figures = asyncio.run(kills.survived(tmp_path, {}))
        assert figures == {"lost": missing, "halves": 0, "commits": len(noted)}


def test_whole_commits_in_a_row_are_neither_lost_nor_half(commits: list[Commit]) -> None:
    assert len(commits) == COMMITS + 1
    assert kills.halves(commits, commits[-1].last_seq) == 0
    assert kills.lost(commits, [commit.last_seq for commit in commits[1:]]) == 0


def test_an_acknowledged_seq_stands_at_the_end_of_a_commit(commits: list[Commit]) -> None:
    assert kills.lost(commits, [commits[2].last_seq - 1]) == 1
    assert kills.lost(commits[:-1], [commits[-1].last_seq]) == 1


def test_a_missing_commit_is_seen(commits: list[Commit]) -> None:
    head = commits[-1].last_seq
    assert kills.halves([*commits[:2], *commits[3:]], head) == 1
    assert kills.halves(commits[1:], head) >= 1


def test_a_commit_that_lacks_a_write_is_seen(commits: list[Commit]) -> None:
    half = msgspec.structs.replace(commits[2], writes=commits[2].writes[:-1])
    assert kills.halves([*commits[:2], half, *commits[3:]], commits[-1].last_seq) == 1
    # Neither does a shorter commit pass that claims to be whole.
    short = msgspec.structs.replace(half, last_seq=half.writes[-1].seq)
    assert kills.halves([*commits[:2], short], short.last_seq) == 1


def test_a_head_beyond_the_last_write_is_seen(commits: list[Commit]) -> None:
    assert kills.halves(commits, commits[-1].last_seq + 1) == 1
    assert kills.halves([], 4) == 1


def run_writer(folder: Path, program: str) -> None:
    argv = [sys.executable, "-S", "-c", f"import sys, time\n{program}"]
    kills.kill(argv, folder / kills.NOTES, cwd=folder, after_s=0.05)


WRITE = "open('acknowledged', 'w').write('4\\n')\n"


def test_a_writer_killed_while_it_writes_is_a_kill(tmp_path: Path) -> None:
    run_writer(tmp_path, f"{WRITE}time.sleep(60)")


@pytest.mark.parametrize("before", ["", WRITE])
def test_a_writer_that_ends_by_itself_is_no_kill(tmp_path: Path, before: str) -> None:
    with pytest.raises(SystemExit, match=r"ended by itself \(1\):\nthe disk is full"):
        run_writer(tmp_path, f"{before}sys.exit('the disk is full')")


def test_a_writer_that_acknowledges_nothing_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "START_S_MAX", 0.1)
    with pytest.raises(SystemExit, match=r"no commit in 0\.1 s"):
        run_writer(tmp_path, "time.sleep(60)")
