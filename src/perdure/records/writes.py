"""The write vocabulary: exactly fifteen records, and the commit that carries them (ST-31).

A commit is `{"c","f","l","t","w"}` on disk: checksum, first and last seq, wall milliseconds, and
writes; each write has `s` (its seq) and `k` (its kind). The checksum belongs to the backend.
"""

from typing import Final, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.records.conversations import InboxItem, ParentLink, QueueMode
from perdure.records.names import stored, stored_as
from perdure.records.seqs import Seq


class InsertConversation(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="ins_conv",
    tag_field="k",
    omit_defaults=True,
    rename=stored,
):
    """Create a conversation whose id is this write's seq."""

    seq: Seq
    parent: ParentLink | UnsetType = UNSET
    owner: Seq | UnsetType = UNSET
    context: tuple[Seq, ...] = ()


class PatchConversation(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="set_conv",
    tag_field="k",
    omit_defaults=True,
    rename=stored_as(conv_id="id"),
):
    """Change inbox, label or queue modes, and nothing else (ST-32); label null removes it."""

    seq: Seq
    conv_id: Seq
    inbox: tuple[InboxItem, ...] | UnsetType = UNSET
    label: str | UnsetType | None = UNSET
    steering_mode: QueueMode | UnsetType = UNSET
    follow_up_mode: QueueMode | UnsetType = UNSET


class DeleteConversation(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="del_conv",
    tag_field="k",
    omit_defaults=True,
    rename=stored_as(conv_id="id"),
):
    """Delete a conversation; its history stays readable through forks."""

    seq: Seq
    conv_id: Seq


class InsertEntry(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="ins_entry",
    tag_field="k",
    omit_defaults=True,
    rename=stored,
):
    """Append an immutable entry; exactly one of payload and ref is present, or neither (D03)."""

    seq: Seq
    conv_id: Seq
    kind: str
    written_by: Seq | UnsetType = UNSET
    call_index: int | UnsetType = UNSET
    through: Seq | UnsetType = UNSET
    key: str | UnsetType = UNSET
    ref: Seq | UnsetType = UNSET
    meta_json: Raw
    payload_json: Raw | UnsetType = UNSET


class InsertTask(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="ins_task",
    tag_field="k",
    omit_defaults=True,
    rename=stored,
):
    """Create a task whose id is this write's seq."""

    seq: Seq
    conv_id: Seq
    kind: str
    at_entry: Seq | UnsetType = UNSET
    spawned_by: Seq | UnsetType = UNSET
    after: tuple[Seq, ...] = ()
    status: str
    state_json: Raw


class PatchTask(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="set",
    tag_field="k",
    omit_defaults=True,
    rename=stored_as(task_id="id"),
):
    """Change a live task: status, fields of its state, dependencies, ownership or abort mark."""

    seq: Seq
    task_id: Seq
    status: str | UnsetType = UNSET
    state_json: Raw | UnsetType = UNSET
    unset: tuple[str, ...] = ()
    after: tuple[Seq, ...] | UnsetType = UNSET
    owns: Seq | UnsetType = UNSET
    abort_requested: Literal[True] | UnsetType = UNSET


class SettleTask(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="settle",
    tag_field="k",
    omit_defaults=True,
    rename=stored_as(task_id="id"),
):
    """Give a task its last status; no later write may target it (TK-19)."""

    seq: Seq
    task_id: Seq
    status: str
    state_json: Raw | UnsetType = UNSET
    unset: tuple[str, ...] = ()


class AppendContext(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="ctx_append",
    tag_field="k",
    omit_defaults=True,
    rename=stored,
):
    """Append entries to a conversation's context list."""

    seq: Seq
    conv_id: Seq
    ids: tuple[Seq, ...]


class ReplaceContext(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="ctx_replace",
    tag_field="k",
    omit_defaults=True,
    rename=stored,
):
    """Replace the list's prefix up to and including `through` by the summary `head`."""

    seq: Seq
    conv_id: Seq
    through: Seq
    head: Seq
    expect_prefix_version: int


class ResetContext(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="ctx_reset",
    tag_field="k",
    omit_defaults=True,
    rename=stored,
):
    """Replace the whole list."""

    seq: Seq
    conv_id: Seq
    ids: tuple[Seq, ...]


class SetValue(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="value_set",
    tag_field="k",
    omit_defaults=True,
    rename=stored,
):
    """Set the scalar at an address: conversation, working scope, or (neither given) session."""

    seq: Seq
    conv_id: Seq | UnsetType = UNSET
    working_scope: str | UnsetType = UNSET
    namespace: str
    key: str
    value_json: Raw


class DeleteValue(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="value_delete",
    tag_field="k",
    omit_defaults=True,
    rename=stored,
):
    """Delete the scalar at an address; on a conversation address this is a tombstone."""

    seq: Seq
    conv_id: Seq | UnsetType = UNSET
    working_scope: str | UnsetType = UNSET
    namespace: str
    key: str


class AppendList(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="list_append",
    tag_field="k",
    omit_defaults=True,
    rename=stored,
):
    """Append one immutable element, identified by this write's seq."""

    seq: Seq
    conv_id: Seq | UnsetType = UNSET
    working_scope: str | UnsetType = UNSET
    namespace: str
    key: str
    value_json: Raw
    tag: str | UnsetType = UNSET


class DeleteList(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="list_delete",
    tag_field="k",
    omit_defaults=True,
    rename=stored,
):
    """Delete a session or working list; conversation lists have no such write (ST-24)."""

    seq: Seq
    working_scope: str | UnsetType = UNSET
    namespace: str
    key: str


class RetireScope(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="scope_retire",
    tag_field="k",
    omit_defaults=True,
    rename=stored,
):
    """End a working scope's lifetime; always a write of a main commit (ST-11)."""

    seq: Seq
    working_scope: str


ValueWrite: TypeAlias = SetValue | DeleteValue | AppendList | DeleteList
_VALUE_WRITES: Final = (SetValue, DeleteValue, AppendList, DeleteList)
Write: TypeAlias = (
    InsertConversation
    | PatchConversation
    | DeleteConversation
    | InsertEntry
    | InsertTask
    | PatchTask
    | SettleTask
    | AppendContext
    | ReplaceContext
    | ResetContext
    | SetValue
    | DeleteValue
    | AppendList
    | DeleteList
    | RetireScope
)


class Commit(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=stored):
    """One atomic batch: seqs `first_seq` to `last_seq` without a gap, main or one working id.

    `time_ms` is wall milliseconds of a main commit, never below the commit before it (TI-01);
    a working commit carries 0 and none on disk. `working_scope` is not stored in the line: every
    write of a working commit names it.
    """

    first_seq: Seq
    last_seq: Seq
    time_ms: int = 0
    writes: tuple[Write, ...]


def scope_of(commit: Commit) -> str | None:
    """Name the working scope a commit belongs to, or None for a main commit.

    Raises ValueError when writes of two lifetimes are mixed (ST-10).
    """
    scopes: set[str | None] = set()
    for write in commit.writes:
        scope = write.working_scope if isinstance(write, _VALUE_WRITES) else UNSET
        scopes.add(None if scope is UNSET else scope)
    if len(scopes) != 1:
        raise ValueError(f"one commit holds writes of several lifetimes: {scopes!r}")
    return scopes.pop()
