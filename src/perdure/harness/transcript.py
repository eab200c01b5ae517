"""Reading a transcript: a conversation's entries, its inherited ones included (X43).

Order is by id: a fork's own entries come after the boundary it starts from. All of that commit is
inherited, also where an entry of it was named: only the context list stops there (FK-04, FK-07).
Each entry says in `conv` which conversation owns it.
"""

from msgspec import structs

from perdure.line.lineage import Lineage
from perdure.ports import Storage
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry
from perdure.records.seqs import Seq
from perdure.records.sessions import EntryScan


async def read_transcript(
    storage: Storage,
    state: ConversationState,
    scan: EntryScan,
    *,
    lineage: Lineage | None = None,
) -> list[Entry]:
    """Answer a page of entries in the scan's order; `scan.conv_id` is not looked at.

    `lineage` is that of an open session, which remembers the way.

    Raises:
        Rejected: `invariant` for a limit or boundary that storage refuses.
    """
    history = await (lineage or Lineage(storage)).stretches(state)
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
