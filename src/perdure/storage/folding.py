"""What each write does to a conversation: pure functions, the same on every backend.

What it does to a task is in `records.folding`. A write that does not fit (a second
settlement, a patch of nothing) is `Rejected` before anything is published.
"""

from typing import Final

from msgspec import UNSET, Struct, UnsetType

from perdure.records.context_list import ContextList
from perdure.records.conversations import ConversationState, InboxItem, ParentLink, QueueMode
from perdure.records.seqs import Seq
from perdure.records.writes import PatchConversation, ReplaceContext, ResetContext
from perdure.storage.admission import refuse


class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """The fields of a conversation that a patch may change, after one patch (ST-32)."""

    inbox: tuple[InboxItem, ...] = ()
    label: str | None = None
    steering_mode: QueueMode = "all"
    follow_up_mode: QueueMode = "all"


NEW_SETTINGS: Final = Settings()


def patch_settings(settings: Settings, write: PatchConversation) -> Settings:
    """Answer the settings after a patch; an absent field keeps what was there."""
    return Settings(
        inbox=settings.inbox if write.inbox is UNSET else write.inbox,
        label=settings.label if write.label is UNSET else write.label,
        steering_mode=(
            settings.steering_mode if write.steering_mode is UNSET else write.steering_mode
        ),
        follow_up_mode=(
            settings.follow_up_mode if write.follow_up_mode is UNSET else write.follow_up_mode
        ),
    )


def check_edit(write: ReplaceContext | ResetContext, version: int, context: ContextList) -> None:
    """Refuse a replacement of a prefix that is not there or not the expected one."""
    if isinstance(write, ReplaceContext):
        if write.expect_prefix_version != version:
            refuse(
                f"write {write.seq} expects prefix version {write.expect_prefix_version}; "
                f"it is {version}"
            )
        if write.through not in context:
            refuse(f"write {write.seq} replaces through {write.through}, which is not on the list")


def missing(what: str, wanted: Seq, seq: Seq) -> str:
    """Word the refusal of a write about something that is not there."""
    return f"write {seq} names {what} {wanted!r}, which does not exist"


def both_payload_and_ref(seq: Seq) -> str:
    """Word the refusal of an entry with two sources of its payload (D03)."""
    return f"entry {seq} has both a payload and a ref; at most one of them is present"


def conversation_state(
    conv_id: Seq,
    *,
    parent: ParentLink | UnsetType,
    owner: Seq | UnsetType,
    commit_end: Seq,
    settings: Settings,
    context: ContextList,
    prefix_version: int,
    deleted: bool,
) -> ConversationState:
    """Put a conversation's facts and versions together."""
    return ConversationState(
        id=conv_id,
        commit_end=commit_end,
        parent=parent,
        inbox=settings.inbox,
        owner=owner,
        label=UNSET if settings.label is None else settings.label,
        context=context,
        prefix_version=prefix_version,
        steering_mode=settings.steering_mode,
        follow_up_mode=settings.follow_up_mode,
        deleted=deleted,
    )
