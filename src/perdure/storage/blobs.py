"""Bytes too large for a row: content-addressed files beside the store (BR-14).

A file is named by the SHA-256 of its content, written under another name, synced, and renamed
before the commit that names it, so a named blob is always whole; a kill leaves at most one that
nothing names. Equal content is one file, whoever writes it. Nothing is removed here.

An image inside a payload gives its bytes away and keeps `"blob":true` in their place; any other
value over the threshold goes as a whole. `Cut` says how to put the very same bytes back.
"""

import base64
import binascii
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

from msgspec import UNSET, Raw, Struct, structs

from perdure.errors import StorageDamaged
from perdure.records.codec import decode_json
from perdure.records.seqs import Seq
from perdure.records.writes import Commit, Write
from perdure.storage.admission import raw_fields

BLOB_BYTES_MIN: Final = 64 * 1024
"""More bytes than this go to a file: a row is slower from here on, in writing and in reading."""

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700

_MARK: Final = b'"blob":true'
_OPEN: Final = b'"data":"'


class Cut(Struct, frozen=True, array_like=True):
    """One shortened field: the blob of its whole text, and the images cut out of that text."""

    seq: Seq
    field: str
    whole: str | None
    images: tuple[tuple[int, str], ...] = ()


class BlobSource(Protocol):
    """Where the bytes of a blob come from."""

    def get(self, name: str) -> bytes:
        """Answer a blob's bytes."""
        ...


class Blobs:
    """One folder of blobs; `sync` puts new ones on disk before they are named."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self._folder = folder
        self._sync = sync

    def put(self, data: bytes) -> str:
        """Store bytes and answer their name."""
        name = hashlib.sha256(data).hexdigest()
        path = self._path(name)
        try:
            if path.stat().st_size == len(data):
                return name
        except FileNotFoundError:
            pass
        self._make(path.parent.parent)
        self._make(path.parent)
        draft = path.with_name(f"{name}.{os.getpid()}.new")
        try:
            self._write(draft, data)
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        self._sync_folder(path.parent)
        return name

    def get(self, name: str) -> bytes:
        """Answer a blob's bytes.

        Raises:
            StorageDamaged: the blob is missing or altered.
        """
        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError:
            raise StorageDamaged(f"the blob {name} is missing") from None
        if hashlib.sha256(data).hexdigest() != name:
            raise StorageDamaged(f"the blob {name} is altered: its digest does not fit")
        return data

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir(FOLDER_MODE)
        except FileExistsError:
            return
        self._sync_folder(folder.parent)

    def _write(self, path: Path, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        handle = os.open(path, flags, FILE_MODE)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            if self._sync:
                os.fsync(handle)
        finally:
            os.close(handle)

    def _sync_folder(self, folder: Path) -> None:
        if not self._sync:
            return
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def shorten(commit: Commit, blobs: Blobs) -> tuple[Commit, tuple[Cut, ...]]:
    """Move what is too large into blobs; answer the commit that is left, and how to undo it."""
    cuts: list[Cut] = []
    writes: list[Write] = []
    for write in commit.writes:
        for field in raw_fields(write):
            raw = getattr(write, field)
            if raw is not UNSET and len(memoryview(raw)) > BLOB_BYTES_MIN:
                text, cut = _shorten_field(bytes(raw), write.seq, field, blobs)
                write = structs.replace(write, **{field: Raw(text)})  # noqa: PLW2901 - the next field's
                cuts.append(cut)
        writes.append(write)
    if not cuts:
        return commit, ()
    return structs.replace(commit, writes=tuple(writes)), tuple(cuts)


def _shorten_field(text: bytes, seq: Seq, field: str, blobs: Blobs) -> tuple[bytes, Cut]:
    pieces: list[bytes] = []
    images: list[tuple[int, str]] = []
    start = size = 0
    for place, end, data in _images_in(text):
        pieces += (text[start:place], _MARK)
        size += place - start
        images.append((size, blobs.put(data)))
        size += len(_MARK)
        start = end
    text = b"".join((*pieces, text[start:]))
    whole = None
    if len(text) > BLOB_BYTES_MIN:
        whole, text = blobs.put(text), b"null"
    return text, Cut(seq, field, whole, tuple(images))


def _images_in(text: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Find large images: where their data member starts and ends, and the bytes it encodes."""
    if b'"image"' not in text:
        return
    start = 0
    for encoded in _image_texts(decode_json(text)):
        member = _OPEN + encoded.encode() + b'"'
        place = text.find(member, start)
        data = _decoded(encoded)
        if place >= 0 and data is not None and len(data) > BLOB_BYTES_MIN:
            start = place + len(member)
            yield place, start, data


def _image_texts(value: Any) -> Iterator[str]:
    """Walk the base64 texts of image parts in the order of the text."""
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _image_texts(item)
    elif isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        encoded = fields.get("data")
        if fields.get("type") == "image" and isinstance(encoded, str):
            yield encoded
            return
        for item in fields.values():
            yield from _image_texts(item)


def _decoded(encoded: str) -> bytes | None:
    """Decode base64 that encodes back to the same text; None for any other."""
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if base64.b64encode(data).decode() == encoded else None


def restore(write: Write, cuts: Sequence[Cut], blobs: BlobSource) -> Write:
    """Put a write's bytes back as they were given.

    Raises:
        StorageDamaged: a blob is missing or altered; the message names the write.
    """
    for cut in cuts:
        if cut.seq == write.seq:
            try:
                text = _restored(bytes(getattr(write, cut.field)), cut, blobs)
            except StorageDamaged as error:
                raise StorageDamaged(f"{cut.field} of write {write.seq}: {error}") from None
            write = structs.replace(write, **{cut.field: Raw(text)})
    return write


def _restored(text: bytes, cut: Cut, blobs: BlobSource) -> bytes:
    if cut.whole is not None:
        text = blobs.get(cut.whole)
    pieces: list[bytes] = []
    start = 0
    for place, name in cut.images:
        pieces += (text[start:place], _OPEN, base64.b64encode(blobs.get(name)), b'"')
        start = place + len(_MARK)
    return b"".join((*pieces, text[start:]))
