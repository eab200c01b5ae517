"""The name of a session that was given none: made from its id (CM-18)."""

from typing import Final

from perdure.errors import Rejected
from perdure.ports import Randomness, Sessions, Storage

NAME_DIGITS: Final = 8
"""Digits of a session's id in a name made from it (CM-18)."""

UNNAMED_BYTES: Final = 16
"""Random bytes in the name of a session for as long as its id is not known."""


async def named_by_id(
    sessions: Sessions, prefix: str, randomness: Randomness, *, control: str | None = None
) -> Storage:
    """Make a session named after its id: `prefix` and the first eight digits, more when taken."""
    unnamed = prefix + randomness.token(UNNAMED_BYTES)
    storage = await sessions.open(unnamed, create=True, control=control)
    for digits in (NAME_DIGITS, 2 * NAME_DIGITS):
        name = prefix + storage.info.id[:digits]
        try:
            await sessions.rename(storage.info.name, name)
        except Rejected:
            continue
        break
    return storage
