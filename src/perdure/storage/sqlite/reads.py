"""Reads of conversations, entries and tasks: index seeks, then the journal rows they name.

Every method runs inside one read transaction of the reading thread, so a query sees one
committed state, the walk over ancestors included (ST-17).
"""

import sqlite3
from collections.abc import Iterable
from itertools import islice
from typing import Final, TypeVar

from msgspec import UNSET

from perdure.errors import StorageDamaged
from perdure.records.codec import decode
from perdure.records.context_list import ContextList
from perdure.records.conversations import ConversationState, ParentLink
from perdure.records.entries import Entry
from perdure.records.folding import patch_task
from perdure.records.seqs import Seq
from perdure.records.sessions import (
    ConversationScan,
    EntryScan,
    Opening,
    TaskScan,
)
from perdure.records.tasks import Task, new_task
from perdure.records.writes import InsertEntry, InsertTask, PatchTask, SettleTask, Write
from perdure.storage.admission import refuse
from perdure.storage.blobs import BlobSource
from perdure.storage.folding import (
    NEW_SETTINGS,
    Settings,
    conversation_state,
)
from perdure.storage.sqlite.contexts import SEQ_ABOVE_ALL, context_at
from perdure.storage.sqlite.journal import JournalReader

W = TypeVar("W", bound=Write)

CONVERSATION: Final = (
    "SELECT parent, at_entry, as_of, inherits, owner, deleted FROM conversation "
    "WHERE session=? AND id=?"
)
SETTINGS: Final = (
    "SELECT settings FROM settings WHERE session=? AND conv=? AND seq<=? ORDER BY seq DESC LIMIT 1"
)
TOUCHED: Final = "SELECT max(id) FROM timeline WHERE session=? AND conv=? AND id<=?"
PATCHES: Final = "SELECT seq FROM task WHERE session=? AND id=? AND seq>0 AND seq<=? ORDER BY seq"
OPENINGS: Final = (
    "SELECT epoch, pid, host, opened, closed FROM opening WHERE session=? "
    "ORDER BY epoch DESC LIMIT ?"
)


class Clauses:
    """Put a scan's conditions and their arguments together."""

    def __init__(self, session: int) -> None:
        self.where = "session=?"
        self.arguments: list[object] = [session]

    def add(self, condition: str, argument: object) -> None:
        """Add a condition unless its argument is None."""
        if argument is not None:
            self.where += f" AND {condition}"
            self.arguments.append(argument)

    def bounds(self, scan: ConversationScan | EntryScan | TaskScan) -> None:
        """Add a scan's exclusive bounds and its boundary."""
        self.add("id>?", scan.after)
        self.add("id<?", scan.before)
        self.add("id<=?", scan.as_of)


class SessionReads:
    """Reads of one session inside one transaction."""

    def __init__(self, conn: sqlite3.Connection, session: int, blobs: BlobSource) -> None:
        self.conn = conn
        self.session = session
        self.journal = JournalReader(conn, session, blobs)
        self.ids_max: int | None = None
        """Most appended ids of a context list that are read; None for all."""

    def check_boundary(self, as_of: Seq | None) -> None:
        """Refuse an as_of that is not the end of a main commit (ST-15)."""
        if as_of is not None and not self.journal.is_boundary(as_of):
            refuse(f"as_of {as_of!r} is not the end of a main commit, nor 0", as_of=as_of)

    def write_of(self, seq: Seq, kind: type[W]) -> W:
        """Answer the main write an index row names."""
        write = self.journal.write_at(seq)
        if not isinstance(write, kind):
            raise StorageDamaged(f"the journal has no {kind.__name__} at seq {seq}")
        return write

    def openings(self, limit: int) -> list[Opening]:
        """Answer who opened the session, newest first."""
        return [
            Opening(epoch=epoch, pid=pid, host=host, opened_ms=opened, closed_ms=closed)
            for epoch, pid, host, opened, closed in self.conn.execute(
                OPENINGS, (self.session, limit)
            )
        ]

    # Conversations

    def conversation(self, conv_id: Seq, as_of: Seq | None) -> ConversationState | None:
        """Answer a conversation now or at a boundary, None when it did not exist."""
        if as_of is not None and conv_id > as_of:
            return None
        facts = self.conn.execute(CONVERSATION, (self.session, conv_id)).fetchone()
        if facts is None:
            return None
        parent, at_entry, parent_as_of, inherits, owner, deleted = facts
        cutoff = SEQ_ABOVE_ALL if as_of is None else as_of
        place = (self.session, conv_id, cutoff)
        settings = self.conn.execute(SETTINGS, place).fetchone()
        (commit_end,) = self.conn.execute(TOUCHED, place).fetchone()
        version, ids = context_at(self.conn, self.session, conv_id, as_of, most=self.ids_max)
        link = UNSET
        if parent is not None:
            if not 0 < parent < conv_id:
                # A parent is older than its child; else a walk over ancestors might never end.
                raise StorageDamaged(
                    f"conversation {conv_id} names {parent} as its parent, which is not older"
                )
            link = ParentLink(
                conv_id=parent,
                at_entry=UNSET if at_entry is None else at_entry,
                as_of=parent_as_of,
                inherit_values=bool(inherits),
            )
        return conversation_state(
            conv_id,
            parent=link,
            owner=UNSET if owner is None else owner,
            commit_end=Seq(commit_end),
            settings=NEW_SETTINGS if settings is None else decode(settings[0].encode(), Settings),
            context=ContextList(ids),
            prefix_version=version,
            deleted=deleted is not None and deleted <= cutoff,
        )

    def conversations(self, ids: Iterable[Seq], as_of: Seq | None) -> dict[Seq, ConversationState]:
        """Answer the conversations that exist."""
        self.check_boundary(as_of)
        found = ((conv_id, self.conversation(conv_id, as_of)) for conv_id in ids)
        return {conv_id: state for conv_id, state in found if state is not None}

    def scan_conversations(self, scan: ConversationScan) -> list[ConversationState]:
        """Answer a page of conversations by id."""
        self.check_boundary(scan.as_of)
        clauses = Clauses(self.session)
        clauses.add("parent=?", scan.parent)
        clauses.add("owner=?", scan.owner)
        clauses.bounds(scan)
        ids = self._ids("conversation", clauses, scan)
        return list(self.conversations(ids, scan.as_of).values())

    def _ids(
        self, table: str, clauses: Clauses, scan: ConversationScan | EntryScan | TaskScan
    ) -> list[Seq]:
        order = "DESC" if scan.order == "desc" else "ASC"
        sql = f"SELECT id FROM {table} WHERE {clauses.where} ORDER BY id {order} LIMIT ?"  # noqa: S608 - names of this module only
        return [found for (found,) in self.conn.execute(sql, (*clauses.arguments, scan.limit))]

    # Entries

    def entry(self, entry_id: Seq) -> Entry | None:
        """Answer an entry with its payload, or that of the entry it refers to (D03)."""
        write = self.journal.write_at(entry_id)
        if not isinstance(write, InsertEntry):
            return None
        end = self.journal.end_of(entry_id)
        payload = write.payload_json
        if write.ref is not UNSET:
            payload = self.write_of(write.ref, InsertEntry).payload_json
        return Entry(
            id=write.seq,
            conv_id=write.conv_id,
            kind=write.kind,
            written_by=write.written_by,
            call_index=write.call_index,
            through=write.through,
            key=write.key,
            ref=write.ref,
            meta_json=write.meta_json.copy(),
            payload_json=UNSET if payload is UNSET else payload.copy(),
            commit_end=end,
        )

    def entries(self, ids: Iterable[Seq]) -> dict[Seq, Entry]:
        """Answer the entries that exist."""
        found = ((entry_id, self.entry(entry_id)) for entry_id in ids)
        return {entry_id: entry for entry_id, entry in found if entry is not None}

    def scan_entries(self, scan: EntryScan) -> list[Entry]:
        """Answer a page of entries by id."""
        self.check_boundary(scan.as_of)
        if scan.conv_id is None:
            entries = (self.entry(entry_id) for entry_id in self.journal.entry_ids(scan))
            wanted = (entry for entry in entries if entry and is_wanted(entry, scan))
            return list(islice(wanted, scan.limit))
        clauses = Clauses(self.session)
        clauses.where += " AND kind IS NOT NULL"
        clauses.add("conv=?", scan.conv_id)
        clauses.add("key=?", scan.key)
        clauses.add("kind=?", scan.kind)
        clauses.bounds(scan)
        source = "timeline" if scan.key is None else "timeline INDEXED BY timeline_key"
        return list(self.entries(self._ids(source, clauses, scan)).values())

    # Tasks

    def task(self, task_id: Seq, as_of: Seq | None) -> Task | None:
        """Answer a task: its insert, then every patch up to the boundary."""
        if as_of is not None and task_id > as_of:
            return None
        write = self.journal.write_at(task_id)
        if not isinstance(write, InsertTask):
            return None
        task = new_task(write)
        cutoff = SEQ_ABOVE_ALL if as_of is None else as_of
        seqs = self.conn.execute(PATCHES, (self.session, task_id, cutoff)).fetchall()
        for (seq,) in seqs:
            patch = self.journal.write_at(seq)
            if not isinstance(patch, PatchTask | SettleTask):
                raise StorageDamaged(f"the journal has no patch of task {task_id} at seq {seq}")
            try:
                task = patch_task(task, patch)
            except (ValueError, RecursionError) as error:
                raise StorageDamaged(f"task {task_id}, patched at seq {seq}: {error}") from None
        return task

    def tasks(self, ids: Iterable[Seq], as_of: Seq | None) -> dict[Seq, Task]:
        """Answer the tasks that exist."""
        self.check_boundary(as_of)
        found = ((task_id, self.task(task_id, as_of)) for task_id in ids)
        return {task_id: task for task_id, task in found if task is not None}

    def scan_tasks(self, scan: TaskScan) -> list[Task]:
        """Answer a page of tasks by id."""
        self.check_boundary(scan.as_of)
        clauses = Clauses(self.session)
        clauses.where += " AND seq=0"
        clauses.add("conv=?", scan.conv_id)
        clauses.add("kind=?", scan.kind)
        clauses.bounds(scan)
        if scan.live is not None and scan.as_of is None:
            clauses.where += f" AND settled IS {'NULL' if scan.live else 'NOT NULL'}"
        elif scan.live:
            clauses.add("(settled IS NULL OR settled>?)", scan.as_of)
        elif scan.live is False:
            clauses.add("settled<=?", scan.as_of)
        ids = self._ids(task_source(scan), clauses, scan)
        return list(self.tasks(ids, scan.as_of).values())


def task_source(scan: TaskScan) -> str:
    """Name the index of tasks to search: without statistics SQLite would take the widest."""
    if scan.live and scan.as_of is None:
        return "task INDEXED BY task_live"
    return "task" if scan.conv_id is None else "task INDEXED BY task_conv"


def is_wanted(entry: Entry, scan: EntryScan) -> bool:
    """Say whether an entry passes a scan's filters; its bounds were kept already."""
    return (scan.kind is None or entry.kind == scan.kind) and (
        scan.key is None or entry.key == scan.key
    )
