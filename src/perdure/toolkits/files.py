"""The file tools: read, write, edit, list, glob, search, below one root (KT-01 to KT-15, KT-20)."""

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Final, cast

from msgspec import Meta

from perdure.errors import Rejected, ToolFailed
from perdure.ports import Files, ToolContext
from perdure.records.files import FileInfo, FileSlice, SearchMatch, SearchQuery
from perdure.records.images import IMAGE_BYTES_MAX, image_part
from perdure.records.messages import ImagePart
from perdure.toolkits.define import FunctionTool, Output, tool
from perdure.toolkits.edits import (
    Seen,
    apply,
    begun,
    demand_known,
    diff,
    read_before,
    replaced,
)
from perdure.toolkits.text_files import (
    LINES_MAX,
    Page,
    Pager,
    detected_type,
)

FILES_RESOURCE: Final = "perdure.files"
"""Resource that opens a root: `Callable[[str], Files]`, given at open (TL-34)."""

SLICE_BYTES: Final = 2 * 1024 * 1024
"""A file is read in slices of this size, so that its length costs time, not memory (KT-06)."""

ROWS_MAX: Final = 1_000
ROWS_COUNTED_MAX: Final = 100_000
MATCHES_MAX: Final = 200
CONTEXT_MAX: Final = 10
TEXT_BYTES_MAX: Final = 63 * 1024
"""Bytes of matches shown: 64 KiB less room for the last line."""

Path = Annotated[str, Meta(description="path relative to the root, or absolute inside it")]


class _Reach:
    """What the tools of one root share: how to reach its files, and what was seen in them."""

    def __init__(self, root: str | os.PathLike[str] | Files) -> None:
        self._root = root
        self.seen = Seen()

    def files(self, ctx: ToolContext) -> Files:
        """Answer the files of the root. Raises ToolFailed naming a missing resource (TL-34)."""
        if not isinstance(self._root, str | os.PathLike):
            return self._root
        opens = ctx.resources.get(FILES_RESOURCE)
        if opens is None:
            raise ToolFailed(f"resource {FILES_RESOURCE!r} is missing: no file can be reached")
        return cast("Callable[[str], Files]", opens)(os.fspath(self._root))


def file_tools(root: str | os.PathLike[str] | Files) -> tuple[FunctionTool, ...]:
    """Answer read, write, edit, list, glob and search for one root.

    Args:
        root: a folder, reached through the resource `perdure.files`; or `Files` themselves.
    """
    reach = _Reach(root)
    return (
        _read_tool(reach),
        _write_tool(reach),
        _edit_tool(reach),
        _list_tool(reach),
        _glob_tool(reach),
        _search_tool(reach),
    )


def _read_tool(reach: _Reach) -> FunctionTool:
    @tool(name="read", replay="safe", output=Output(retain="head"))
    async def read(
        path: Path,
        offset: Annotated[int, Meta(description="first line, from 1", ge=1)] = 1,
        limit: Annotated[int, Meta(description="lines at most", ge=1, le=LINES_MAX)] = LINES_MAX,
        *,
        ctx: ToolContext,
    ) -> None:
        """Read a text file with line numbers, or look at an image.

        Long files are read in pages: the last line says how to read on.
        """
        files = reach.files(ctx)
        first = await files.read(path, offset=0, limit=SLICE_BYTES)
        kind = detected_type(first.data)
        if kind is not None:
            await _read_other(files, path, kind, ctx)
            return
        pager = Pager(offset=offset, limit=limit)
        data, at = first.data, 0
        while data:
            at += len(data)
            await ctx.threads.run("read", partial(pager.feed, data))
            data = (
                (await files.read(path, offset=at, limit=SLICE_BYTES)).data
                if at < first.size
                else b""
            )
        page = pager.page()
        reach.seen.note(ctx.conv.id, first.path, page.digest)
        if page.total and offset > page.total:
            raise ToolFailed(f"{first.path} has {page.total} lines; line {offset} is past its end")
        ctx.out.write(_numbered(page))
        ctx.out.details(
            {"path": first.path, "lines": page.total, "bytes": at, "digest": page.digest}
        )

    return read


async def _read_other(files: Files, path: str, kind: str, ctx: ToolContext) -> None:
    whole = await files.read(path, offset=0, limit=IMAGE_BYTES_MAX + 1)
    ctx.out.details({"path": whole.path, "bytes": whole.size, "type": kind})
    if kind.startswith("image/"):
        part = _image(whole)
        if not isinstance(part, str):
            ctx.out.image(part)
            ctx.out.write(f"{whole.path}: {kind}, {whole.size} bytes")
            return
        kind = f"{kind}, not shown: {part}"
    ctx.out.write(f"{whole.path} is not text: {whole.size} bytes, {kind}")


def _image(whole: FileSlice) -> ImagePart | str:
    """Answer the image, or the reason why it is not shown (PV-20)."""
    if whole.size > IMAGE_BYTES_MAX:
        return f"an image has at most {IMAGE_BYTES_MAX} bytes"
    try:
        return image_part(whole.data)
    except Rejected as refused:
        return refused.message


def _numbered(page: Page) -> str:
    rows = [f"{page.first + at}\t{line}\n" for at, line in enumerate(page.lines)]
    if not page.total:
        return "[empty file]"
    note = f"[lines {page.first} to {page.last} of {page.total}"
    if page.last < page.total:
        note += f"; read on with offset={page.last + 1}"
    if page.replaced:
        note += f"; {page.replaced} places are not UTF-8 and shown as \ufffd"
    return "".join([*rows, note, "]"])


def _write_tool(reach: _Reach) -> FunctionTool:
    @tool(name="write", replay="safe", approval="ask")
    async def write(path: Path, content: str, *, ctx: ToolContext) -> None:
        """Write a whole file; missing folders are made. An existing file must have been read."""
        files = reach.files(ctx)
        data = content.encode("utf-8", "replace")
        new = hashlib.sha256(data).hexdigest()
        change = await begun(ctx)
        before = await read_before(files, path)
        if change is None or before.digest != change.new:
            demand_known(before, change, reach.seen.last(ctx.conv.id, before.path))
            await apply(files, before, data, new, ctx)
        reach.seen.note(ctx.conv.id, before.path, new)
        ctx.out.write(f"wrote {len(data)} bytes to {before.path}")
        ctx.out.details({"path": before.path, "bytes": len(data), "digest": new})

    return write


def _edit_tool(reach: _Reach) -> FunctionTool:
    @tool(name="edit", replay="safe", approval="ask", output=Output(retain="head"))
    async def edit(
        path: Path,
        old: Annotated[str, Meta(description="text to replace, exactly as it stands there")],
        new: str,
        expected: Annotated[int, Meta(description="how often `old` occurs", ge=1)] = 1,
        *,
        ctx: ToolContext,
    ) -> None:
        """Replace text in a file that was read before; answers a diff."""
        files = reach.files(ctx)
        change = await begun(ctx)
        before = await read_before(files, path)
        if before.digest is None:
            raise ToolFailed(f"{before.path} is not there")
        if change is not None and before.digest == change.new:
            reach.seen.note(ctx.conv.id, before.path, change.new)
            ctx.out.write(f"{before.path} is edited; it was done before the interruption")
            ctx.out.details({"path": before.path, "digest": change.new})
            return
        demand_known(before, change, reach.seen.last(ctx.conv.id, before.path))
        data = replaced(before.path, before.data, old, new, expected)
        digest = hashlib.sha256(data).hexdigest()
        await apply(files, before, data, digest, ctx)
        reach.seen.note(ctx.conv.id, before.path, digest)
        shown = await ctx.threads.run("edit", partial(diff, before.path, before.data, data))
        ctx.out.write(shown)
        ctx.out.details({"path": before.path, "bytes": len(data), "digest": digest})

    return edit


def _list_tool(reach: _Reach) -> FunctionTool:
    @tool(name="list", replay="safe", output=Output(retain="head"))
    async def list_folder(
        path: Path = ".",
        depth: Annotated[int, Meta(description="levels, 1 to 5", ge=1, le=5)] = 1,
        *,
        ctx: ToolContext,
    ) -> None:
        """List a folder: folders end in `/`, links show their target and are not entered."""
        rows = await reach.files(ctx).list(path, depth=depth, limit=ROWS_COUNTED_MAX)
        notes: list[str] = []
        if len(rows) > ROWS_MAX:
            notes.append(f"{len(rows) - ROWS_MAX} more rows")
        unsayable = sum(not row.addressable for row in rows)
        if unsayable:
            notes.append(f"{unsayable} names are shown escaped and cannot be addressed")
        ctx.out.write(_with_notes([_row(row) for row in rows[:ROWS_MAX]], notes))
        ctx.out.details({"rows": len(rows), "notAddressable": unsayable})

    return list_folder


def _row(row: FileInfo) -> str:
    if row.kind == "symlink":
        return f"{row.path} -> {row.target}"
    return f"{row.path}/" if row.kind == "folder" else row.path


def _with_notes(rows: Sequence[str], notes: Sequence[str]) -> str:
    """Join rows as far as there is room, and say in the last line what is missing."""
    shown: list[str] = []
    room = TEXT_BYTES_MAX
    for row in rows:
        room -= len(row.encode()) + 1
        if room < 0:
            notes = [f"{len(rows) - len(shown)} rows do not fit", *notes]
            break
        shown.append(row)
    return "\n".join([*shown, *([f"[{'; '.join(notes)}]"] if notes else [])])


def _glob_tool(reach: _Reach) -> FunctionTool:
    @tool(name="glob", replay="safe", output=Output(retain="head"))
    async def glob(
        pattern: Annotated[str, Meta(description="path pattern: * ? [a-z] and ** for any folders")],
        ignored: Annotated[bool, Meta(description="also what .gitignore names")] = False,  # noqa: FBT002 - a model passes it by name
        *,
        ctx: ToolContext,
    ) -> None:
        """Find files by path pattern, sorted."""
        found = await reach.files(ctx).glob(pattern, limit=ROWS_MAX, ignored=ignored)
        if found.timed_out:
            raise ToolFailed(f"glob {pattern!r} took too long and was stopped")
        notes = [f"more than {ROWS_MAX} match"] if found.more else []
        notes += _left_out(found.ignored_skipped, 0)
        if found.not_addressable:
            notes.append(f"{found.not_addressable} names are shown escaped and cannot be addressed")
        ctx.out.write(_with_notes(found.paths, notes) or "[no file matches]")
        ctx.out.details({"matches": len(found.paths), "ignored": found.ignored_skipped})

    return glob


def _left_out(ignored: int, binary: int) -> list[str]:
    notes = [f"{ignored} ignored files left out; ignored=true shows them"] if ignored else []
    return [*notes, f"{binary} binary files skipped"] if binary else notes


def _search_tool(reach: _Reach) -> FunctionTool:
    @tool(name="search", replay="safe", output=Output(retain="head"))
    async def search(
        pattern: Annotated[str, Meta(description="regular expression, matched line by line")],
        path: Path = ".",
        glob: Annotated[str | None, Meta(description="only files matching this pattern")] = None,
        context: Annotated[
            int, Meta(description="lines shown around a match", ge=0, le=CONTEXT_MAX)
        ] = 0,
        ignored: Annotated[bool, Meta(description="also what .gitignore names")] = False,  # noqa: FBT002 - a model passes it by name
        *,
        ctx: ToolContext,
    ) -> None:
        """Search file contents, in path and line order."""
        query = SearchQuery(
            pattern=pattern,
            path=path,
            glob=glob,
            context=context,
            ignored=ignored,
            limit=MATCHES_MAX,
        )
        found = await reach.files(ctx).search(query)
        if found.timed_out:
            raise ToolFailed(f"search {pattern!r} took too long and was stopped")
        notes = [f"more than {len(found.matches)} lines match"] if found.more else []
        notes += _left_out(found.ignored_skipped, found.binary_skipped)
        rows = [row for match in found.matches for row in _match_rows(match)]
        ctx.out.write(
            _with_notes(rows, notes) if rows else _with_notes(["[no line matches]"], notes)
        )
        ctx.out.details({"matches": len(found.matches), "more": found.more})

    return search


def _match_rows(match: SearchMatch) -> list[str]:
    start = match.line - len(match.before)
    around = [f"{match.path}-{start + at}- {text}" for at, text in enumerate(match.before)]
    after = [f"{match.path}-{match.line + 1 + at}- {text}" for at, text in enumerate(match.after)]
    gap = ["--"] if match.before or match.after else []
    return [*around, f"{match.path}:{match.line}: {match.text}", *after, *gap]
