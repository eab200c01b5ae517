"""Images are judged by their first bytes, and none of them poisons a session."""

import base64
import hashlib
import struct
from collections.abc import Callable

import pytest
from msgspec import UNSET

from perdure.errors import Rejected
from perdure.records.images import (
    IMAGE_BYTES_MAX,
    checked_image,
    image_facts,
    image_or_note,
    image_part,
    with_checked_images,
)
from perdure.records.messages import ImagePart, TextPart, UserMessage


def png(width: int, height: int) -> bytes:
    header = struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + header + b"\0\0\0\0"


def gif(width: int, height: int, version: bytes = b"GIF89a") -> bytes:
    return version + struct.pack("<HH", width, height) + b"\0\0\0"


def jpeg(width: int, height: int, frame: int = 0xC0) -> bytes:
    exif = b"\xff\xe1" + struct.pack(">H", 8) + b"Exif\xff\xc0"
    tables = b"\xff\xff\xff\xc4" + struct.pack(">H", 3) + b"\0" + b"\xff\x01"
    size = struct.pack(">HBHH", 17, 8, height, width)
    return b"\xff\xd8" + exif + tables + bytes([0xFF, frame]) + size + b"\3" * 10


def webp(width: int, height: int, chunk: bytes) -> bytes:
    if chunk == b"VP8X":
        sides = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
        body = b"\x10\0\0\0" + sides
    elif chunk == b"VP8L":
        body = b"\x2f" + struct.pack("<I", width - 1 | (height - 1) << 14)
    else:
        body = b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width | 0x4000, height)
    return b"RIFF\0\0\0\0WEBP" + chunk + struct.pack("<I", len(body)) + body


GOOD = [
    (png(640, 480), "image/png"),
    (gif(640, 480), "image/gif"),
    (gif(640, 480, b"GIF87a"), "image/gif"),
    (jpeg(640, 480), "image/jpeg"),
    (jpeg(640, 480, 0xC2), "image/jpeg"),
    (jpeg(640, 480, 0xCF), "image/jpeg"),
    (webp(640, 480, b"VP8 "), "image/webp"),
    (webp(640, 480, b"VP8L"), "image/webp"),
    (webp(640, 480, b"VP8X"), "image/webp"),
]


@pytest.mark.parametrize(("data", "mime"), GOOD)
def test_kind_and_size_come_from_the_bytes(data: bytes, mime: str) -> None:
    facts = image_facts(data)
    assert (facts.mime, facts.width_pixels, facts.height_pixels) == (mime, 640, 480)
    part = image_part(data)
    assert part.mime == mime
    assert part.sha256 == hashlib.sha256(data).hexdigest()
    assert part.data is not UNSET
    assert base64.b64decode(part.data) == data
    assert part.blob is UNSET


@pytest.mark.parametrize(("data", "mime"), GOOD)
def test_a_header_that_is_cut_is_refused(data: bytes, mime: str) -> None:
    for length in range(len(data)):
        try:
            facts = image_facts(data[:length])
        except Rejected:
            continue
        # What lies behind the size is not looked at; before it there is no guess.
        assert (facts.mime, facts.width_pixels, facts.height_pixels) == (mime, 640, 480)


@pytest.mark.parametrize("make", [png, gif, jpeg])
def test_a_side_is_at_most_8000_pixels(make: Callable[[int, int], bytes]) -> None:
    assert image_facts(make(8_000, 8_000)).width_pixels == 8_000
    for sides in ((8_001, 1), (1, 8_001)):
        with pytest.raises(Rejected, match=r"8001.*at most 8000"):
            image_facts(make(*sides))
    for sides in ((0, 1), (1, 0)):
        with pytest.raises(Rejected, match="damaged"):
            image_facts(make(*sides))


def test_an_image_has_1_byte_to_5_mib() -> None:
    fits = png(1, 1).ljust(IMAGE_BYTES_MAX, b"\0")
    assert image_part(fits).mime == "image/png"
    with pytest.raises(Rejected, match=f"{IMAGE_BYTES_MAX + 1} bytes; at most {IMAGE_BYTES_MAX}"):
        image_part(fits + b"\0")
    with pytest.raises(Rejected, match="0 bytes"):
        image_part(b"")


@pytest.mark.parametrize(
    "data",
    [
        b"just text in a file named .png",
        b"%PDF-1.7",
        b"BM",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 30,
        b"RIFF\0\0\0\0WAVEfmt ",
        b"RIFF\0\0\0\0WEBPVP9 " + b"\0" * 30,
        webp(640, 480, b"VP8 ").replace(b"\x9d\x01\x2a", b"\x9d\x01\x2b"),
        webp(640, 480, b"VP8L").replace(b"\x2f", b"\x2e", 1),
        b"\xff\xd8\xff\xd9",
        b"\xff\xd8\xff\xda\0\2" + b"\xff\xc0\0\x11\x08\0\1\0\1",
        b"\xff\xd8\xff" + b"\xff" * 100,
        b"\xff\xd8\xff\xe0\0\0" * 3,
    ],
)
def test_anything_else_is_refused_and_becomes_a_note(data: bytes) -> None:
    with pytest.raises(Rejected) as refusal:
        image_part(data)
    note = image_or_note(data, "tool shot\x00")
    assert note == TextPart(text=f"[image of tool shot\u2400 left out: {refusal.value.message}]")


def test_an_image_made_by_somebody_else_is_judged_by_its_bytes() -> None:
    data = base64.b64encode(gif(1, 1)).decode()
    lie = ImagePart(mime="image/png", sha256="0", data=data)
    assert checked_image(lie, "x") == image_part(gif(1, 1))
    blob = ImagePart(mime="image/png", sha256="0", blob=True)
    assert checked_image(blob, "x") == blob
    for bad in (
        ImagePart(mime="image/png", sha256="0"),
        ImagePart(mime="image/png", sha256="0", data="not base64!"),
        ImagePart(mime="image/png", sha256="0", data="é"),
        ImagePart(mime="image/png", sha256="0", data=base64.b64encode(b"text").decode()),
    ):
        assert isinstance(checked_image(bad, "x"), TextPart)
    message = UserMessage(content=(TextPart(text="look"), lie, blob), timestamp=4)
    assert with_checked_images([message], "the user") == (
        UserMessage(content=(TextPart(text="look"), image_part(gif(1, 1)), blob), timestamp=4),
    )
