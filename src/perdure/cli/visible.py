"""Text of others, made harmless for a terminal (SX-03).

Escape sequences, C0 and C1 codes, carriage returns and bidirectional overrides act on a terminal;
here they are shown instead. Each character is judged by itself, so a text may be cut anywhere.
"""

import re
from typing import Final

_ACTING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    "\u2028\u2029\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)
"""What a terminal obeys or hides: all controls but tab and newline, direction marks, tags."""

_PICTURES: Final = 0x2400
"""Start of the Unicode block with a picture for each C0 code."""

_DELETE: Final = 0x7F


def visible(text: str) -> str:
    """Answer the text with every acting character replaced by a picture or its escape."""
    return _ACTING.sub(_shown, text)


def one_line(text: str) -> str:
    """Answer the text on one line, its newlines and tabs shown as well."""
    return visible(text).replace("\n", "\u2424").replace("\t", "\u2409")


def _shown(found: "re.Match[str]") -> str:
    code = ord(found.group())
    if code < 0x20:
        return chr(_PICTURES + code)
    if code == _DELETE:
        return "\u2421"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
