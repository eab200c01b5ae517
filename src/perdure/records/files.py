"""What crosses the `Files` port; paths are relative to the root, with `/` (KT-03)."""

from typing import Literal, TypeAlias

from msgspec import Struct

FileKind: TypeAlias = Literal["file", "folder", "symlink", "other"]


class FileSlice(Struct, frozen=True, gc=False, kw_only=True):
    """Bytes of a file from `offset`; `size` is the whole file's, `digest` SHA-256 of the whole.

    `path` is the file's as results show it; `digest` is None where the slice is not the whole.
    """

    data: bytes
    offset: int
    size: int
    digest: str | None = None
    path: str = ""


class FileInfo(Struct, frozen=True, gc=False, kw_only=True):
    """One folder row; `target` is a symlink's text, `addressable` says that the name is UTF-8."""

    path: str
    kind: FileKind
    size: int = 0
    target: str | None = None
    addressable: bool = True


class GlobResult(Struct, frozen=True, gc=False, kw_only=True):
    """Matching paths, sorted, and what was left out: ignored files, names no path can say."""

    paths: tuple[str, ...]
    more: bool = False
    ignored_skipped: int = 0
    not_addressable: int = 0
    timed_out: bool = False


class SearchQuery(Struct, frozen=True, gc=False, kw_only=True):
    """A regular expression by line, under `path`, in files matching `glob` (KT-13)."""

    pattern: str
    path: str = "."
    glob: str | None = None
    context: int = 0
    ignored: bool = False
    limit: int = 200


class SearchMatch(Struct, frozen=True, gc=False, kw_only=True):
    """One matching line with its neighbours."""

    path: str
    line: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class SearchResult(Struct, frozen=True, gc=False, kw_only=True):
    """Matches in path and line order, and what was left out."""

    matches: tuple[SearchMatch, ...]
    more: bool = False
    binary_skipped: int = 0
    ignored_skipped: int = 0
    timed_out: bool = False
