"""Reading a transcript: a conversation's entries, its inherited ones included (X43).

Order is by id: a fork's own entries come after the boundary it starts from. All of that commit is
inherited, also where an entry of it was named: only the context list stops there (FK-04, FK-07).
Each entry says in `conv` which conversation owns it.
"""

from collections.abc import Sequence

from msgspec import structs

from perdure.kinds.reader import Stretch, stretches
from perdure.ports import Storage
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry
from perdure.records.seqs import Seq
from perdure.records.sessions import EntryScan


async def history_of(storage: Storage, state: ConversationState) -> Sequence[Stretch]:
    """Answer the stretches of a conversation's history, its own first, read from storage alone."""

    async def state_of(conv_id: Seq) -> ConversationState | None:
        return (await storage.conversations([conv_id])).get(conv_id)

    return await stretches(state, state_of)


async def read_transcript(
    storage: Storage, state: ConversationState, scan: EntryScan
) -> list[Entry]:
    """Answer a page of entries in the scan's order; `scan.conv_id` is not looked at.

    Raises:
        Rejected: `invariant` for a limit or boundary that storage refuses.
    """
    history = await history_of(storage, state)
    found: list[Entry] = []
    for stretch in reversed(history) if scan.order == "asc" else history:
        below = Seq(stretch.through + 1)
        page = structs.replace(
            scan,
            conv_id=stretch.conv_id,
            before=below if scan.before is None else min(scan.before, below),
            limit=scan.limit - len(found),
        )
        found += await storage.scan_entries(page)
        if len(found) == scan.limit:
            break
    return found
