"""Which writes of a commit a watch is shown: pure functions over commits (WT-03, WT-04).

A batch is never split and never empty: it holds every write of one commit that belongs to the
watched conversations, each with its seq, and the writes of the session that came with them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeAlias

from msgspec import UNSET, Raw, structs

from perdure.records.addresses import SEALED_NAMESPACES
from perdure.records.seqs import Seq
from perdure.records.watch import WatchCommit, WatchWrite
from perdure.records.writes import (
    AppendList,
    Commit,
    DeleteList,
    DeleteValue,
    InsertConversation,
    InsertEntry,
    InsertTask,
    PatchTask,
    RetireScope,
    SettleTask,
    SetValue,
    Write,
)

Homes: TypeAlias = Callable[[Seq], Seq | None]
"""Answers the conversation of a task, None when nobody knows it."""


WRITE_BYTES: Final = 128
"""What a write counts for beside its values."""


def home_of(write: Write, homes: Homes) -> Seq | None:
    """Answer the conversation a write belongs to, None for one of the session."""
    if isinstance(write, InsertConversation):
        return write.seq
    if isinstance(write, PatchTask | SettleTask):
        return homes(write.task_id)
    if isinstance(write, DeleteList | RetireScope) or write.conv_id is UNSET:
        return None
    return write.conv_id


def is_sealed(write: Write) -> bool:
    """Say whether a write is at an address that no watch shows (VL-31)."""
    return (
        isinstance(write, SetValue | DeleteValue | AppendList | DeleteList)
        and write.namespace in SEALED_NAMESPACES
    )


def selected(commit: Commit, watched: Collection[Seq] | None, homes: Homes) -> list[Write]:
    """Answer the writes that belong to the watched conversations, all of them for None.

    A write of the session (a usage report, an input record, the end of a working scope) goes with
    the conversations its commit touches; a commit that touches none is shown to every watch.
    """
    placed = [(write, home_of(write, homes)) for write in commit.writes if not is_sealed(write)]
    if watched is None:
        return [write for write, _ in placed]
    shared = all(
        home is None and not isinstance(write, PatchTask | SettleTask) for write, home in placed
    )
    if not shared and not any(home in watched for _, home in placed if home is not None):
        return []
    return [
        write
        for write, home in placed
        if home in watched or (home is None and not isinstance(write, PatchTask | SettleTask))
    ]


def widened(watched: frozenset[Seq], commit: Commit, homes: Homes) -> frozenset[Seq]:
    """Answer the watched conversations with those that a task of theirs came to own."""
    for write in commit.writes:
        if not isinstance(write, InsertConversation) or write.owner is UNSET:
            continue
        if homes(write.owner) in watched:
            watched |= {write.seq}
    return watched


def batch(commit: Commit, writes: list[Write], payloads: Mapping[Seq, Raw]) -> WatchCommit:
    """Answer the batch of some of a commit's writes; `payloads` are those of placed entries."""
    return WatchCommit(
        first_seq=commit.first_seq,
        last_seq=commit.last_seq,
        time_ms=commit.time_ms,
        writes=tuple(
            WatchWrite(seq=write.seq, change=_resolved(write, payloads)) for write in writes
        ),
    )


def _resolved(write: Write, payloads: Mapping[Seq, Raw]) -> Write:
    if isinstance(write, InsertEntry) and write.ref is not UNSET:
        payload = payloads.get(write.seq)
        if payload is not None:
            return structs.replace(write, payload_json=payload)
    return write


def weight(writes: Iterable[Write]) -> int:
    """Answer about how many bytes writes hold."""
    return sum(WRITE_BYTES + sum(len(raw) for raw in _raws(write)) for write in writes)


def _raws(write: Write) -> list[Raw]:
    if isinstance(write, InsertEntry):
        return [raw for raw in (write.meta_json, write.payload_json) if raw is not UNSET]
    if isinstance(write, InsertTask | PatchTask | SettleTask):
        return [] if write.state_json is UNSET else [write.state_json]
    return [write.value_json] if isinstance(write, SetValue | AppendList) else []
