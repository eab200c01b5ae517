"""A naive forest of conversations: every fork is a whole copy, taken from a whole old copy.

It is fed with each commit's writes and with what forks were asked for, and knows nothing of parent
links, cutoffs or shared prefixes: what it answers was copied, never looked up.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import msgspec
from msgspec import UNSET

from perdure.records.codec import decode, decode_json
from perdure.records.entries import EntryMeta
from perdure.records.messages import AssistantPayload, read_payload
from perdure.records.seqs import Seq
from perdure.records.writes import (
    AppendContext,
    AppendList,
    Commit,
    DeleteValue,
    InsertConversation,
    InsertEntry,
    ReplaceContext,
    ResetContext,
    SetValue,
    Write,
)


class Copy(msgspec.Struct):
    """All that one conversation shows."""

    entries: list[Seq]
    context: list[Seq]
    values: dict[str, Any]
    elements: list[tuple[Seq, Any, str | None]]


class Asked(msgspec.Struct, frozen=True):
    """What a fork was asked for."""

    conv_id: Seq
    at: Seq | None
    as_of: Seq | None
    is_fresh: bool = False


class Forest:
    """Copies of every conversation at every boundary."""

    def __init__(self) -> None:
        self.now: dict[Seq, Copy] = {}
        self.past: dict[Seq, dict[Seq, Copy]] = {}
        self.came_from: dict[Seq, tuple[Seq, Seq]] = {}
        self.ends: dict[Seq, Seq] = {}
        self.calls: dict[Seq, int] = {}
        self.answers: dict[Seq, tuple[Seq, int]] = {}

    def commit(self, commit: Commit, asked: Asked | None) -> None:
        """Take a main commit, and the request that made it when it made a fork."""
        for write in commit.writes:
            self._write(write, commit.last_seq, asked)
        self.past[commit.last_seq] = deepcopy(self.now)

    def _write(self, write: Write, end: Seq, asked: Asked | None) -> None:
        match write:
            case InsertConversation():
                self.now[write.seq] = (
                    Copy([], [], {}, []) if asked is None else self._forked(write.seq, asked)
                )
            case InsertEntry():
                self.now[write.conv_id].entries.append(write.seq)
                self.ends[write.seq] = end
                self._note(write)
            case AppendContext():
                self.now[write.conv_id].context += write.ids
            case ReplaceContext():
                context = self.now[write.conv_id].context
                context[: context.index(write.through) + 1] = [write.head]
            case ResetContext():
                self.now[write.conv_id].context = list(write.ids)
            case SetValue() if write.conv_id is not UNSET:
                value = decode_json(write.value_json)
                self.now[write.conv_id].values[write.namespace + write.key] = value
            case DeleteValue() if write.conv_id is not UNSET:
                self.now[write.conv_id].values.pop(write.namespace + write.key, None)
            case AppendList() if write.conv_id is not UNSET:
                tag = None if write.tag is UNSET else write.tag
                element = (write.seq, decode_json(write.value_json), tag)
                self.now[write.conv_id].elements.append(element)
            case _:
                pass

    def _note(self, write: InsertEntry) -> None:
        if write.kind == "assistant" and write.payload_json is not UNSET:
            message = read_payload(write.payload_json, AssistantPayload).message
            self.calls[write.seq] = len(message.calls)
        if write.kind == "tool_result":
            meta = decode(write.meta_json, EntryMeta)
            assert meta.answers is not UNSET
            assert write.call_index is not UNSET
            self.answers[write.seq] = (meta.answers, write.call_index)

    def _forked(self, conv_id: Seq, asked: Asked) -> Copy:
        as_of = self.ends[asked.at] if asked.at is not None else asked.as_of
        if as_of is None:
            as_of = max(self.past)
        self.came_from[conv_id] = (asked.conv_id, as_of)
        copy = deepcopy(self.history(asked.conv_id, as_of))
        context = [seq for seq in copy.context if asked.at is None or seq <= asked.at]
        copy.context = [] if asked.is_fresh else self._whole(context)
        return copy

    def history(self, conv_id: Seq, as_of: Seq) -> Copy:
        """Answer what a conversation showed at a boundary, or before it began its source."""
        while conv_id not in self.past[as_of]:
            conv_id, boundary = self.came_from[conv_id]
            assert as_of <= boundary
        return self.past[as_of][conv_id]

    def reaches(self, conv_id: Seq, as_of: Seq) -> bool:
        """Say whether a boundary is part of a conversation's history."""
        while conv_id not in self.past[as_of]:
            if conv_id not in self.came_from:
                return False
            conv_id, boundary = self.came_from[conv_id]
            if as_of > boundary:
                return False
        return True

    def _whole(self, context: Sequence[Seq]) -> list[Seq]:
        """Answer the longest beginning whose calls are all answered in it."""
        for length in range(len(context), -1, -1):
            kept = context[:length]
            answered = [self.answers[seq] for seq in kept if seq in self.answers]
            wanted = [(seq, n) for seq in kept for n in range(self.calls.get(seq, 0))]
            if sorted(wanted) == sorted(answered):
                return list(kept)
        raise AssertionError("the empty list is whole")
