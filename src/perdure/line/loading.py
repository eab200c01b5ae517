"""Loading what a command needs and memory does not hold: its targets, and what those hang on.

Everything is read before validation, so that validation never waits.
"""

from collections.abc import Sequence

from msgspec import UNSET

from perdure.line.draft import Draft, Loaded
from perdure.line.residency import Residency
from perdure.line.targets import targets
from perdure.ports import Storage
from perdure.records.conversations import ConversationState, ParentLink
from perdure.records.seqs import Seq
from perdure.records.writes import InsertConversation, Write


async def load_targets(
    held: Residency, storage: Storage, writes: Sequence[Write], loaded: Loaded
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
        await _load_prefixes(held, storage, loaded, tuple(conversations))


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
    held: Residency, storage: Storage, loaded: Loaded, conv_ids: Sequence[Seq]
) -> None:
    """Load the ancestors of conversations beside which an entry of another one is named."""
    owners = {entry.conv_id for entry in loaded.entries.values()}
    for conv_id in conv_ids:
        state = held.conversation(conv_id)
        if state is not None and state.parent is not UNSET and owners != {conv_id}:
            await _load_ancestors(held, storage, loaded, state)


async def _load_boundary(storage: Storage, loaded: Loaded, link: ParentLink) -> None:
    """Find whether a parent existed at its boundary; storage refuses what is none (VD-09)."""
    found = await storage.conversations([link.conv_id], as_of=link.as_of)
    loaded.begun.update((conv_id, link.as_of) for conv_id in found)


async def _load_ancestors(
    held: Residency, storage: Storage, loaded: Loaded, state: ConversationState
) -> None:
    """Load the states of ancestors: what is inherited is found by walking them."""
    current = state
    while current.parent is not UNSET:
        parent_id = current.parent.conv_id
        parent = held.conversation(parent_id) or loaded.conversations.get(parent_id)
        if parent is None:
            found = await storage.conversations([parent_id])
            if parent_id not in found:
                return
            parent = loaded.conversations[parent_id] = found[parent_id]
        current = parent


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
