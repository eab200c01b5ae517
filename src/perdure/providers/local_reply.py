"""The local model's answer, read back into frames as it arrives (PV-24).

Without a schema the answer is text and streams as it comes. With one it is a JSON object: an
`{"answer": …}` streams too, decoded while it grows; a call is one frame at its end, after the
strict parser has read the whole. Text that fits neither, which only a cut reply can be, is kept:
as a call with its raw argument text, or as text.
"""

import json
import re
from typing import Final

from msgspec import UNSET

from perdure.errors import InvalidArguments
from perdure.records.codec import encode
from perdure.records.frames import DeltaFrame, EndFrame, Frame, StartFrame
from perdure.records.messages import TextPart, ToolCallPart
from perdure.records.strict_json import parse_object, repair_text

_ANSWER: Final = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
_CALL: Final = re.compile(r'\s*\{\s*"tool"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"arguments"\s*:\s*')
_PIECE: Final = re.compile(
    r"""[^"\\]+                                         # plain characters
      | \\[^u]                                          # a short escape
      | \\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}   # a pair
      | \\u[dD][89abAB][0-9a-fA-F]{2}(?=[^\\]|\\[^u]|\\u(?![dD][c-fC-F])[0-9a-fA-F]{4})  # an orphan
      | \\u(?![dD][89abAB])[0-9a-fA-F]{4}               # any other
    """,
    re.VERBOSE,
)

BLOCK_CHARACTERS: Final = range(4, 241)
"""Lengths of a block of text that may be found repeated."""

REPEATS: Final = 3
LONG_BLOCK_CHARACTERS: Final = 24
"""A block of this length is not said twice in a row by chance; shorter ones need `REPEATS`."""


def repeats_itself(text: str) -> bool:
    """Say whether a text ends in one block said again and again, as small models do."""
    for size in BLOCK_CHARACTERS:
        times = 2 if size >= LONG_BLOCK_CHARACTERS else REPEATS
        block = text[-size:]
        if len(text) >= size * times and text.endswith(block * times) and block.strip():
            return True
    return False


class ReplyReader:
    """Turn the runtime's text, piece by piece, into frames."""

    def __init__(self, *, is_json: bool, call_id: str) -> None:
        """Read JSON that fits the schema of `local_prompt`, or plain text."""
        self._is_json = is_json
        self._call_id = call_id
        self._raw = ""
        self._read = 0
        self._in_text = False
        self._closed = False

    def add(self, text: str) -> list[Frame]:
        """Take the next piece of text."""
        self._raw += text
        return self._answer_frames() if self._is_json else self._text_frames()

    @property
    def repeats(self) -> bool:
        """Say whether the text so far ends in one block said again and again."""
        return repeats_itself(self._raw)

    def end(self) -> list[Frame]:
        """End the reply: close its text, or read the call."""
        frames: list[Frame] = []
        if self._is_json and not self._in_text:
            return self._whole()
        if not self._is_json and self._read < len(self._raw):
            frames += self._spoken(self._raw[self._read :]) if self._in_text else []
            self._read = len(self._raw)
        if self._in_text:
            frames.append(EndFrame(part_index=0))
        return frames

    def _text_frames(self) -> list[Frame]:
        piece = self._raw[self._read :]
        if not self._in_text:
            piece = piece.lstrip()  # blank text is held back: alone it would be no reply
        if not piece:
            return []
        if "\ud800" <= piece[-1:] <= "\udbff":
            return []  # the other half of the character is still to come
        self._read = len(self._raw)
        return self._spoken(piece)

    def _answer_frames(self) -> list[Frame]:
        if self._closed:
            return []
        if not self._read:
            opening = _ANSWER.match(self._raw)
            if opening is None:
                return []
            self._read = opening.end()
        start = self._read
        while (piece := _PIECE.match(self._raw, self._read)) is not None:
            self._read = piece.end()
        self._closed = self._raw[self._read : self._read + 1] == '"'
        quoted = self._raw[start : self._read]
        return self._spoken(str(json.loads(f'"{quoted}"', strict=False))) if quoted else []

    def _spoken(self, text: str) -> list[Frame]:
        clean, _ = repair_text(text)
        frames: list[Frame] = []
        if not self._in_text:
            self._in_text = True
            frames.append(StartFrame(part_index=0, part=TextPart(text="")))
        frames.append(DeltaFrame(part_index=0, delta_text=clean))
        return frames

    def _whole(self) -> list[Frame]:
        """Read a reply that is not, or not yet, an answer."""
        try:
            reply = parse_object(self._raw)
        except InvalidArguments:
            opening = _CALL.match(self._raw)
            if opening is None:
                return self._kept()
            name = str(json.loads(f'"{opening.group(1)}"', strict=False))
            return self._call(name, self._raw[opening.end() :])
        name, arguments = reply.get("tool"), reply.get("arguments")
        if isinstance(name, str) and arguments is not None:
            return self._call(name, encode(arguments).decode())
        return [] if reply.get("answer") == "" else self._kept()

    def _call(self, name: str, raw_args: str) -> list[Frame]:
        part = ToolCallPart(call_id=self._call_id, name=name, args_text="")
        return [
            StartFrame(part_index=0, part=part),
            DeltaFrame(part_index=0, delta_text=raw_args),
            EndFrame(part_index=0, x=UNSET),
        ]

    def _kept(self) -> list[Frame]:
        if not self._raw.strip():
            return []
        return [*self._spoken(self._raw), EndFrame(part_index=0)]
