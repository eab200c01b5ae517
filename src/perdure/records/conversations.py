"""What a conversation is apart from its transcript and its tasks (ST-20)."""

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from perdure.records.context_list import EMPTY_CONTEXT, ContextList
from perdure.records.names import stored
from perdure.records.seqs import Seq

QueueMode: TypeAlias = Literal["all", "one-at-a-time"]
InboxTag: TypeAlias = Literal["write", "steer", "followUp", "nextRun"]


class ParentLink(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=stored):
    """Where a conversation comes from: parent, optional entry, boundary, and value inheritance."""

    conv_id: Seq
    at_entry: Seq | UnsetType = UNSET
    as_of: Seq
    inherit_values: bool


class InboxItem(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Name queued content: the `input` entry `entry` waits under tag `kind` (D03).

    `id` equals `entry`: the seq of the admission entry is the input's id.
    """

    id: Seq
    kind: InboxTag
    entry: Seq


class ConversationState(
    Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=stored
):
    """A conversation at one boundary.

    `context` is the list the model reads; `prefix_version` rises with replace and reset only;
    `commit_end` is the last main commit that touched this conversation.
    """

    id: Seq
    commit_end: Seq
    parent: ParentLink | UnsetType = UNSET
    inbox: tuple[InboxItem, ...] = ()
    owner: Seq | UnsetType = UNSET
    label: str | UnsetType = UNSET
    context: ContextList = EMPTY_CONTEXT
    prefix_version: int = 0
    steering_mode: QueueMode = "all"
    follow_up_mode: QueueMode = "all"
    deleted: bool = False
