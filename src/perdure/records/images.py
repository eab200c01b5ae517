"""Images at the door: what they are by their first bytes, and whether a model may see them (PV-20).

A picture a provider refuses stays in the history and is refused again with every later message,
so it is judged here once: kind, size in bytes and in pixels, read from the header without
decoding. Names and declared types are not believed.
"""

import base64
import binascii
import hashlib
import struct
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from perdure.errors import Rejected
from perdure.records.messages import ImagePart, Part, TextPart, UserMessage
from perdure.records.strict_json import repair_text

IMAGE_BYTES_MAX: Final = 5 * 1024 * 1024
"""Largest image, decoded from base64 (PV-20)."""

IMAGE_SIDE_PIXELS_MAX: Final = 8_000
"""Longest side of an image (PV-20)."""


class ImageFacts(Struct, frozen=True, gc=False, kw_only=True):
    """What the header of an image says."""

    mime: str
    width_pixels: int
    height_pixels: int


def image_facts(data: bytes) -> ImageFacts:
    """Read kind and size of an image that a model may be shown.

    Raises:
        Rejected: `invariant`, when it is empty, too large, of another kind, or its header is cut.
    """
    if not data:
        raise Rejected("invariant", "an image of 0 bytes")
    if len(data) > IMAGE_BYTES_MAX:
        raise Rejected(
            "invariant", f"an image of {len(data)} bytes; at most {IMAGE_BYTES_MAX} are accepted"
        )
    mime = _kind(data)
    try:
        width, height = _SIZES[mime](data)
    except (struct.error, IndexError):
        width = height = 0
    if not (width and height):
        raise Rejected("invariant", f"the {mime} header is damaged or cut")
    if max(width, height) > IMAGE_SIDE_PIXELS_MAX:
        raise Rejected(
            "invariant",
            f"an image of {width} x {height} pixels; at most {IMAGE_SIDE_PIXELS_MAX} a side are "
            f"accepted",
        )
    return ImageFacts(mime=mime, width_pixels=width, height_pixels=height)


def image_part(data: bytes) -> ImagePart:
    """Make the part of an image from its bytes.

    Raises:
        Rejected: `invariant`, as `image_facts` does.
    """
    return ImagePart(
        mime=image_facts(data).mime,
        sha256=hashlib.sha256(data).hexdigest(),
        data=base64.b64encode(data).decode(),
    )


def image_or_note(data: bytes, source: str) -> ImagePart | TextPart:
    """Make the part of an image, or a text that says whose image was left out and why (PV-20)."""
    try:
        return image_part(data)
    except Rejected as error:
        return _note(source, error.message)


def checked_image(part: ImagePart, source: str) -> ImagePart | TextPart:
    """Judge an image part that somebody else made, by its bytes; a blob was judged before."""
    if part.data is UNSET:
        return part if part.blob is not UNSET else _note(source, "there are no bytes")
    try:
        data = base64.b64decode(part.data, validate=True)
    except (binascii.Error, ValueError):
        return _note(source, "the bytes are not base64")
    return image_or_note(data, source)


def with_checked_images(messages: Sequence[UserMessage], source: str) -> tuple[UserMessage, ...]:
    """Answer an input's messages with every image judged."""
    return tuple(
        msgspec.structs.replace(
            message, content=tuple(_checked(part, source) for part in message.content)
        )
        for message in messages
    )


def _checked(part: Part, source: str) -> Part:
    return checked_image(part, source) if isinstance(part, ImagePart) else part


def _note(source: str, reason: str) -> TextPart:
    return TextPart(text=f"[image of {repair_text(source)[0]} left out: {reason}]")


def _kind(data: bytes) -> str:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    raise Rejected(
        "invariant", f"bytes that begin {data[:8]!r}; PNG, JPEG, GIF and WebP are accepted"
    )


def _png_size(data: bytes) -> tuple[int, int]:
    if data[12:16] != b"IHDR":
        return 0, 0
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _gif_size(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _webp_size(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8X":
            wide, high = data[24:27] + b"\0", data[27:30] + b"\0"
            return struct.unpack("<I", wide)[0] + 1, struct.unpack("<I", high)[0] + 1
        case b"VP8L" if data[20] == 0x2F:
            (bits,) = struct.unpack_from("<I", data, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case _:
            return 0, 0


_JPEG_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_JPEG_BARE: Final = frozenset({0x01, *range(0xD0, 0xD9)})
_JPEG_ENDS: Final = frozenset({0xD9, 0xDA})


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Step from segment to segment to the frame header; each step is forward, so it ends."""
    at = 2
    while True:
        while data[at] != 0xFF:
            at += 1
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 3)
            return width, height
        if marker in _JPEG_ENDS:
            return 0, 0
        if marker not in _JPEG_BARE:
            at += struct.unpack_from(">H", data, at)[0]


_SIZES: Final = MappingProxyType[str, Callable[[bytes], tuple[int, int]]](
    {
        "image/png": _png_size,
        "image/jpeg": _jpeg_size,
        "image/gif": _gif_size,
        "image/webp": _webp_size,
    }
)
