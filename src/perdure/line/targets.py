"""What a command's writes refer to and do not create: the rows loaded before validation."""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from msgspec import UNSET, UnsetType

from perdure.records.seqs import Seq
from perdure.records.writes import (
    AppendContext,
    AppendList,
    DeleteConversation,
    DeleteValue,
    InsertConversation,
    InsertEntry,
    InsertTask,
    PatchConversation,
    PatchTask,
    ReplaceContext,
    ResetContext,
    SettleTask,
    SetValue,
    Write,
)

_Named: TypeAlias = tuple[dict[Seq, None], dict[Seq, None], dict[Seq, None]]


def targets(writes: Sequence[Write]) -> _Named:
    """Name the conversations, tasks and entries that writes refer to.

    Those that the same writes create are among them; what exists already lies below the first
    write's seq, for seqs are minted upwards.
    """
    named: _Named = ({}, {}, {})
    for write in writes:
        name = _NAMES.get(type(write))
        if name is not None:
            name(write, named)
    return named


def _name(into: dict[Seq, None], *seqs: Seq | UnsetType) -> None:
    for seq in seqs:
        if seq is not UNSET:
            into[seq] = None


def _named_by_address(write: SetValue | DeleteValue | AppendList, named: _Named) -> None:
    if write.conv_id is not UNSET:
        named[0][write.conv_id] = None


def _named_by_context(
    write: AppendContext | PatchConversation | DeleteConversation, named: _Named
) -> None:
    named[0][write.conv_id] = None


def _named_by_conversation(write: InsertConversation, named: _Named) -> None:
    if write.parent is not UNSET:
        _name(named[0], write.parent.conv_id)
        _name(named[2], write.parent.at_entry)
    _name(named[1], write.owner)
    _name(named[2], *write.context)


def _named_by_entry(write: InsertEntry, named: _Named) -> None:
    named[0][write.conv_id] = None
    _name(named[1], write.written_by)
    _name(named[2], write.through, write.ref)


def _named_by_task(write: InsertTask, named: _Named) -> None:
    named[0][write.conv_id] = None
    _name(named[1], write.spawned_by, *write.after)
    _name(named[2], write.at_entry)


def _named_by_patch(write: PatchTask, named: _Named) -> None:
    _name(named[0], write.owns)
    named[1][write.task_id] = None
    if write.after is not UNSET:
        _name(named[1], *write.after)


def _named_by_settle(write: SettleTask, named: _Named) -> None:
    named[1][write.task_id] = None


def _named_by_reset(write: ResetContext, named: _Named) -> None:
    named[0][write.conv_id] = None
    _name(named[2], *write.ids)


def _named_by_replace(write: ReplaceContext, named: _Named) -> None:
    named[0][write.conv_id] = None
    _name(named[2], write.through)


_NAMES: Final = MappingProxyType(
    cast(
        "dict[type[Write], Callable[[Any, _Named], None]]",
        {
            InsertConversation: _named_by_conversation,
            PatchConversation: _named_by_context,
            DeleteConversation: _named_by_context,
            InsertEntry: _named_by_entry,
            InsertTask: _named_by_task,
            PatchTask: _named_by_patch,
            SettleTask: _named_by_settle,
            AppendContext: _named_by_context,
            ReplaceContext: _named_by_replace,
            ResetContext: _named_by_reset,
            SetValue: _named_by_address,
            DeleteValue: _named_by_address,
            AppendList: _named_by_address,
        },
    )
)
"""What each kind of write refers to."""
