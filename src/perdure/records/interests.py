"""Subscriptions: journal records by kind and transition, and no other vocabulary (WT-17).

`Interest` names what to look for; `Finder` picks the matching writes out of a watch's events. It
remembers the kinds of live tasks, for a patch names its task alone.
"""

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from perdure.records.seqs import Seq
from perdure.records.watch import WatchBase, WatchCommit, WatchEvent, WatchWrite
from perdure.records.writes import (
    InsertEntry,
    InsertTask,
    PatchTask,
    SettleTask,
    Write,
)

Record: TypeAlias = Literal[
    "ins_conv", "set_conv", "del_conv", "ins_entry", "ins_task", "set", "settle",
    "ctx_append", "ctx_replace", "ctx_reset",
    "value_set", "value_delete", "list_append", "list_delete", "scope_retire",
]  # fmt: skip
"""The names of the journal's records, as they are stored."""


class Interest(Struct, frozen=True, kw_only=True):
    """Which writes: of one record, of a task or content kind, that bring a task to a status.

    What is None matches anything; `kind` and `status` match only records that have them.
    """

    record: Record | None = None
    kind: str | None = None
    status: str | None = None


class Finder:
    """Pick writes out of the events of one watch, in order."""

    def __init__(self, *interests: Interest) -> None:
        """Say what to look for; a write that one interest matches is answered once."""
        self._interests = interests
        self._kinds: dict[Seq, str] = {}

    def found(self, event: WatchEvent) -> tuple[WatchWrite, ...]:
        """Answer the matching writes of the next event; deltas and signals are no records."""
        if isinstance(event, WatchBase):
            self._kinds = {task.id: task.kind for task in event.tasks}
        if not isinstance(event, WatchCommit):
            return ()
        return tuple(write for write in event.writes if self._matches(write.change))

    def _matches(self, write: Write) -> bool:
        kind = self._kind(write)
        status: object = UNSET
        if isinstance(write, InsertTask | PatchTask | SettleTask):
            status = write.status
        return any(
            one.record in (None, str(write.__struct_config__.tag))
            and one.kind in (None, kind)
            and one.status in (None, status)
            for one in self._interests
        )

    def _kind(self, write: Write) -> str | UnsetType:
        """Answer the kind of the task or entry a write is about."""
        if isinstance(write, InsertEntry):
            return write.kind
        if isinstance(write, InsertTask):
            self._kinds[write.seq] = write.kind
            return write.kind
        if isinstance(write, PatchTask):
            return self._kinds.get(write.task_id, UNSET)
        return self._kinds.pop(write.task_id, UNSET) if isinstance(write, SettleTask) else UNSET
