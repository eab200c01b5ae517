"""A naive reference of the storage law: every answer is a walk over all commits.

It is slow and obvious on purpose. Backends are compared with it at every boundary of random
histories, so a mistake must be made twice, in two very different ways, to go unseen.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET

from perdure.records.codec import decode_json
from perdure.records.seqs import Seq
from perdure.records.writes import (
    AppendContext,
    AppendList,
    Commit,
    DeleteConversation,
    DeleteList,
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

Facts = dict[str, Any]


class ReferenceModel:
    """Answer reads at a boundary from main commits alone."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.commits = commits

    def writes(self, as_of: Seq) -> Iterator[tuple[Write, Seq]]:
        """Walk the writes up to a boundary, each with the end of its commit."""
        for commit in self.commits:
            if commit.last_seq <= as_of:
                for write in commit.writes:
                    yield write, commit.last_seq

    def conversations(self, as_of: Seq) -> dict[Seq, Facts]:
        """Answer every conversation's state as plain facts (ST-20, CX-15)."""
        found: dict[Seq, Facts] = {}
        homes: dict[Seq, Seq] = {}
        for write, end in self.writes(as_of):
            conv_id = self._conversation(write, homes)
            if isinstance(write, InsertConversation):
                found[write.seq] = {
                    "parent": write.parent,
                    "owner": write.owner,
                    "context": list(write.context),
                    "prefix_version": 0,
                    "inbox": (),
                    "label": UNSET,
                    "steering_mode": "all",
                    "follow_up_mode": "all",
                    "deleted": False,
                }
            if conv_id is None:
                continue
            found[conv_id]["commit_end"] = end
            self._edit(found[conv_id], write)
        return found

    def _conversation(self, write: Write, homes: dict[Seq, Seq]) -> Seq | None:
        """Name the conversation a write touches."""
        if isinstance(write, InsertConversation):
            return write.seq
        if isinstance(write, PatchTask | SettleTask):
            return homes[write.task_id]
        if isinstance(write, InsertTask):
            homes[write.seq] = write.conv_id
        conv_id = getattr(write, "conv_id", UNSET)
        return None if conv_id is UNSET else conv_id

    def _edit(self, facts: Facts, write: Write) -> None:
        match write:
            case AppendContext():
                facts["context"] = [*facts["context"], *write.ids]
            case ReplaceContext():
                kept = facts["context"].index(write.through) + 1
                facts["context"] = [write.head, *facts["context"][kept:]]
                facts["prefix_version"] += 1
            case ResetContext():
                facts["context"] = list(write.ids)
                facts["prefix_version"] += 1
            case DeleteConversation():
                facts["deleted"] = True
            case PatchConversation():
                for name in ("inbox", "label", "steering_mode", "follow_up_mode"):
                    value = getattr(write, name)
                    if value is not UNSET:
                        facts[name] = UNSET if value is None else value
            case _:
                pass

    def entries(self, as_of: Seq) -> dict[Seq, InsertEntry]:
        """Answer every entry's write."""
        return {
            write.seq: write for write, _ in self.writes(as_of) if isinstance(write, InsertEntry)
        }

    def tasks(self, as_of: Seq) -> dict[Seq, Facts]:
        """Answer every task as plain facts (TI-02)."""
        found: dict[Seq, Facts] = {}
        for write, _ in self.writes(as_of):
            if isinstance(write, InsertTask):
                found[write.seq] = {
                    "conv_id": write.conv_id,
                    "kind": write.kind,
                    "after": write.after,
                    "status": write.status,
                    "state": decode_json(write.state_json),
                    "owns": UNSET,
                    "abort_requested": UNSET,
                    "live": True,
                }
            elif isinstance(write, PatchTask | SettleTask):
                self._patch(found[write.task_id], write)
        return found

    def _patch(self, facts: Facts, write: PatchTask | SettleTask) -> None:
        if write.state_json is not UNSET:
            facts["state"] = {**facts["state"], **decode_json(write.state_json)}
        for name in write.unset:
            facts["state"].pop(name, None)
        for name in ("status", "after", "owns", "abort_requested"):
            value = getattr(write, name, UNSET)
            if value is not UNSET:
                facts[name] = value
        if isinstance(write, SettleTask):
            facts["live"] = False

    def value(self, conv_id: Seq, namespace: str, key: str, as_of: Seq) -> Any:
        """Answer what a conversation sees at an address, UNSET for nothing (VL-13)."""
        parents = {
            write.seq: write.parent
            for write, _ in self.writes(as_of)
            if isinstance(write, InsertConversation)
        }
        while conv_id in parents:
            own = [
                write
                for write, _ in self.writes(as_of)
                if isinstance(write, SetValue | DeleteValue)
                and (write.conv_id, write.namespace, write.key) == (conv_id, namespace, key)
            ]
            if own:
                last = own[-1]
                return decode_json(last.value_json) if isinstance(last, SetValue) else UNSET
            parent = parents[conv_id]
            if parent is UNSET or not parent.inherit_values:
                return UNSET
            conv_id, as_of = parent.conv_id, min(as_of, parent.as_of)
        return UNSET

    def elements(self, conv_id: Seq, namespace: str, key: str, as_of: Seq) -> list[AppendList]:
        """Answer the elements a conversation sees, oldest ancestor first (VL-19)."""
        found: list[AppendList] = []
        parents = {
            write.seq: write.parent
            for write, _ in self.writes(as_of)
            if isinstance(write, InsertConversation)
        }
        while conv_id in parents:
            own = [
                write
                for write, _ in self.writes(as_of)
                if isinstance(write, AppendList)
                and (write.conv_id, write.namespace, write.key) == (conv_id, namespace, key)
            ]
            found = [*own, *found]
            parent = parents[conv_id]
            if parent is UNSET or not parent.inherit_values:
                break
            conv_id, as_of = parent.conv_id, min(as_of, parent.as_of)
        return found

    def session_values(self) -> dict[tuple[str, str], Any]:
        """Answer every current session value."""
        found: dict[tuple[str, str], Any] = {}
        for write, _ in self.writes(self.commits[-1].last_seq):
            if isinstance(write, SetValue | DeleteValue) and write.conv_id is UNSET:
                found.pop((write.namespace, write.key), None)
                if isinstance(write, SetValue):
                    found[write.namespace, write.key] = decode_json(write.value_json)
        return found

    def session_list(self, namespace: str, key: str) -> list[Seq]:
        """Answer the seqs of a session list's elements."""
        found: list[Seq] = []
        for write, _ in self.writes(self.commits[-1].last_seq):
            if not isinstance(write, AppendList | DeleteList):
                continue
            if (write.namespace, write.key) != (namespace, key):
                continue
            if isinstance(write, DeleteList):
                found = []
            elif write.conv_id is UNSET:
                found.append(write.seq)
        return found
