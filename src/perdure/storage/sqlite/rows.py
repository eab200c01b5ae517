"""From a commit's writes to rows: the writing half of the SQLite layout.

Runs inside the writer's transaction. Index rows hold keys, small facts and seqs; a payload stays
in the journal row. What it has learnt about the session (which ids exist, which number a name
has) is remembered while the writer owns it, and forgotten after a roll-back.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec import UNSET

from perdure.records.codec import decode, encode
from perdure.records.context_list import ContextList
from perdure.records.folding import edited
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
    RetireScope,
    SettleTask,
    SetValue,
    ValueWrite,
    Write,
)
from perdure.storage.admission import refuse
from perdure.storage.folding import (
    NEW_SETTINGS,
    Settings,
    both_payload_and_ref,
    check_edit,
    missing,
    patch_settings,
)
from perdure.storage.sqlite.contexts import context_at
from perdure.storage.sqlite.scopes import ScopeRows

KNOWN_MAX: Final = 4096
"""Most ids and names a writer remembers for one session; then it starts again."""

INSERT_CONVERSATION: Final = (
    "INSERT INTO conversation (session, id, parent, at_entry, as_of, inherits, owner) "
    "VALUES (?,?,?,?,?,?,?)"
)
INSERT_CONTEXT: Final = "INSERT INTO context (session, conv, seq, version, ids) VALUES (?,?,?,?,?)"
INSERT_ENTRY: Final = (
    "INSERT INTO timeline (session, conv, id, selected, kind, key) VALUES (?,?,?,?,?,?)"
)
INSERT_TOUCH: Final = "INSERT INTO timeline (session, conv, id, selected) VALUES (?,?,?,0)"
INSERT_TASK: Final = "INSERT INTO task (session, id, seq, conv, kind) VALUES (?,?,0,?,?)"
INSERT_PATCH: Final = "INSERT INTO task (session, id, seq) VALUES (?,?,?)"
SETTLE: Final = "UPDATE task SET settled=? WHERE session=? AND id=? AND seq=0"
SET_SESSION_VALUE: Final = (
    "INSERT INTO session_value (session, namespace, key, seq) VALUES (?,?,?,?) "
    "ON CONFLICT (session, namespace, key) DO UPDATE SET seq=excluded.seq"
)
DELETE_SESSION_VALUE: Final = "DELETE FROM session_value WHERE session=? AND namespace=? AND key=?"
INSERT_VERSION: Final = "INSERT INTO version (session, name, conv, seq, deleted) VALUES (?,?,?,?,?)"
INSERT_ELEMENT: Final = "INSERT INTO element (session, name, conv, seq, tag) VALUES (?,?,?,?,?)"
DELETE_ELEMENTS: Final = "DELETE FROM element WHERE session=? AND name=? AND conv=0"


def present(value: Any) -> Any:
    """Answer a value as SQL has it: absent is NULL."""
    return None if value is UNSET else value


def selected_ids(writes: Sequence[Write]) -> tuple[frozenset[Seq], frozenset[Seq]]:
    """Answer the entries that are selected by a mark, and the appends that need a whole list.

    A mark is enough when the ids are entries of the same commit and conversation, ascending, and
    above every earlier edit of that list: then order of ids is order of the list.
    """
    appends = [write for write in writes if type(write) is AppendContext]
    if not appends:
        return frozenset(), frozenset()
    home = {write.seq: write.conv_id for write in writes if type(write) is InsertEntry}
    marks: dict[Seq, Seq] = {}
    selected: set[Seq] = set()
    whole: set[Seq] = set()
    for write in writes:
        if isinstance(write, ReplaceContext | ResetContext):
            marks[write.conv_id] = write.seq
        elif type(write) is AppendContext:
            mark = marks.get(write.conv_id, 0)
            for entry_id in write.ids:
                if home.get(entry_id) != write.conv_id or entry_id <= mark:
                    whole.add(write.seq)
                mark = entry_id
            if write.seq in whole:
                marks[write.conv_id] = write.seq
            else:
                selected.update(write.ids)
                marks[write.conv_id] = Seq(mark)
    return frozenset(selected), frozenset(whole)


class SessionRows:
    """Writes the rows of one session."""

    def __init__(self, conn: sqlite3.Connection, session: int, *, rebuilding: bool = False) -> None:
        self.session = session
        self._rebuilding = rebuilding
        self._scopes = ScopeRows(conn, session)
        self._conn = conn
        # One cursor for all statements: every result is read before the next one runs.
        self._execute = conn.cursor().execute
        self._conversations: set[Seq] = set()
        self._tasks: dict[Seq, Seq] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._selected: frozenset[Seq] = frozenset()
        self._whole: frozenset[Seq] = frozenset()

    def is_on(self, conn: sqlite3.Connection) -> bool:
        """Say whether these rows are written through a connection."""
        return self._conn is conn

    def forget(self) -> None:
        """Forget what was learnt: a roll-back may have undone it."""
        self._conversations.clear()
        self._tasks.clear()
        self._names.clear()
        self._scopes.forget()

    def apply(self, commit: Commit, scope: str | None) -> None:
        """Write every row of an admitted commit; raises Rejected when one does not fit."""
        if scope is not None:
            for write in commit.writes:
                assert isinstance(write, ValueWrite)
                self._scopes.apply(write)
            return
        self._selected, self._whole = selected_ids(commit.writes)
        touched: dict[Seq, None] = {}
        for write in commit.writes:
            conv_id = _MAIN[type(write)](self, write)
            if conv_id is not None:
                touched[conv_id] = None
        last = commit.writes[-1]
        marked = last.conv_id if isinstance(last, InsertEntry) else None
        for conv_id in touched:
            if conv_id != marked:
                self._execute(INSERT_TOUCH, (self.session, conv_id, commit.last_seq))

    # What exists

    def _check_conversation(self, conv_id: Seq, seq: Seq) -> None:
        if conv_id in self._conversations:
            return
        row = self._execute(
            "SELECT 1 FROM conversation WHERE session=? AND id=?", (self.session, conv_id)
        ).fetchone()
        if row is None:
            refuse(missing("conversation", conv_id, seq))
        self._learn_conversation(conv_id)

    def _learn_conversation(self, conv_id: Seq) -> None:
        if len(self._conversations) >= KNOWN_MAX:
            self._conversations.clear()
        self._conversations.add(conv_id)

    def _conversation_of(self, task_id: Seq, seq: Seq) -> Seq:
        """Answer the conversation of a live task."""
        known = self._tasks.get(task_id)
        if known is not None:
            return known
        row = self._execute(
            "SELECT conv FROM task WHERE session=? AND id=? AND seq=0 AND settled IS NULL",
            (self.session, task_id),
        ).fetchone()
        if row is None:
            refuse(missing("live task", task_id, seq))
        return self._learn_task(task_id, row[0])

    def _learn_task(self, task_id: Seq, conv_id: Seq) -> Seq:
        if len(self._tasks) >= KNOWN_MAX:
            self._tasks.clear()
        self._tasks[task_id] = conv_id
        return conv_id

    def _name(self, namespace: str, key: str) -> int:
        """Answer the number of a name, giving it one when it is new."""
        found = self._names.get((namespace, key))
        if found is not None:
            return found
        place = (self.session, namespace, key)
        row = self._execute(
            "SELECT id FROM name WHERE session=? AND namespace=? AND key=?", place
        ).fetchone()
        if row is None:
            number = self._execute(
                "INSERT INTO name (session, namespace, key) VALUES (?,?,?)", place
            ).lastrowid
            assert number is not None
        else:
            number = row[0]
        if len(self._names) >= KNOWN_MAX:
            self._names.clear()
        self._names[namespace, key] = number
        return number

    # Conversations

    def insert_conversation(self, write: InsertConversation) -> Seq:
        """Write a conversation and, when it starts with one, its list."""
        parent = write.parent
        if parent is UNSET:
            link = (None, None, None, None)
        else:
            self._check_conversation(parent.conv_id, write.seq)
            link = (
                parent.conv_id,
                present(parent.at_entry),
                parent.as_of,
                int(parent.inherit_values),
            )
        facts = (self.session, write.seq, *link, present(write.owner))
        self._execute(INSERT_CONVERSATION, facts)
        if write.context:
            self._insert_context(write.seq, write.seq, 0, write.context)
        self._learn_conversation(write.seq)
        return write.seq

    def patch_conversation(self, write: PatchConversation) -> Seq:
        """Write the settings that a patch results in."""
        self._check_conversation(write.conv_id, write.seq)
        row = self._execute(
            "SELECT settings FROM settings WHERE session=? AND conv=? ORDER BY seq DESC LIMIT 1",
            (self.session, write.conv_id),
        ).fetchone()
        before = NEW_SETTINGS if row is None else decode(row[0].encode(), Settings)
        after = encode(patch_settings(before, write)).decode()
        self._execute(
            "INSERT INTO settings (session, conv, seq, settings) VALUES (?,?,?,?)",
            (self.session, write.conv_id, write.seq, after),
        )
        return write.conv_id

    def delete_conversation(self, write: DeleteConversation) -> Seq:
        """Mark a conversation as deleted; its rows stay."""
        self._check_conversation(write.conv_id, write.seq)
        self._execute(
            "UPDATE conversation SET deleted=? WHERE session=? AND id=? AND deleted IS NULL",
            (write.seq, self.session, write.conv_id),
        )
        return write.conv_id

    # Entries and context

    def insert_entry(self, write: InsertEntry) -> Seq:
        """Write an entry's keys."""
        self._check_conversation(write.conv_id, write.seq)
        if write.ref is not UNSET:
            self._check_ref(write, write.ref)
        selected = int(write.seq in self._selected)
        facts = (self.session, write.conv_id, write.seq, selected, write.kind, present(write.key))
        self._execute(INSERT_ENTRY, facts)
        return write.conv_id

    def _check_ref(self, write: InsertEntry, ref: Seq) -> None:
        if write.payload_json is not UNSET:
            refuse(both_payload_and_ref(write.seq))
        row = self._execute(
            "SELECT 1 FROM timeline WHERE session=? AND conv=? AND id=? AND kind IS NOT NULL",
            (self.session, write.conv_id, ref),
        ).fetchone()
        if row is None:
            refuse(missing("entry", ref, write.seq))

    def append_context(self, write: AppendContext) -> Seq:
        """Do nothing for marked entries; write the whole list where marks are not enough."""
        self._check_conversation(write.conv_id, write.seq)
        if write.seq in self._whole:
            version, ids = self._context(write.conv_id)
            self._insert_context(write.conv_id, write.seq, version, [*ids, *write.ids])
        return write.conv_id

    def edit_context(self, write: ReplaceContext | ResetContext) -> Seq:
        """Write the whole list that a replace or reset results in."""
        self._check_conversation(write.conv_id, write.seq)
        version, ids = self._context(write.conv_id)
        context = ContextList(ids)
        check_edit(write, version, context)
        after = edited(context, write)
        self._insert_context(write.conv_id, write.seq, version + 1, after)
        return write.conv_id

    def _context(self, conv_id: Seq) -> tuple[int, list[Seq]]:
        return context_at(self._conn, self.session, conv_id, None)

    def _insert_context(self, conv_id: Seq, seq: Seq, version: int, ids: Sequence[Seq]) -> None:
        text = json.dumps(list(ids), separators=(",", ":"))
        self._execute(INSERT_CONTEXT, (self.session, conv_id, seq, version, text))

    # Tasks

    def insert_task(self, write: InsertTask) -> Seq:
        """Write a task's keys."""
        self._check_conversation(write.conv_id, write.seq)
        self._execute(INSERT_TASK, (self.session, write.seq, write.conv_id, write.kind))
        return self._learn_task(write.seq, write.conv_id)

    def patch_task(self, write: PatchTask) -> Seq:
        """Note where a live task was patched."""
        conv_id = self._conversation_of(write.task_id, write.seq)
        self._execute(INSERT_PATCH, (self.session, write.task_id, write.seq))
        return conv_id

    def settle_task(self, write: SettleTask) -> Seq:
        """Note where a live task was settled."""
        conv_id = self._conversation_of(write.task_id, write.seq)
        self._execute(INSERT_PATCH, (self.session, write.task_id, write.seq))
        self._execute(SETTLE, (write.seq, self.session, write.task_id))
        self._tasks.pop(write.task_id, None)
        return conv_id

    # Values and lists of the session and of conversations

    def set_value(self, write: SetValue) -> Seq | None:
        """Note where a value was set."""
        if write.conv_id is UNSET:
            place = (self.session, self._name(write.namespace, ""), write.key, write.seq)
            self._execute(SET_SESSION_VALUE, place)
            return None
        return self._insert_version(write.conv_id, write, deleted=0)

    def delete_value(self, write: DeleteValue) -> Seq | None:
        """Remove a session value, or write a tombstone."""
        if write.conv_id is UNSET:
            place = (self.session, self._name(write.namespace, ""), write.key)
            self._execute(DELETE_SESSION_VALUE, place)
            return None
        return self._insert_version(write.conv_id, write, deleted=1)

    def _insert_version(self, conv_id: Seq, write: SetValue | DeleteValue, *, deleted: int) -> Seq:
        self._check_conversation(conv_id, write.seq)
        name = self._name(write.namespace, write.key)
        self._execute(INSERT_VERSION, (self.session, name, conv_id, write.seq, deleted))
        return conv_id

    def append_list(self, write: AppendList) -> Seq | None:
        """Note where an element was appended; conversation 0 stands for the session."""
        conv_id = present(write.conv_id)
        if conv_id is not None:
            self._check_conversation(conv_id, write.seq)
        name = self._name(write.namespace, write.key)
        facts = (self.session, name, conv_id or 0, write.seq, present(write.tag))
        self._execute(INSERT_ELEMENT, facts)
        return conv_id

    def delete_list(self, write: DeleteList) -> None:
        """Remove a session list."""
        name = self._name(write.namespace, write.key)
        self._execute(DELETE_ELEMENTS, (self.session, name))

    def retire_scope(self, write: RetireScope) -> None:
        """End a scope: its rows go in the transaction of the sibling main writes (SQ-03)."""
        # In a rebuilding the rows of today belong to a later lifetime.
        if not self._rebuilding:
            self._scopes.retire(write)


_Apply = Callable[[SessionRows, Any], Seq | None]

_MAIN: Final[Mapping[type, _Apply]] = MappingProxyType(
    {
        InsertConversation: SessionRows.insert_conversation,
        PatchConversation: SessionRows.patch_conversation,
        DeleteConversation: SessionRows.delete_conversation,
        InsertEntry: SessionRows.insert_entry,
        InsertTask: SessionRows.insert_task,
        PatchTask: SessionRows.patch_task,
        SettleTask: SessionRows.settle_task,
        AppendContext: SessionRows.append_context,
        ReplaceContext: SessionRows.edit_context,
        ResetContext: SessionRows.edit_context,
        SetValue: SessionRows.set_value,
        DeleteValue: SessionRows.delete_value,
        AppendList: SessionRows.append_list,
        DeleteList: SessionRows.delete_list,
        RetireScope: SessionRows.retire_scope,
    }
)
