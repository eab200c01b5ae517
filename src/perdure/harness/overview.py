"""What a session looks like from outside: read from storage alone, without lock or engine."""

from typing import Final

from msgspec import UNSET

from perdure.ports import Storage
from perdure.records.addresses import MODEL
from perdure.records.codec import decode
from perdure.records.conversations import ConversationState
from perdure.records.entries import ModelId
from perdure.records.seqs import Seq
from perdure.records.sessions import ConversationScan

PAGE: Final = 100
"""Conversations read at a time."""


async def root_of(storage: Storage, *, as_of: Seq | None = None) -> ConversationState | None:
    """Find the conversation without parent or owner; None before the first commit."""
    after: Seq | None = None
    while True:
        page = await storage.scan_conversations(
            ConversationScan(after=after, limit=PAGE, as_of=as_of)
        )
        for state in page:
            if state.parent is UNSET and state.owner is UNSET:
                return state
        if len(page) < PAGE:
            return None
        after = page[-1].id


async def stored_model(storage: Storage, *, as_of: Seq | None = None) -> ModelId | None:
    """Answer the model of the root conversation, None when none is stored."""
    root = await root_of(storage, as_of=as_of)
    if root is None:
        return None
    stored = await storage.value(MODEL.bind(root.id), as_of=as_of)
    return None if stored is None else decode(stored.value_json, ModelId)
