"""Files below a root: races, strange kinds, links, modes, names, faults, hostile patterns."""

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Rejected
from perdure.hosts import file_search, files
from perdure.hosts.file_search import match_name, match_path, read_rules
from perdure.hosts.files import LocalFiles
from perdure.hosts.threads import DaemonThreads
from perdure.records.files import SearchQuery
from perdure.testing.files_suite import digest_of, refused

SWAPPER = """
import ctypes, os, sys
root, outside = os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2])
libc = ctypes.CDLL(None)
os.symlink(outside, root + b"/way2")
os.symlink(outside + b"/secret", root + b"/leaf2")
print("on", flush=True)
while True:
    for name in (b"/way", b"/leaf"):
        # Exchange in one step: the name is always there, as one thing or the other.
        libc.renameat2(-100, root + name, -100, root + name + b"2", 2)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def local(root: Path) -> LocalFiles:
    return LocalFiles(root, DaemonThreads())


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def race(local: LocalFiles, root: Path, tmp_path: Path, tries: int) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"SECRET")
    (outside / "inner").mkdir()
    (root / "way").mkdir()
    (root / "way" / "secret").write_bytes(b"inside")
    (root / "leaf").write_bytes(b"inside")
    swapper = subprocess.Popen(
        [sys.executable, "-c", SWAPPER, str(root), str(outside)], stdout=subprocess.PIPE
    )
    assert swapper.stdout is not None
    with swapper, swapper.stdout:
        swapper.stdout.readline()
        told: Counter[type] = Counter()
        try:
            for turn in range(tries):
                calls = (
                    local.read("way/secret", offset=0, limit=99),
                    local.read("leaf", offset=0, limit=99),
                    local.list("way", depth=1, limit=99),
                    local.write(f"way/new{turn % 7}/x", b"w", expect=None),
                    local.write("leaf", b"w", expect=digest_of(b"SECRET")),
                )
                for call in calls:
                    try:
                        found = str(await call)
                    except (Rejected, OSError) as error:
                        told[type(error)] += 1
                        continue
                    told[str] += 1
                    assert "SECRET" not in found
                    assert "inner" not in found
        finally:
            swapper.kill()
    # The race was real: some calls came through, some met the link.
    assert min(told[str], told[Rejected]) > tries // 10
    assert names_in(outside) == ["inner", "secret"]
    assert (outside / "secret").read_bytes() == b"SECRET"
    assert names_in(outside / "inner") == []


@pytest.mark.skipif(sys.platform != "linux", reason="exchanges names by renameat2")
@pytest.mark.spec("KT-04")
async def test_a_swap_for_a_link_lets_nothing_out(
    local: LocalFiles, root: Path, tmp_path: Path
) -> None:
    await race(local, root, tmp_path, 100)


@pytest.mark.deep
@pytest.mark.timeout(300)
@pytest.mark.spec("KT-04")
async def test_ten_thousand_swaps_let_nothing_out(
    local: LocalFiles, root: Path, tmp_path: Path
) -> None:
    await race(local, root, tmp_path, 2_000)


@pytest.mark.spec("KT-03")
async def test_links_inside_are_followed_and_links_outside_refused(
    local: LocalFiles, root: Path, tmp_path: Path
) -> None:
    (root / "a").mkdir()
    (root / "a" / "f").write_bytes(b"inside")
    (root / "in").symlink_to("a")
    (root / "abs").symlink_to(root / "a" / "f")
    (root / "back").symlink_to("in/../a/f")
    (tmp_path / "near").write_bytes(b"outside")
    (root / "out").symlink_to("../near")
    (root / "far").symlink_to("/etc")
    (root / "ring").symlink_to("ring")
    for path in ("in/f", "abs", "back", str(root / "in" / "f")):
        assert (await local.read(path, offset=0, limit=9)).data == b"inside"
    for path in ("out", "far/passwd", "ring", "in/../out"):
        for call in (
            local.read(path, offset=0, limit=9),
            local.write(path, b"x", expect=None),
            local.search(SearchQuery(pattern="x", path=path)),
        ):
            error = await refused(call)
            assert path.split("/")[-1] in str(error)
            assert str(root) in str(error)
    assert (tmp_path / "near").read_bytes() == b"outside"


@pytest.mark.spec("KT-08")
async def test_a_write_through_a_link_replaces_its_target(local: LocalFiles, root: Path) -> None:
    (root / "f").write_bytes(b"old")
    (root / "link").symlink_to("f")
    await local.write("link", b"new", expect=digest_of(b"old"))
    assert (root / "link").is_symlink()
    assert (root / "f").read_bytes() == b"new"


@pytest.mark.spec("KT-08")
@pytest.mark.parametrize("mode", [0o755, 0o600, 0o444])
async def test_the_mode_of_a_file_stays(local: LocalFiles, root: Path, mode: int) -> None:
    (root / "f").write_bytes(b"old")
    (root / "f").chmod(mode)
    await local.write("f", b"new", expect=digest_of(b"old"))
    assert (root / "f").stat().st_mode & 0o777 == mode


@pytest.mark.spec("KT-08")
async def test_a_new_file_has_the_mode_of_the_umask(local: LocalFiles, root: Path) -> None:
    before = os.umask(0o027)
    try:
        await local.write("d/f", b"new", expect=None)
    finally:
        os.umask(before)
    assert (root / "d" / "f").stat().st_mode & 0o777 == 0o640


@pytest.mark.spec("KT-08")
@pytest.mark.parametrize("step", ["fsync", "fchmod", "rename"])
async def test_a_fault_leaves_the_old_file_and_no_other(
    local: LocalFiles, root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    (root / "f").write_bytes(b"old")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, step, full)
        with pytest.raises(OSError, match="No space"):
            await local.write("f", b"new", expect=digest_of(b"old"))
    assert (names_in(root), (root / "f").read_bytes()) == (["f"], b"old")


@pytest.mark.spec("KT-05")
async def test_other_kinds_are_refused_by_kind_without_blocking(
    local: LocalFiles, root: Path
) -> None:
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    (root / "file").write_bytes(b"x")
    for path, kind in (("pipe", "named pipe"), ("folder", "folder"), (".", "folder")):
        for call in (
            local.read(path, offset=0, limit=1),
            local.write(path, b"", expect=None),
        ):
            assert kind in str(await refused(call))
    assert "no folder" in str(await refused(local.list("file", depth=1, limit=1)))
    assert "named pipe" in str(await refused(local.search(SearchQuery(pattern="x", path="pipe"))))
    # The search passes the pipe by, and ends.
    assert len((await local.search(SearchQuery(pattern="x"))).matches) == 1


@pytest.mark.spec("KT-05")
async def test_a_pipe_that_replaces_a_file_blocks_nobody(
    local: LocalFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "f").write_bytes(b"x")
    real_open = os.open

    def swap_then_open(path: object, flags: int, *args: object, **kwargs: object) -> int:
        if path == "f":
            (root / "f").unlink(missing_ok=True)
            os.mkfifo(root / "f")
        return real_open(path, flags, *args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "open", swap_then_open)
        error = await refused(local.read("f", offset=0, limit=1))
    assert "named pipe" in str(error)


@pytest.mark.spec("KT-05")
async def test_extra_roots_are_readable_only_unless_said(root: Path, tmp_path: Path) -> None:
    for name in ("docs", "work"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_bytes(b"x")
    local = LocalFiles(
        root,
        DaemonThreads(),
        extra_roots={str(tmp_path / "docs"): "r", str(tmp_path / "work"): "rw"},
    )
    docs, work = str(tmp_path / "docs" / "f"), str(tmp_path / "work" / "f")
    assert (await local.read(docs, offset=0, limit=9)).path == docs
    error = await refused(local.write(docs, b"y", expect=digest_of(b"x")))
    assert "only readable" in str(error)
    assert await local.write(work, b"y", expect=digest_of(b"x")) == digest_of(b"y")


@pytest.mark.spec("KT-15")
async def test_names_that_no_path_can_say_are_escaped(local: LocalFiles, root: Path) -> None:
    raw = os.fsencode(root)
    for name in (b"bad\xff", b"two\nrows", b"esc\x1b[31m", "turn\u202e".encode(), b"plain"):
        Path(os.fsdecode(raw + b"/" + name)).write_bytes(b"needle")
    rows = await local.list(".", depth=1, limit=99)
    shown = {row.path: row.addressable for row in rows}
    assert shown == {
        "bad\\xff": False,
        "esc\\x1b[31m": False,
        "plain": True,
        "turn\\xe2\\x80\\xae": False,
        "two\\x0arows": False,
    }
    found = await local.glob("*", limit=99)
    assert (set(found.paths), found.not_addressable) == (set(shown), 4)
    matches = (await local.search(SearchQuery(pattern="needle"))).matches
    assert {match.path for match in matches} == set(shown)


@pytest.mark.spec("KT-12")
async def test_links_are_shown_and_never_entered(local: LocalFiles, root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "f").write_bytes(b"needle")
    (root / "link").symlink_to("d")
    (root / "etc").symlink_to("/etc")
    rows = {row.path: (row.kind, row.target) for row in await local.list(".", depth=5, limit=99)}
    assert rows == {
        "d": ("folder", None),
        "d/f": ("file", None),
        "etc": ("symlink", "/etc"),
        "link": ("symlink", "d"),
    }
    assert (await local.glob("**/f", limit=9)).paths == ("d/f",)
    assert (await local.glob("*/passwd", limit=9)).paths == ()
    assert len((await local.search(SearchQuery(pattern="needle"))).matches) == 1


@pytest.mark.spec("KT-13", "SX-14")
async def test_a_hostile_pattern_is_stopped_and_stops_nothing_else(root: Path) -> None:
    local = LocalFiles(root, DaemonThreads(), search_s_max=0.5)
    (root / "f").write_bytes(b"a" * 60 + b"!\n")
    searching = asyncio.ensure_future(local.search(SearchQuery(pattern="(a+)+$")))
    assert (await local.search(SearchQuery(pattern="a!"))).matches[0].line == 1
    found = await searching
    assert (found.timed_out, found.matches) == (True, ())


@pytest.mark.spec("SX-13")
@pytest.mark.parametrize("size", [1_024, 1_025])
async def test_a_pattern_has_a_stated_limit(local: LocalFiles, size: int) -> None:
    if size <= 1_024:
        assert (await local.search(SearchQuery(pattern="a" * size))).matches == ()
        return
    for call in (
        local.search(SearchQuery(pattern="a" * size)),
        local.glob("a" * size, limit=1),
        local.search(SearchQuery(pattern="a", glob="*" * size)),
    ):
        assert "1024" in str(await refused(call))


@pytest.mark.spec("SX-14")
def test_the_worst_globs_match_in_linear_steps() -> None:
    done = threading.Event()

    def match() -> None:
        assert not match_name("*a" * 200 + "b", "a" * 5_000)
        assert not match_path(["**", "a"] * 20 + ["b"], ["a"] * 200)
        done.set()

    worker = threading.Thread(target=match, daemon=True)
    worker.start()
    worker.join(5)
    assert done.is_set()


@pytest.mark.spec("KT-14")
def test_ignore_files_follow_gits_rules() -> None:
    rules = read_rules("# c\n*.log\n!keep.log\n/top\nd/\na/b\n\\#x\n**/deep/*.o\n", ())
    rules += read_rules("*.txt\n!*.log\n", ("sub",))
    table = {
        ("x.log",): True,
        ("s", "x.log"): True,
        ("keep.log",): False,
        ("top",): True,
        ("s", "top"): False,
        ("a", "b"): True,
        ("s", "a", "b"): False,
        ("#x",): True,
        ("p", "deep", "q.o"): True,
        ("x.txt",): False,
        ("sub", "x.txt"): True,
        ("sub", "x.log"): False,
        (".git",): True,
    }
    found = {path: file_search.is_ignored(rules, path, is_folder=False) for path in table}
    assert found == table
    assert file_search.is_ignored(rules, ("d",), is_folder=True)
    assert not file_search.is_ignored(rules, ("d",), is_folder=False)


@pytest.mark.spec("KT-14")
async def test_ignore_files_above_the_searched_folder_count(local: LocalFiles, root: Path) -> None:
    (root / ".gitignore").write_text("/sub/*.tmp\n")
    (root / "sub").mkdir()
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("needle")
    for name in ("a.tmp", "b.txt"):
        (root / "sub" / name).write_text("needle")
    found = await local.search(SearchQuery(pattern="needle", path="sub"))
    assert ([one.path for one in found.matches], found.ignored_skipped) == (["sub/b.txt"], 1)
    everything = await local.search(SearchQuery(pattern="needle", ignored=True))
    assert len(everything.matches) == 3
    assert (await local.read("sub/a.tmp", offset=0, limit=9)).data == b"needle"


@given(st.text(alphabet="ab*?[]-!\\", max_size=8), st.text(alphabet="ab-!", max_size=8))
def test_any_pattern_matches_any_name_without_a_fault(pattern: str, name: str) -> None:
    assert match_name(pattern, name) in {True, False}


@given(st.text(alphabet="ab*?", max_size=8), st.text(alphabet="ab", max_size=8))
def test_stars_mean_what_they_mean(pattern: str, name: str) -> None:
    def means(at: int, here: int) -> bool:
        if at == len(pattern):
            return here == len(name)
        if pattern[at] == "*":
            return any(means(at + 1, end) for end in range(here, len(name) + 1))
        return here < len(name) and pattern[at] in {"?", name[here]} and means(at + 1, here + 1)

    assert match_name(pattern, name) == means(0, 0)
