"""The file tools, over real files: what a model reads, may change, and is told."""

import base64
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import InvalidArguments, Rejected, ToolFailed
from perdure.hosts.files import LocalFiles
from perdure.hosts.threads import DaemonThreads
from perdure.records.images import image_part
from perdure.records.strict_json import JsonValue
from perdure.toolkits import file_tools, shell_tools
from perdure.toolkits.define import FunctionTool
from perdure.toolkits.edits import DIFF_LINES_MAX, diff, replaced
from perdure.toolkits.files import FILES_RESOURCE, ROWS_MAX
from perdure.toolkits.text_files import Pager, detected_type
from tests.unit.toolkits.context import Context

Tools = dict[str, FunctionTool]


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return {tool.name: tool for tool in file_tools(LocalFiles(tmp_path, DaemonThreads()))}


async def call(tools: Tools, name: str, ctx: Context | None = None, **args: Any) -> Context:
    ctx = Context() if ctx is None else ctx
    await tools[name].execute(tools[name].check(args), ctx)
    return ctx


async def failed(tools: Tools, name: str, ctx: Context | None = None, **args: Any) -> str:
    with pytest.raises((ToolFailed, Rejected)) as error:
        await call(tools, name, ctx, **args)
    return str(error.value)


@pytest.mark.spec("KT-20")
def test_declarations(tools: Tools, tmp_path: Path) -> None:
    table = {name: (tool.replay, tool.approval) for name, tool in tools.items()}
    assert table == {
        "read": ("safe", "allow"),
        "write": ("safe", "ask"),
        "edit": ("safe", "ask"),
        "list": ("safe", "allow"),
        "glob": ("safe", "allow"),
        "search": ("safe", "allow"),
    }
    (shell,) = shell_tools(tmp_path)
    assert (shell.name, shell.replay, shell.approval) == ("shell", "never", "ask")


@pytest.mark.spec("TL-34")
async def test_a_root_is_reached_through_the_resource(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("text\n")
    tools = {tool.name: tool for tool in file_tools(tmp_path)}
    assert FILES_RESOURCE in await failed(tools, "read", path="f")
    opens = {FILES_RESOURCE: lambda root: LocalFiles(root, DaemonThreads())}
    ctx = await call(tools, "read", Context(resources=opens), path="f")
    assert ctx.out.text.startswith("1\ttext\n")


@pytest.mark.spec("KT-06")
async def test_a_page_of_numbered_lines_says_how_to_read_on(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"line {n}\n" for n in range(1, 5_001)))
    ctx = await call(tools, "read", path="f")
    lines = ctx.out.text.splitlines()
    assert (lines[0], lines[1_999]) == ("1\tline 1", "2000\tline 2000")
    assert lines[2_000] == "[lines 1 to 2000 of 5000; read on with offset=2001]"
    ctx = await call(tools, "read", path="f", offset=4_999, limit=10)
    assert ctx.out.text == "4999\tline 4999\n5000\tline 5000\n[lines 4999 to 5000 of 5000]"
    assert "5000 lines" in await failed(tools, "read", path="f", offset=5_001)


@pytest.mark.spec("KT-06")
async def test_a_page_has_at_most_64_kib_and_cuts_long_lines(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("é" * 5_000 + "\n" + ("x" * 1_000 + "\n") * 300)
    ctx = await call(tools, "read", path="f")
    assert len(ctx.out.text.encode()) <= 65_536
    first, *_, last = ctx.out.text.splitlines()
    assert first == "1\t" + "é" * 2_000 + "… [line cut, 10000 bytes]"
    shown = int(last.split()[3])
    assert last == f"[lines 1 to {shown} of 301; read on with offset={shown + 1}]"


@pytest.mark.parametrize("bad", [{"offset": 0}, {"limit": 0}, {"limit": 2_001}, {"offset": "x"}])
def test_a_page_outside_the_bounds_is_refused(tools: Tools, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArguments, match=next(iter(bad))):
        tools["read"].check({"path": "f", **bad})


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1_000])
def test_slices_of_any_size_make_the_same_page(step: int) -> None:
    data = "\ufeffone\r\n\ntwé\nthree\nno end".encode()
    pager = Pager(offset=2, limit=3)
    for at in range(0, len(data), step):
        pager.feed(data[at : at + step])
    page = pager.page()
    assert (page.lines, page.first, page.last, page.total) == (("", "twé", "three"), 2, 4, 5)


async def peak_of_reading(tools: Tools, path: Path, size: int) -> int:
    """Read the first lines of a file with a hole of `size` bytes; answer the peak of memory."""
    with path.open("wb") as file:
        file.write(b"first\n" * 3_000)
        file.truncate(size)
    tracemalloc.start()
    try:
        ctx = await call(tools, "read", path=path.name, limit=10)
        assert ctx.out.text.endswith("[lines 1 to 10 of 3001; read on with offset=11]")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.spec("KT-06")
async def test_a_large_file_costs_time_not_memory(tools: Tools, tmp_path: Path) -> None:
    assert await peak_of_reading(tools, tmp_path / "f", 100 * 2**20) < 20 * 2**20


@pytest.mark.deep
@pytest.mark.timeout(300)
@pytest.mark.spec("KT-06")
async def test_five_gib_cost_time_not_memory(tools: Tools, tmp_path: Path) -> None:
    assert await peak_of_reading(tools, tmp_path / "f", 5 * 2**30) < 20 * 2**20


@pytest.mark.spec("KT-07")
@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("zwölf\n".encode("utf-16"), "1\tzwölf\n[lines 1 to 1 of 1]"),
        (b"\xfe\xff" + "äb\n".encode("utf-16-be"), "1\täb\n[lines 1 to 1 of 1]"),
        (b"a\xff\xfeb", "1\ta\ufffd\ufffdb\n[lines 1 to 1 of 1; 2 places are not UTF-8"),
        (b"", "[empty file]"),
        (b"W\0s\0l\0", "f is not text: 6 bytes, application/octet-stream"),
        (b"\x7fELF\x02\x01", "f is not text: 6 bytes, application/x-elf"),
    ],
)
async def test_encodings(tools: Tools, tmp_path: Path, data: bytes, shown: str) -> None:
    (tmp_path / "f").write_bytes(data)
    ctx = await call(tools, "read", path="f")
    assert ctx.out.text.startswith(shown)


def png(wide: int, high: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", wide, high, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IEND", b"")


@pytest.mark.spec("KT-07")
async def test_an_image_is_an_image(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "wrong.txt").write_bytes(png(3, 4))
    ctx = await call(tools, "read", path="wrong.txt")
    (image,) = ctx.out.images
    assert image.mime == "image/png"
    assert base64.b64decode(str(image.data)) == png(3, 4)
    (tmp_path / "wide.png").write_bytes(png(8_001, 4))
    ctx = await call(tools, "read", path="wide.png")
    assert ctx.out.images == []
    assert "8001 x 4 pixels" in ctx.out.text


@pytest.mark.parametrize(
    ("head", "mime"),
    [
        (b"GIF89a\x03\x00\x04\x00", "image/gif"),
        (b"\xff\xd8\xff\xe0\x00\x04zz\xff\xc0\x00\x0b\x08\x00\x04\x00\x03", "image/jpeg"),
        (b"RIFF0000WEBPVP8X\n\0\0\0\0\0\0\0\x02\0\0\x03\0\0", "image/webp"),
        (b"RIFF0000WEBPVP8 ....\x30\x01\x00\x9d\x01\x2a\x03\x00\x04\x00", "image/webp"),
    ],
)
def test_the_size_of_an_image_is_read_from_its_head(head: bytes, mime: str) -> None:
    assert detected_type(head) == mime
    assert image_part(head).mime == mime


@pytest.mark.spec("KT-09")
async def test_an_existing_file_is_written_only_after_it_was_read(
    tools: Tools, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("one\n")
    assert "read it again" in await failed(tools, "write", path="f", content="two")
    assert "read it again" in await failed(tools, "edit", path="f", old="one", new="two")
    await call(tools, "read", path="f")
    # Another conversation has not read it.
    assert "read it again" in await failed(
        tools, "write", Context(conv_id=2), path="f", content="two"
    )
    (tmp_path / "f").write_text("changed behind\n")
    assert "read it again" in await failed(tools, "write", path="f", content="two")
    assert (tmp_path / "f").read_text() == "changed behind\n"
    await call(tools, "read", path="f")
    await call(tools, "write", path="f", content="two")
    await call(tools, "edit", path="f", old="two", new="three")
    assert (tmp_path / "f").read_text() == "three"


@pytest.mark.spec("KT-09")
async def test_a_new_path_needs_no_read(tools: Tools, tmp_path: Path) -> None:
    ctx = await call(tools, "write", path="a/new", content="text")
    assert (tmp_path / "a" / "new").read_text() == "text"
    assert ctx.out.text == "wrote 4 bytes to a/new"


@pytest.mark.spec("KT-10")
@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\nb\r\nc\n", "b", "x\ny", b"a\nx\r\ny\r\nc\n"),
        (b"a\nb\r\nc\n", "a", "x\ny", b"x\ny\nb\r\nc\n"),
        (b"a\r\nb", "b", "x\ny", b"a\r\nx\r\ny"),
        (b"\xef\xbb\xbfa\nend", "end", "END", b"\xef\xbb\xbfa\nEND"),
        (b"a.b*c\\d", "a.b*c\\d", "\\1", b"\\1"),
    ],
)
def test_line_ends_marks_and_missing_newlines_are_kept(
    before: bytes, old: str, new: str, after: bytes
) -> None:
    assert replaced("f", before, old, new, 1) == after


@pytest.mark.spec("KT-10")
async def test_old_text_must_occur_as_often_as_expected(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a a a\n")
    await call(tools, "read", path="f")
    for expected, old in ((1, "a"), (2, "a"), (1, "z")):
        words = await failed(tools, "edit", path="f", old=old, new="b", expected=expected)
        assert "occurs" in words
    assert "empty" in await failed(tools, "edit", path="f", old="", new="b")
    assert (tmp_path / "f").read_text() == "a a a\n"
    ctx = await call(tools, "edit", path="f", old="a", new="b", expected=3)
    assert (tmp_path / "f").read_text() == "b b b\n"
    assert ctx.out.text == "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a a a\n+b b b"


@pytest.mark.spec("KT-10")
async def test_a_file_that_is_not_utf8_is_left_alone(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"caf\xe9\n")
    await call(tools, "read", path="f")
    assert "not UTF-8" in await failed(tools, "edit", path="f", old="c", new="d")
    assert (tmp_path / "f").read_bytes() == b"caf\xe9\n"


@pytest.mark.spec("KT-10")
def test_a_diff_is_bounded_and_numbers_its_lines() -> None:
    old = "".join(f"{n}\n" for n in range(1_000)).encode()
    small = diff("f", old, old.replace(b"\n500\n", b"\nfive\n"))
    assert small.splitlines()[2:6] == ["@@ -498,7 +498,7 @@", " 497", " 498", " 499"]
    large = diff("f", old, b"".join(f"n{n}\n".encode() for n in range(1_000)))
    assert len(large.splitlines()) == DIFF_LINES_MAX
    assert "more lines" in large.splitlines()[-1]


class Dying:
    """Files that a kill ends before, or after, the change is made."""

    def __init__(self, inner: LocalFiles, *, acts: bool) -> None:
        self._inner = inner
        self._acts = acts
        self.read = inner.read
        self.list: Callable[..., Any] = inner.list
        self.glob = inner.glob
        self.search = inner.search

    async def write(self, path: str, data: bytes, *, expect: str | None) -> str:
        if self._acts:
            await self._inner.write(path, data, expect=expect)
        raise KeyboardInterrupt


CHANGES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("write", {"content": "new\n"}, "new\n"),
    ("edit", {"old": "old", "new": "old old"}, "old old\n"),
)


@pytest.mark.spec("KT-11")
@pytest.mark.parametrize(("name", "args", "after"), CHANGES)
@pytest.mark.parametrize("acts", [False, True])
async def test_a_change_that_was_killed_is_made_once(
    tmp_path: Path, name: str, args: dict[str, Any], after: str, acts: bool
) -> None:
    (tmp_path / "f").write_text("old\n")
    local = LocalFiles(tmp_path, DaemonThreads())
    first = {tool.name: tool for tool in file_tools(Dying(local, acts=acts))}
    memos: dict[str, JsonValue] = {}
    await call(first, "read", path="f")
    with pytest.raises(KeyboardInterrupt):
        await call(first, name, Context(memos=memos), path="f", **args)
    # A new process: nothing is remembered but the memos.
    second = {tool.name: tool for tool in file_tools(local)}
    for _ in range(2):
        ctx = await call(second, name, Context(memos=memos), path="f", **args)
        assert (tmp_path / "f").read_text() == after
        assert not ctx.out.is_error


@pytest.mark.spec("KT-11")
@pytest.mark.parametrize(("name", "args", "after"), CHANGES)
async def test_a_third_state_is_left_alone(
    tmp_path: Path, name: str, args: dict[str, Any], after: str
) -> None:
    (tmp_path / "f").write_text("old\n")
    local = LocalFiles(tmp_path, DaemonThreads())
    first = {tool.name: tool for tool in file_tools(Dying(local, acts=False))}
    memos: dict[str, JsonValue] = {}
    await call(first, "read", path="f")
    with pytest.raises(KeyboardInterrupt):
        await call(first, name, Context(memos=memos), path="f", **args)
    (tmp_path / "f").write_text("somebody's old\n")
    second = {tool.name: tool for tool in file_tools(local)}
    words = await failed(second, name, Context(memos=memos), path="f", **args)
    assert "somebody else" in words
    assert (tmp_path / "f").read_text() == "somebody's old\n"


@pytest.mark.spec("KT-12")
async def test_a_listing_shows_kinds_and_counts_what_is_missing(
    tools: Tools, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").touch()
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "bad\nname").touch()
    ctx = await call(tools, "list")
    assert ctx.out.text.splitlines() == [
        "bad\\x0aname",
        "d/",
        "link -> d",
        "[1 names are shown escaped and cannot be addressed]",
    ]
    for n in range(1_100):
        (tmp_path / "d" / f"{n:04}").touch()
    ctx = await call(tools, "list", path="d")
    lines = ctx.out.text.splitlines()
    assert (len(lines), lines[-1]) == (ROWS_MAX + 1, "[101 more rows]")
    with pytest.raises(InvalidArguments, match="depth"):
        tools["list"].check({"depth": 6})


@pytest.mark.spec("KT-12", "KT-14")
async def test_glob_answers_paths_and_what_was_left_out(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log\n")
    for name in ("b.py", "a.py", "x.log"):
        (tmp_path / name).touch()
    ctx = await call(tools, "glob", pattern="*.py")
    note = "[1 ignored files left out; ignored=true shows them]"
    assert ctx.out.text == f"a.py\nb.py\n{note}"
    ctx = await call(tools, "glob", pattern="*.log", ignored="true")
    assert ctx.out.text == "x.log"
    assert (await call(tools, "glob", pattern="*.md")).out.text == note


@pytest.mark.spec("KT-13")
async def test_search_shows_lines_with_neighbours(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\nthree\n")
    (tmp_path / "bin").write_bytes(b"two\0")
    ctx = await call(tools, "search", pattern="tw", context=1)
    assert ctx.out.text.splitlines() == [
        "f-1- one",
        "f:2: two",
        "f-3- three",
        "--",
        "[1 binary files skipped]",
    ]
    (tmp_path / "many").write_text("needle " * 100 + "\n" + "needle\n" * 500)
    ctx = await call(tools, "search", pattern="needle", path="many")
    assert len(ctx.out.text.splitlines()) == 201
    assert ctx.out.text.endswith("[more than 200 lines match]")
    (tmp_path / "long").write_text(("needle" + "x" * 3_000 + "\n") * 100)
    ctx = await call(tools, "search", pattern="needle", path="long")
    assert len(ctx.out.text.encode()) <= 65_536
    assert "rows do not fit" in ctx.out.text


@pytest.mark.spec("KT-13")
async def test_a_search_that_is_stopped_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a" * 60 + "!\n")
    local = LocalFiles(tmp_path, DaemonThreads(), search_s_max=0.3)
    tools = {tool.name: tool for tool in file_tools(local)}
    assert "stopped" in await failed(tools, "search", pattern="(a+)+$")


@pytest.mark.spec("KT-01")
def test_the_toolkit_offers_exactly_these_tools(tools: Tools, tmp_path: Path) -> None:
    assert list(tools) == ["read", "write", "edit", "list", "glob", "search"]
    assert [tool.name for tool in shell_tools(tmp_path)] == ["shell"]


@pytest.mark.spec("KT-15")
async def test_a_name_with_controls_breaks_no_row(tools: Tools, tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[2J\r")).write_text("needle")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("list", {}),
        ("glob", {"pattern": "*"}),
        ("search", {"pattern": "n"}),
    ]
    for name, args in calls:
        text = (await call(tools, name, **args)).out.text
        assert "\\xff\\x1b[2J\\x0d" in text
        assert text.isprintable() or text.replace("\n", "").isprintable()
