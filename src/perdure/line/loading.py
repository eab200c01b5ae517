"""Loading what a command needs and memory does not hold: its targets, and what those hang on.

Everything is read before validation, so that validation never waits.
"""

from collections.abc import Sequence

from msgspec import UNSET

from perdure.line.draft import Draft, Loaded
from perdure.line.lineage import Lineage
from perdure.line.residency import Residency
from perdure.line.targets import targets
from perdure.ports import Storage
from perdure.records.conversations import ParentLink
from perdure.records.seqs import Seq
from perdure.records.writes import InsertConversation, Write


async def load_targets(
    held: Residency, storage: Storage, lineage: Lineage, writes: Sequence[Write], loaded: Loaded
) -> None:
    """Load what a command refers to and does not create, before it is validated."""
    conversations, tasks, entries = targets(writes)
    first = writes[0].seq
    held.keep(tuple(conversations))
    missing = [seq for seq in conversations if seq < first and held.conversation(seq) is None]
    missing_tasks = [
        seq
        for seq in tasks
        if seq < first and held.task(seq) is None and held.settled_task(seq) is None
    ]
    for conv_id in missing:
        await held.load(storage, conv_id)
    for write in writes:
        if type(write) is InsertConversation and write.parent is not UNSET:
            await _load_boundary(storage, loaded, write.parent)
    if missing_tasks:
        loaded.tasks.update(await storage.tasks(missing_tasks))
    if entries:
        await _load_entries(held, storage, loaded, [seq for seq in entries if seq < first])
        await _load_prefixes(held, lineage, loaded, tuple(conversations))


async def _load_entries(
    held: Residency, storage: Storage, loaded: Loaded, ids: Sequence[Seq]
) -> None:
    """Load entries; those in memory are kept too, for their conversation may leave it meanwhile."""
    missing: list[Seq] = []
    for seq in ids:
        entry = held.entry(seq)
        if entry is None:
            missing.append(seq)
        else:
            loaded.entries[seq] = entry
    if missing:
        loaded.entries.update(await storage.entries(missing))


async def _load_prefixes(
    held: Residency, lineage: Lineage, loaded: Loaded, conv_ids: Sequence[Seq]
) -> None:
    """Load the links above conversations beside which an entry of another one is named."""
    owners = {entry.conv_id for entry in loaded.entries.values()}
    for conv_id in conv_ids:
        state = held.conversation(conv_id)
        if state is None or owners == {conv_id}:
            continue
        link = state.parent
        while link is not UNSET and link.conv_id not in loaded.parents:
            above = await lineage.parent(link.conv_id)
            loaded.parents[link.conv_id] = link = above


async def _load_boundary(storage: Storage, loaded: Loaded, link: ParentLink) -> None:
    """Find whether a parent existed at its boundary; storage refuses what is none (VD-09)."""
    found = await storage.conversations([link.conv_id], as_of=link.as_of)
    loaded.begun.update((conv_id, link.as_of) for conv_id in found)


async def load_joining(held: Residency, storage: Storage, draft: Draft) -> None:
    """Load entries that join a context list by a reset or a new conversation (RS-03)."""
    for state in draft.conversations.values():
        before = draft.committed_conversation(state.id)
        if before is not None and before.prefix_version == state.prefix_version:
            continue
        missing: list[Seq] = []
        for seq in state.context:
            if seq in draft.entries or held.entry(seq) is not None:
                continue
            known = draft.entry(seq)
            if known is None:
                missing.append(seq)
            else:
                draft.entries[seq] = known
        if missing:
            draft.entries.update(await storage.entries(missing))
