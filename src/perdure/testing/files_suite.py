"""What every `Files` must do: one check a rule, run against a maker of files over an empty root."""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from perdure.errors import Rejected
from perdure.ports import Files
from perdure.records.files import SearchQuery

MakeFiles: TypeAlias = Callable[[], Files]
Check: TypeAlias = Callable[[MakeFiles], Awaitable[None]]


def digest_of(data: bytes) -> str:
    """Answer the digest a file of this content has."""
    return hashlib.sha256(data).hexdigest()


async def refused(call: Awaitable[object]) -> Rejected:
    """Answer the refusal of a call that must be refused."""
    try:
        await call
    except Rejected as error:
        return error
    raise AssertionError("the call was not refused")


async def check_write_then_read(make: MakeFiles) -> None:
    """What was written is read, whole and in slices, with its digest."""
    files = make()
    data = bytes(range(256)) * 10
    assert await files.write("a/b/c.bin", data, expect=None) == digest_of(data)
    whole = await files.read("a/b/c.bin", offset=0, limit=10_000)
    assert (whole.data, whole.size, whole.digest) == (data, len(data), digest_of(data))
    assert whole.path == "a/b/c.bin"
    part = await files.read("a/b/../b/./c.bin", offset=100, limit=7)
    assert (part.data, part.offset, part.digest) == (data[100:107], 100, None)
    assert (await files.read("a/b/c.bin", offset=9_999, limit=7)).data == b""


async def check_expectations(make: MakeFiles) -> None:
    """A write happens only on the state that is expected."""
    files = make()
    first = await files.write("f", b"one", expect=None)
    for wrong in (None, digest_of(b"other")):
        error = await refused(files.write("f", b"two", expect=wrong))
        assert (error.code, error.details["digest"]) == ("version_mismatch", first)
    error = await refused(files.write("g", b"two", expect=first))
    assert (error.code, error.details["digest"]) == ("version_mismatch", None)
    assert await files.write("f", b"two", expect=first) == digest_of(b"two")
    assert (await files.read("f", offset=0, limit=9)).data == b"two"
    assert [row.path for row in await files.list(".", depth=1, limit=9)] == ["f"]


async def check_absent(make: MakeFiles) -> None:
    """An absent thing is told by its code, with the path as shown."""
    files = make()
    for call in (
        files.read("no/such", offset=0, limit=1),
        files.list("no/such", depth=1, limit=1),
        files.search(SearchQuery(pattern="x", path="no/such")),
    ):
        error = await refused(call)
        assert (error.code, error.details["path"]) == ("not_found", "no/such")


async def check_refused_paths(make: MakeFiles) -> None:
    """Paths that are outside, or no paths, are refused in one sentence (KT-03)."""
    files = make()
    for path in (
        "../x",
        "a/../../x",
        "~/x",
        "/etc/passwd",
        "a\0b",
        "",
        "x" * 5_000,
        "\udcff\ud83d",
    ):
        for call in (
            files.read(path, offset=0, limit=1),
            files.write(path, b"", expect=None),
            files.list(path, depth=1, limit=1),
        ):
            error = await refused(call)
            assert error.code == "invariant"
            assert "accepted" in str(error)


async def check_list(make: MakeFiles) -> None:
    """Folders come before what is in them, names in byte order, to a depth and a number."""
    files = make()
    for path in ("b/x/deep", "b/a", "a", "Z", "é"):
        await files.write(path, b"1", expect=None)
    rows = await files.list(".", depth=2, limit=100)
    assert [row.path for row in rows] == ["Z", "a", "b", "b/a", "b/x", "é"]
    assert [row.kind for row in rows] == ["file", "file", "folder", "file", "folder", "file"]
    assert len(await files.list(".", depth=2, limit=3)) == 3
    assert [row.path for row in await files.list("b", depth=1, limit=9)] == ["b/a", "b/x"]


async def check_glob(make: MakeFiles) -> None:
    """Stars stay in a component, two stars cross them; sorted; ignored files left out (KT-14)."""
    files = make()
    for path in ("a.py", "b.txt", "s/c.py", "s/t/d.py", "s/skip.log", "out/e.py", "[x].py"):
        await files.write(path, b"1", expect=None)
    await files.write(".gitignore", b"*.log\n/out/\n", expect=None)
    for pattern, paths in {
        "*.py": ("[x].py", "a.py"),
        "**/*.py": ("[x].py", "a.py", "s/c.py", "s/t/d.py"),
        "s/*": ("s/c.py",),
        "s/**": ("s/c.py", "s/t/d.py"),
        "?.[a-p]*": ("a.py",),
        "[[]x].py": ("[x].py",),
        "**/t/**/d.py": ("s/t/d.py",),
    }.items():
        assert (await files.glob(pattern, limit=100)).paths == paths, pattern
    found = await files.glob("**", limit=2)
    assert (found.paths, found.more, found.ignored_skipped) == ((".gitignore", "[x].py"), True, 2)
    assert "out/e.py" in (await files.glob("**/*.py", limit=100, ignored=True)).paths


async def check_search(make: MakeFiles) -> None:
    """Matches in path and line order, with neighbours; binary and ignored files counted."""
    files = make()
    await files.write("b.txt", b"one\ntwo\nthree\ntwo\n", expect=None)
    await files.write("a/c.txt", b"two\r\n\xff two", expect=None)
    await files.write("bin", b"two\0", expect=None)
    await files.write("d.log", b"two", expect=None)
    await files.write(".gitignore", b"*.log\n", expect=None)
    found = await files.search(SearchQuery(pattern="^.*tw.$", context=1))
    assert [(one.path, one.line, one.text) for one in found.matches] == [
        ("a/c.txt", 1, "two"),
        ("a/c.txt", 2, "\ufffd two"),
        ("b.txt", 2, "two"),
        ("b.txt", 4, "two"),
    ]
    assert (found.matches[2].before, found.matches[2].after) == (("one",), ("three",))
    assert (found.binary_skipped, found.ignored_skipped, found.more) == (1, 1, False)
    few = await files.search(SearchQuery(pattern="two", limit=2))
    assert (len(few.matches), few.more) == (2, True)
    some = await files.search(SearchQuery(pattern="two", path="a"))
    assert [one.path for one in some.matches] == ["a/c.txt"] * 2
    one = await files.search(SearchQuery(pattern="two", path="d.log"))
    assert [match.path for match in one.matches] == ["d.log"]
    none = await files.search(SearchQuery(pattern="two", glob="*.md"))
    assert none.matches == ()
    error = await refused(files.search(SearchQuery(pattern="(")))
    assert error.code == "invariant"


FILES_CHECKS: Final[tuple[Check, ...]] = (
    check_write_then_read,
    check_expectations,
    check_absent,
    check_refused_paths,
    check_list,
    check_glob,
    check_search,
)
"""Every check."""
