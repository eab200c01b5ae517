"""Parts a provider refused: marked once, left out from then on (K15, PV-21, BB-40).

One bad image must not poison a session. When a provider refuses a request because of a part, the
part is marked in the failed attempt's own commit; the projection then puts a note in its place,
for that provider only, in every later request and after every restart.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from perdure.errors import ProviderError
from perdure.kinds.projection import Projections
from perdure.kinds.request import Asked
from perdure.line.command import Command
from perdure.ports import Storage
from perdure.records.addresses import REFUSED, Address, refused_part
from perdure.records.codec import decode
from perdure.records.messages import ImagePart, Message, ToolResultMessage, UserMessage
from perdure.records.seqs import Seq

REFUSED_STATUSES: Final = frozenset({400, 413, 415, 422})
"""HTTP statuses with which providers refuse content."""

REASON_CHARACTERS_MAX: Final = 300

MARKS_PAGE: Final = 1_000
"""Marks read at a time."""


class RefusedPart(Struct, frozen=True, kw_only=True):
    """One part of one entry that a provider will not take."""

    entry: Seq
    part: int
    provider: str
    reason: str


def refused_part_of(error: ProviderError, asked: Asked) -> RefusedPart | None:
    """Answer the part to go without after a failed request, None when it names none.

    The part the error names; else, for a refusal of content, the newest image of the request.
    """
    if error.code != "invalid_request":
        return None
    if error.refused is None and error.status is not None and error.status not in REFUSED_STATUSES:
        return None
    place = error.refused or _newest_image(asked.request.messages)
    if place is None:
        return None
    source = asked.sources[place[0]]
    if source is None:
        return None
    return RefusedPart(
        entry=source.entry,
        part=source.parts[place[1]],
        provider=asked.request.model.provider,
        reason=error.message[:REASON_CHARACTERS_MAX],
    )


def _newest_image(messages: Sequence[Message]) -> tuple[int, int] | None:
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if isinstance(message, UserMessage | ToolResultMessage):
            for part in range(len(message.content) - 1, -1, -1):
                if isinstance(message.content[part], ImagePart):
                    return at, part
    return None


async def load_refused(storage: Storage, projections: Projections) -> None:
    """Learn which parts providers refused, so that no request sends them again (K15)."""
    prefix = Address(kind="value", namespace=REFUSED)
    after: str | None = None
    while True:
        page = await storage.scan_values(prefix, after=after, limit=MARKS_PAGE)
        for stored in page:
            entry, _, part = stored.key.partition(".")
            reasons = decode(stored.value_json, dict[str, str])
            projections.refuse(Seq(int(entry)), int(part), reasons)
        if len(page) < MARKS_PAGE:
            return
        after = page[-1].key


async def mark_refused(tx: Command, refused: RefusedPart) -> dict[str, str]:
    """Write the mark, beside marks that other providers left on the same part; answers them all.

    Projections hear of it once it is stored.
    """
    address = refused_part(refused.entry, refused.part)
    known: dict[str, str] = dict(await tx.get_value(address, {}))
    known[refused.provider] = refused.reason
    tx.set_value(address, known)
    return known
