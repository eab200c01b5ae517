"""The read model in memory: ordered references to what commits wrote.

`prepare` checks a batch against what is there and changes nothing; `apply` then publishes it
without a point at which it could fail, so a reader sees all of a batch or none (MM-03). A commit
touches only the rows it names (MM-02); ordered reads are binary searches (MM-05).
"""

from bisect import bisect_right, insort
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from perdure.records.context_list import EMPTY_CONTEXT, ContextList
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry, new_entry
from perdure.records.folding import edited, patch_task
from perdure.records.seqs import NO_SEQ, Seq
from perdure.records.sessions import ListElement, StoredValue
from perdure.records.tasks import Task, new_task
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
    RetireScope,
    SettleTask,
    SetValue,
    Write,
)
from perdure.storage.admission import refuse
from perdure.storage.folding import (
    NEW_SETTINGS,
    Settings,
    both_payload_and_ref,
    check_edit,
    conversation_state,
    missing,
    patch_settings,
)

T = TypeVar("T")
Place = tuple[str, str]
"""Namespace and key."""


class Versions(Generic[T]):
    """What one thing was, by the seq that made it so; seqs ascend."""

    __slots__ = ("items", "seqs")

    def __init__(self) -> None:
        self.seqs: list[Seq] = []
        self.items: list[T] = []

    def add(self, seq: Seq, item: T) -> None:
        """Append the newest version."""
        self.seqs.append(seq)
        self.items.append(item)

    def at(self, seq: Seq | None) -> T | None:
        """Answer the newest version at or below a seq, or the newest of all."""
        if seq is None:
            return self.items[-1] if self.items else None
        place = bisect_right(self.seqs, seq)
        return self.items[place - 1] if place else None


class StoredConversation:
    """One conversation: its facts, and the versions of what changes."""

    __slots__ = ("appends", "bases", "current", "facts", "settings", "touches")

    def __init__(self, facts: InsertConversation) -> None:
        self.facts = facts
        self.touches: list[Seq] = []
        self.settings: Versions[Settings] = Versions()
        self.bases: Versions[tuple[int, tuple[Seq, ...]]] = Versions()
        self.bases.add(facts.seq, (0, facts.context))
        self.appends: Versions[Seq] = Versions()
        self.current = ContextList(facts.context) if facts.context else EMPTY_CONTEXT

    def context_at(self, as_of: Seq) -> tuple[int, ContextList]:
        """Answer prefix version and context list at a boundary (CX-15, D04)."""
        place = bisect_right(self.bases.seqs, as_of) - 1
        version, ids = self.bases.items[place]
        low = bisect_right(self.appends.seqs, self.bases.seqs[place])
        high = bisect_right(self.appends.seqs, as_of)
        return version, ContextList([*ids, *self.appends.items[low:high]])


class StoredScope:
    """The current contents of one working scope, or of the session: no history (ST-16)."""

    __slots__ = ("keys", "lists", "values")

    def __init__(self) -> None:
        self.values: dict[Place, StoredValue] = {}
        self.keys: dict[str, list[str]] = {}
        self.lists: dict[Place, Versions[ListElement]] = {}

    def set(self, place: Place, value: StoredValue) -> None:
        """Set a value; the sorted keys grow only when the place is new."""
        if place not in self.values:
            insort(self.keys.setdefault(place[0], []), place[1])
        self.values[place] = value

    def delete(self, place: Place) -> None:
        """Delete a value."""
        if self.values.pop(place, None) is not None:
            self.keys[place[0]].remove(place[1])


class MemoryIndex:
    """Everything one session holds: its main commits, and the rows they made."""

    def __init__(self) -> None:
        self.last_seq: Seq = NO_SEQ
        self.commits: Versions[Commit] = Versions()
        self.times: list[int] = []
        self.conversations: dict[Seq, StoredConversation] = {}
        self.deleted: dict[Seq, Seq] = {}
        self.entries: dict[Seq, Entry] = {}
        self.entry_ids: list[Seq] = []
        self.entry_ids_of: dict[Seq, list[Seq]] = {}
        self.tasks: dict[Seq, Versions[Task]] = {}
        self.task_ids: list[Seq] = []
        self.task_ids_of: dict[Seq, list[Seq]] = {}
        self.settled: dict[Seq, Seq] = {}
        self.live: dict[Seq, None] = {}
        self.values: dict[tuple[Seq, Place], Versions[Raw | None]] = {}
        self.keys: dict[str, list[str]] = {}
        self.lists: dict[tuple[Seq, Place], Versions[ListElement]] = {}
        self.session = StoredScope()
        self.scopes: dict[str, StoredScope] = {}

    # Checking

    def prepare(self, commit: Commit, scope: str | None) -> None:
        """Refuse a batch whose writes do not fit what is there; changes nothing (ST-06).

        Raises:
            Rejected: `invariant`.
        """
        times = self.times
        if scope is None and times and commit.time_ms < times[-1]:
            refuse(f"the time {commit.time_ms!r} is below {times[-1]}, the commit before (TI-01)")
        _Checker(self).check(commit)

    # Publishing

    def apply(self, commit: Commit, scope: str | None) -> None:
        """Publish a prepared batch; cannot fail half-way."""
        if scope is None:
            self.commits.add(commit.last_seq, commit)
            self.times.append(commit.time_ms)
        touched: dict[Seq, None] = {}
        for write in commit.writes:
            conv_id = self._apply_write(write, commit.last_seq)
            if conv_id is not None:
                touched[conv_id] = None
        for conv_id in touched:
            self.conversations[conv_id].touches.append(commit.last_seq)
        self.last_seq = commit.last_seq

    def _apply_write(self, write: Write, end: Seq) -> Seq | None:
        """Apply one write; answer the conversation it touches."""
        match write:
            case InsertEntry():
                return self._insert_entry(write, end)
            case AppendContext() | ReplaceContext() | ResetContext():
                return self._edit_context(write)
            case InsertTask() | PatchTask() | SettleTask():
                return self._apply_task(write)
            case InsertConversation() | PatchConversation() | DeleteConversation():
                return self._apply_conversation(write)
            case RetireScope():
                self.scopes.pop(write.working_scope, None)
                return None
            case DeleteList():
                self._scope(write.working_scope).lists.pop((write.namespace, write.key), None)
                return None
            case SetValue() | DeleteValue() | AppendList():
                return self._apply_value(write)

    def _apply_conversation(
        self, write: InsertConversation | PatchConversation | DeleteConversation
    ) -> Seq:
        if isinstance(write, InsertConversation):
            self.conversations[write.seq] = StoredConversation(write)
            return write.seq
        if isinstance(write, DeleteConversation):
            self.deleted.setdefault(write.conv_id, write.seq)
        else:
            settings = self.conversations[write.conv_id].settings
            settings.add(write.seq, patch_settings(settings.at(None) or NEW_SETTINGS, write))
        return write.conv_id

    def _insert_entry(self, write: InsertEntry, end: Seq) -> Seq:
        entry = new_entry(write, end)
        if write.ref is not UNSET:
            payload = self.entries[write.ref].payload_json
            entry = msgspec.structs.replace(entry, payload_json=payload)
        self.entries[write.seq] = entry
        self.entry_ids.append(write.seq)
        self.entry_ids_of.setdefault(write.conv_id, []).append(write.seq)
        return write.conv_id

    def _edit_context(self, write: AppendContext | ReplaceContext | ResetContext) -> Seq:
        conv = self.conversations[write.conv_id]
        if isinstance(write, AppendContext):
            for entry_id in write.ids:
                conv.appends.add(write.seq, entry_id)
            conv.current = conv.current.append(write.ids)
        else:
            version = conv.bases.items[-1][0] + 1
            conv.current = edited(conv.current, write)
            conv.bases.add(write.seq, (version, tuple(conv.current)))
        return write.conv_id

    def _apply_task(self, write: InsertTask | PatchTask | SettleTask) -> Seq:
        if isinstance(write, InsertTask):
            self.tasks[write.seq] = versions = Versions[Task]()
            versions.add(write.seq, new_task(write))
            self.task_ids.append(write.seq)
            self.task_ids_of.setdefault(write.conv_id, []).append(write.seq)
            self.live[write.seq] = None
            return write.conv_id
        versions = self.tasks[write.task_id]
        task = patch_task(versions.items[-1], write)
        versions.add(write.seq, task)
        if isinstance(write, SettleTask):
            self.settled[write.task_id] = write.seq
            del self.live[write.task_id]
        return task.conv_id

    def _scope(self, scope: str | UnsetType) -> StoredScope:
        if scope is UNSET:
            return self.session
        found = self.scopes.get(scope)
        if found is None:
            found = self.scopes[scope] = StoredScope()
        return found

    def _apply_value(self, write: SetValue | DeleteValue | AppendList) -> Seq | None:
        place = (write.namespace, write.key)
        conv_id = write.conv_id
        if isinstance(write, AppendList):
            element = ListElement(
                seq=write.seq,
                value_json=own(write.value_json, write.working_scope),
                tag=None if write.tag is UNSET else write.tag,
            )
            if conv_id is UNSET:
                lists = self._scope(write.working_scope).lists
                lists.setdefault(place, Versions()).add(write.seq, element)
                return None
            self.lists.setdefault((conv_id, place), Versions()).add(write.seq, element)
            return conv_id
        value = own(write.value_json, write.working_scope) if isinstance(write, SetValue) else None
        if conv_id is UNSET:
            scope = self._scope(write.working_scope)
            if value is None:
                scope.delete(place)
            else:
                scope.set(place, StoredValue(key=write.key, seq=write.seq, value_json=value))
            return None
        if (conv_id, place) not in self.values:
            keys = self.keys.setdefault(write.namespace, [])
            at = bisect_right(keys, write.key)
            if not at or keys[at - 1] != write.key:
                keys.insert(at, write.key)
        self.values.setdefault((conv_id, place), Versions()).add(write.seq, value)
        return conv_id

    # Reading

    def is_boundary(self, seq: Seq) -> bool:
        """Say whether a seq is 0 or the end of a main commit."""
        ends = self.commits.seqs
        place = bisect_right(ends, seq)
        return seq == 0 or (place > 0 and ends[place - 1] == seq)

    def conversation(self, conv_id: Seq, as_of: Seq | None) -> ConversationState | None:
        """Answer a conversation now or at a boundary, None when it did not exist."""
        conv = self.conversations.get(conv_id)
        if conv is None or (as_of is not None and conv_id > as_of):
            return None
        if as_of is None:
            commit_end = conv.touches[-1]
            version, context = conv.bases.items[-1][0], conv.current
        else:
            commit_end = conv.touches[bisect_right(conv.touches, as_of) - 1]
            version, context = conv.context_at(as_of)
        deleted = self.deleted.get(conv_id)
        return conversation_state(
            conv.facts.seq,
            parent=conv.facts.parent,
            owner=conv.facts.owner,
            commit_end=commit_end,
            settings=conv.settings.at(as_of) or NEW_SETTINGS,
            context=context,
            prefix_version=version,
            deleted=deleted is not None and (as_of is None or deleted <= as_of),
        )

    def chain(self, conv_id: Seq, as_of: Seq | None) -> Iterable[tuple[Seq, Seq]]:
        """Walk the conversations a read may see, nearest first, each with its cutoff (VL-13)."""
        cutoff = self.last_seq if as_of is None else as_of
        conv = self.conversations.get(conv_id)
        while conv is not None and conv.facts.seq <= cutoff:
            yield conv.facts.seq, cutoff
            parent = conv.facts.parent
            if parent is UNSET or not parent.inherit_values:
                return
            cutoff = min(cutoff, parent.as_of)
            conv = self.conversations.get(parent.conv_id)


def own(value: Raw, scope: str | UnsetType) -> Raw:
    """Answer a value that pins no commit: a working one outlives the bytes it came in."""
    return value if scope is UNSET else value.copy()


class _Checker:
    """Check one batch, each write against what is there and the writes before it."""

    def __init__(self, index: MemoryIndex) -> None:
        self.index = index
        self.conversations: set[Seq] = set()
        self.entries: dict[Seq, Seq] = {}
        self.tasks: set[Seq] = set()
        self.settled: set[Seq] = set()
        self.contexts: dict[Seq, tuple[int, ContextList]] = {}

    def check(self, commit: Commit) -> None:
        edits = any(isinstance(write, ReplaceContext | ResetContext) for write in commit.writes)
        for write in commit.writes:
            self._check_write(write)
            if edits:
                self._check_context(write)

    def _check_write(self, write: Write) -> None:
        match write:
            case InsertConversation():
                if write.parent is not UNSET:
                    self._conversation(write.parent.conv_id, write.seq)
                self.conversations.add(write.seq)
            case InsertEntry():
                self._conversation(write.conv_id, write.seq)
                self._check_entry(write)
                self.entries[write.seq] = write.conv_id
            case InsertTask():
                self._conversation(write.conv_id, write.seq)
                self.tasks.add(write.seq)
            case PatchTask() | SettleTask():
                self._task(write.task_id, write.seq)
                if isinstance(write, SettleTask):
                    self.settled.add(write.task_id)
            case DeleteList() | RetireScope():
                pass
            case _:
                if write.conv_id is not UNSET:
                    self._conversation(write.conv_id, write.seq)

    def _conversation(self, conv_id: Seq, seq: Seq) -> None:
        if conv_id not in self.index.conversations and conv_id not in self.conversations:
            refuse(missing("conversation", conv_id, seq))

    def _check_entry(self, write: InsertEntry) -> None:
        if write.ref is UNSET:
            return
        if write.payload_json is not UNSET:
            refuse(both_payload_and_ref(write.seq))
        known = self.index.entries.get(write.ref)
        home = self.entries.get(write.ref) if known is None else known.conv_id
        if home != write.conv_id:
            refuse(missing("entry", write.ref, write.seq))

    def _task(self, task_id: Seq, seq: Seq) -> None:
        known = task_id in self.index.live or task_id in self.tasks
        if not known or task_id in self.settled:
            refuse(missing("live task", task_id, seq))

    def _check_context(self, write: Write) -> None:
        if isinstance(write, InsertConversation):
            self.contexts[write.seq] = (0, ContextList(write.context))
        if not isinstance(write, AppendContext | ReplaceContext | ResetContext):
            return
        version, context = self.contexts.get(write.conv_id) or self._stored(write.conv_id)
        if isinstance(write, AppendContext):
            self.contexts[write.conv_id] = (version, ContextList([*context, *write.ids]))
            return
        check_edit(write, version, context)
        self.contexts[write.conv_id] = (version + 1, edited(context, write))

    def _stored(self, conv_id: Seq) -> tuple[int, ContextList]:
        conv = self.index.conversations[conv_id]
        return conv.bases.items[-1][0], conv.current
