"""Changes of files: only what was read, never twice, and shown as a diff (KT-08 to KT-11)."""

import difflib
import re
from collections import OrderedDict
from typing import Final

from msgspec import Struct

from perdure.errors import Rejected, ToolFailed
from perdure.ports import Files, ToolContext
from perdure.records.files import FileSlice
from perdure.records.seqs import Seq

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest file that write and edit replace: it is held in memory twice."""

DIFF_LINES_MAX: Final = 200
DIFF_REGION_LINES_MAX: Final = 2_000
"""More lines than this between the first and the last change are told, not compared."""

SEEN_MAX: Final = 10_000
_CONTEXT_LINES: Final = 3
_MEMO: Final = "change"


class Seen:
    """Which content each conversation last read or wrote where.

    Kept in this process only: after a restart a change asks to read again, which is the safe side.
    """

    def __init__(self) -> None:
        self._digests: OrderedDict[tuple[Seq, str], str] = OrderedDict()

    def note(self, conv_id: Seq, path: str, digest: str) -> None:
        """Remember; beyond 10,000 the oldest is forgotten."""
        self._digests[conv_id, path] = digest
        self._digests.move_to_end((conv_id, path))
        if len(self._digests) > SEEN_MAX:
            self._digests.popitem(last=False)

    def last(self, conv_id: Seq, path: str) -> str | None:
        """Answer the digest, None when it never read or wrote there."""
        return self._digests.get((conv_id, path))


class Before(Struct, frozen=True, kw_only=True):
    """A file as found: `digest` and `data` are None and empty when there is none."""

    path: str
    digest: str | None
    data: bytes = b""


async def read_before(files: Files, path: str) -> Before:
    """Read the file that is to be changed. Raises ToolFailed when it is too large."""
    try:
        found: FileSlice = await files.read(path, offset=0, limit=FILE_BYTES_MAX)
    except Rejected as refused:
        if refused.code != "not_found":
            raise
        return Before(path=str(refused.details["path"]), digest=None)
    if found.digest is None:
        raise ToolFailed(
            f"{found.path} has {found.size} bytes; files up to {FILE_BYTES_MAX} bytes are changed"
        )
    return Before(path=found.path, digest=found.digest, data=found.data)


class Change(Struct, frozen=True, kw_only=True):
    """A change that was decided before a kill, or none yet: digests of the two states."""

    old: str | None
    new: str


async def begun(ctx: ToolContext) -> Change | None:
    """Answer the change this execution had committed to before it was interrupted (KT-11)."""
    memo = await ctx.out.memo.get(_MEMO)
    if not isinstance(memo, dict):
        return None
    old, new = memo.get("old"), memo.get("new")
    return Change(old=old if isinstance(old, str) else None, new=str(new))


def demand_known(before: Before, change: Change | None, seen: str | None) -> None:
    """Refuse to change content that nobody looked at (KT-09) or that a third party made (KT-11).

    Raises:
        ToolFailed: saying to read the file again.
    """
    if change is not None:
        if before.digest != change.old:
            raise ToolFailed(
                f"{before.path} was changed by somebody else while this call was interrupted; "
                "nothing was written; read it again"
            )
    elif before.digest is not None and before.digest != seen:
        why = "was not read yet" if seen is None else "has changed since it was read"
        raise ToolFailed(f"{before.path} {why}; nothing was written; read it again")


async def apply(files: Files, before: Before, data: bytes, new: str, ctx: ToolContext) -> None:
    """Write the new content, once the two states are durably noted.

    Raises:
        ToolFailed: when somebody changed the file meanwhile; nothing was written.
    """
    await ctx.out.memo.set(_MEMO, {"old": before.digest, "new": new})
    try:
        await files.write(before.path, data, expect=before.digest)
    except Rejected as refused:
        if refused.code != "version_mismatch":
            raise
        raise ToolFailed(
            f"{before.path} was changed by somebody else; nothing was written; read it again"
        ) from refused


def replaced(path: str, data: bytes, old: str, new: str, expected: int) -> bytes:
    """Replace `old` by `new`, exactly `expected` times, keeping the file's own line ends (KT-10).

    Raises:
        ToolFailed: for a file that is not UTF-8, an empty `old`, or another number of places.
    """
    if not old or old == new:
        raise ToolFailed("`old` is empty, or the same as `new`; accepted: text to replace")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ToolFailed(f"{path} is not UTF-8 (byte {error.start}); it is left alone") from error
    parts = [re.escape(part) for part in old.replace("\r\n", "\n").split("\n")]
    places = list(re.finditer("\r?\n".join(parts), text))
    if len(places) != expected:
        raise ToolFailed(
            f"`old` occurs {len(places)} times in {path}, expected {expected}; nothing was written"
        )
    pieces: list[str] = []
    at = 0
    for place in places:
        pieces += [text[at : place.start()], _with_line_ends(new, text, place)]
        at = place.end()
    return "".join([*pieces, text[at:]]).encode()


def _with_line_ends(new: str, text: str, place: re.Match[str]) -> str:
    """Give the new text the line ends of the place it goes to: CRLF where the old had them."""
    lines = new.replace("\r\n", "\n")
    here = place[0] if "\n" in place[0] else text[place.start() : text.find("\n", place.end()) + 1]
    if "\n" not in here:
        before = text[: place.start()]
        here = before[before.rfind("\n") - 1 :] if "\n" in before else ""
    return lines.replace("\n", "\r\n") if "\r\n" in here else lines


def diff(path: str, before: bytes, after: bytes) -> str:
    """Answer a unified diff of at most 200 lines."""
    old = before.decode("utf-8", "replace").splitlines()
    new = after.decode("utf-8", "replace").splitlines()
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    start, end = max(0, start - _CONTEXT_LINES), max(0, end - _CONTEXT_LINES)
    region = old[start : len(old) - end], new[start : len(new) - end]
    if max(len(region[0]), len(region[1])) > DIFF_REGION_LINES_MAX:
        return f"[{len(region[0])} lines became {len(region[1])} from line {start + 1} on]"
    lines = list(
        difflib.unified_diff(*region, f"a/{path}", f"b/{path}", n=_CONTEXT_LINES, lineterm="")
    )
    shifted = [_shifted(line, start) if line.startswith("@@ ") else line for line in lines]
    if len(shifted) > DIFF_LINES_MAX:
        rest = len(shifted) - DIFF_LINES_MAX + 1
        shifted = [*shifted[: DIFF_LINES_MAX - 1], f"[… {rest} more lines of the diff]"]
    return "\n".join(shifted)


def _shifted(header: str, by: int) -> str:
    return re.sub(r"([-+])(\d+)", lambda number: f"{number[1]}{int(number[2]) + by}", header)
