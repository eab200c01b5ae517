"""A file's bytes as a model reads them: numbered lines, or what else it is (KT-06, KT-07)."""

import codecs
import hashlib
from typing import Final

from msgspec import Struct

LINES_MAX: Final = 2_000
LINE_CHARACTERS_MAX: Final = 2_000
PAGE_BYTES_MAX: Final = 63 * 1024
"""Bytes of lines on one page: 64 KiB less room for the last line, which says how to read on."""

BINARY_PROBE_BYTES: Final = 8 * 1024
_LINE_BYTES_KEPT: Final = 4 * LINE_CHARACTERS_MAX

_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"\x7fELF", "application/x-elf"),
    (b"SQLite format 3\x00", "application/x-sqlite3"),
)


def detected_type(head: bytes) -> str | None:
    """Answer what a file's first bytes say it is, None for text (KT-07)."""
    for magic, mime in _MAGIC:
        if head.startswith(magic):
            return mime
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return None
    return "application/octet-stream" if b"\0" in head[:BINARY_PROBE_BYTES] else None


class Page(Struct, frozen=True, kw_only=True):
    """The lines of one page, and where in the file they are."""

    lines: tuple[str, ...]
    first: int
    total: int
    digest: str
    replaced: int

    @property
    def last(self) -> int:
        """Answer the number of the last line shown."""
        return self.first + len(self.lines) - 1


class Pager:
    """Takes a file in slices of any size, keeps one page, counts and hashes all of it."""

    def __init__(self, *, offset: int, limit: int) -> None:
        self._first = offset
        self._end = offset + limit
        self._number = 1
        self._lines: list[str] = []
        self._bytes = 0
        self._replaced = 0
        self._line = bytearray()
        self._line_size = 0
        self._is_full = False
        self._digest = hashlib.sha256()
        self._decoder: codecs.IncrementalDecoder | None = None
        self._is_started = False

    def feed(self, data: bytes) -> None:
        """Take the next slice."""
        self._digest.update(data)
        if not self._is_started:
            self._is_started = True
            if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
            elif data.startswith(codecs.BOM_UTF8):
                data = data[len(codecs.BOM_UTF8) :]
        if self._decoder is not None:
            data = self._decoder.decode(data).encode("utf-8", "replace")
        self._take(data)

    def _take(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            wanted = self._first <= self._number < self._end and not self._is_full
            if not wanted:
                at = self._pass(data, at)
                continue
            end = data.find(b"\n", at)
            stop = len(data) if end < 0 else end
            self._line_size += stop - at
            self._line += data[at : min(stop, at + _LINE_BYTES_KEPT - len(self._line))]
            at = stop + 1
            if end >= 0:
                self._keep_line()
                self._number += 1

    def _pass(self, data: bytes, at: int) -> int:
        """Count lines that are not shown: all that are left, or up to the page's first."""
        ahead = data.count(b"\n", at)
        missing = self._first - self._number
        if missing <= 0 or ahead < missing:
            self._number += ahead
            self._line_size = (
                len(data) - 1 - data.rfind(b"\n", at) if ahead else self._line_size + len(data) - at
            )
            return len(data)
        for _ in range(missing):
            at = data.index(b"\n", at) + 1
        self._number += missing
        self._line_size = 0
        return at

    def _keep_line(self) -> None:
        text = bytes(self._line).decode("utf-8", "replace").rstrip("\r")
        self._replaced += text.count("\ufffd")
        if len(text) > LINE_CHARACTERS_MAX or self._line_size > len(self._line):
            text = f"{text[:LINE_CHARACTERS_MAX]}… [line cut, {self._line_size} bytes]"
        self._bytes += len(text.encode()) + 10
        if self._bytes > PAGE_BYTES_MAX and self._lines:
            self._is_full = True
        else:
            self._lines.append(text)
        self._line.clear()
        self._line_size = 0

    def page(self) -> Page:
        """Answer the page once the whole file was fed."""
        total = self._number - 1
        if self._line_size:
            # The last line has no newline at its end.
            total += 1
            if self._first <= self._number < self._end and not self._is_full:
                self._keep_line()
        return Page(
            lines=tuple(self._lines),
            first=self._first,
            total=total,
            digest=self._digest.hexdigest(),
            replaced=self._replaced,
        )
