"""Reading a transcript: a conversation's entries, its inherited ones included (X43).

Order is by id: a fork's own entries come after the boundary it starts from. All of that commit is
inherited, also where an entry of it was named: only the context list stops there (FK-04, FK-07).
Each entry says in `conv` which conversation owns it.
"""

from collections.abc import Sequence

from msgspec import UNSET, Struct, structs

from perdure.ports import Storage
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry
from perdure.records.seqs import Seq
from perdure.records.sessions import EntryScan


class _Stretch(Struct, frozen=True):
    """A part of a transcript: a conversation's own entries below an exclusive bound."""

    conv_id: Seq
    below: Seq | None


async def read_transcript(
    storage: Storage, state: ConversationState, scan: EntryScan
) -> list[Entry]:
    """Answer a page of entries in the scan's order; `scan.conv_id` is not looked at.

    Raises:
        Rejected: `invariant` for a limit or boundary that storage refuses.
    """
    stretches = await _stretches(storage, state)
    if scan.order == "asc":
        stretches.reverse()
    found: list[Entry] = []
    for stretch in stretches:
        page = structs.replace(
            scan,
            conv_id=stretch.conv_id,
            before=_lower(scan.before, stretch.below),
            limit=scan.limit - len(found),
        )
        found += await storage.scan_entries(page)
        if len(found) == scan.limit:
            break
    return found


async def _stretches(storage: Storage, state: ConversationState) -> list[_Stretch]:
    """Answer the stretches of a transcript, the newest first."""
    found = [_Stretch(state.id, None)]
    below: Seq | None = None
    while state.parent is not UNSET:
        link = state.parent
        below = _lower(below, Seq(link.as_of + 1))
        found.append(_Stretch(link.conv_id, below))
        parents: Sequence[ConversationState] = list(
            (await storage.conversations([link.conv_id])).values()
        )
        if not parents:
            break
        state = parents[0]
    return found


def _lower(one: Seq | None, other: Seq | None) -> Seq | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
