"""Queues: what waits in an inbox, and what each boundary takes out of it (seed 18, D03, D20).

Selection is pure: it reads the conversation's inbox and modes at the boundary. Placement writes a
fresh entry that refers to the admitted one, so ids never move and no payload is stored twice.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import UNSET

from perdure.kinds.inputs import move_inputs
from perdure.line.command import Command
from perdure.records.budgets import Budget
from perdure.records.conversations import ConversationState, InboxItem
from perdure.records.entries import EntryMeta
from perdure.records.seqs import Seq

Boundary: TypeAlias = Literal["accept", "post_tools", "answer", "write_only"]


def select(state: ConversationState, boundary: Boundary) -> tuple[InboxItem, ...]:
    """Answer the items a boundary takes, in admission order across tags (QU-04 to QU-09)."""
    takes: frozenset[str]
    match boundary:
        case "accept":
            takes = frozenset({"write", "nextRun", "steer", "followUp"})
        case "post_tools":
            takes = frozenset({"write", "steer"})
        case "answer":
            takes = frozenset({"write", "steer", "followUp"})
        case "write_only":
            takes = frozenset({"write"})
    taken: list[InboxItem] = []
    single: set[str] = set()
    for item in state.inbox:
        mode = (
            state.steering_mode
            if item.kind == "steer"
            else state.follow_up_mode
            if item.kind == "followUp"
            else "all"
        )
        if item.kind not in takes or (mode == "one-at-a-time" and item.kind in single):
            continue
        single.add(item.kind)
        taken.append(item)
    return tuple(taken)


def triggers(items: Sequence[InboxItem]) -> bool:
    """Say whether any item asks for a generation; a write never does (QU-10)."""
    return any(item.kind != "write" for item in items)


async def place(
    tx: Command,
    state: ConversationState,
    items: Sequence[InboxItem],
    *,
    written_by: Seq | None,
    budget: Budget | None = None,
) -> tuple[Seq, ...]:
    """Place items at the end of the transcript and dequeue them; answers the opened input ids.

    A write becomes `placed`; every other item becomes `open` and belongs to the generation that
    the caller creates in the same command. A `budget` replaces the one each of them came with.
    """
    if not items:
        return ()
    opened: list[Seq] = []
    for item in items:
        admitted = await tx.entry(item.entry)
        meta = admitted.meta
        entry_id = tx.insert_entry(
            state.id,
            "user" if meta.as_kind is UNSET else meta.as_kind,
            EntryMeta(timestamp=meta.timestamp, bytes=meta.bytes, tokens=meta.tokens),
            ref=item.entry,
            written_by=UNSET if written_by is None else written_by,
        )
        if item.kind == "write":
            await move_inputs(tx, [item.id], "placed", entry=entry_id)
        else:
            facts = {} if budget is None else {"budget": budget}
            await move_inputs(tx, [item.id], "open", entry=entry_id, **facts)
            opened.append(item.id)
    taken = {item.id for item in items}
    tx.patch_conversation(state.id, inbox=[item for item in state.inbox if item.id not in taken])
    return tuple(opened)
