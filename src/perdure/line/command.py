"""Commands: a buffer of writes with final seqs, built on the line and committed as one.

A command mints the next seq for every record at once, so a creating method answers the id its
object will have (LN-03). Values handed in are encoded at once: changing an object afterwards
changes nothing (LN-21). Reads answer the state before the command (LN-02). Building writes
nothing (LN-05); the buffer is refused after the callback ended (LN-08).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.errors import Rejected
from perdure.line.buffer import AnyAddress, Buffer, CommittedReads, check_kind
from perdure.line.buffer import WorkingCommand as WorkingCommand
from perdure.line.facts import ContentFacts, KindTable, field_names
from perdure.records.addresses import Address, WorkingScope
from perdure.records.codec import checked_raw, encode, to_raw
from perdure.records.conversations import ConversationState, InboxItem, ParentLink, QueueMode
from perdure.records.core_values import check_core_value
from perdure.records.entries import META_BYTES_MAX, Entry
from perdure.records.messages import PAYLOADS, check_payload
from perdure.records.seqs import Seq
from perdure.records.tasks import Task
from perdure.records.writes import (
    AppendContext,
    AppendList,
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
)


class Command(Buffer):
    """Build one main commit.

    A `host` command, made for code outside the engine, may write only the core addresses of VL-32.
    """

    def __init__(
        self,
        reads: CommittedReads,
        first_seq: Seq,
        *,
        kinds: KindTable,
        host: bool,
        conv_id: Seq | UnsetType = UNSET,
    ) -> None:
        """Start with an empty buffer."""
        super().__init__(reads, first_seq, host=host, conv_id=conv_id)
        self._kinds = kinds

    # Reads.

    async def conversation(self, conv_id: Seq) -> ConversationState:
        """Answer a conversation; raises Rejected `unknown_target` or `deleted`."""
        state = await self.reads.conversation(conv_id)
        if state is None:
            raise Rejected("unknown_target", f"there is no conversation {conv_id}")
        if state.deleted:
            raise Rejected("deleted", f"conversation {conv_id} was deleted")
        return state

    async def task(self, task_id: Seq) -> Task:
        """Answer a task; raises Rejected `not_found`."""
        task = await self.reads.task(task_id)
        if task is None:
            raise Rejected("not_found", f"there is no task {task_id}")
        return task

    async def entry(self, entry_id: Seq) -> Entry:
        """Answer an entry; raises Rejected `not_found`."""
        entry = await self.reads.entry(entry_id)
        if entry is None:
            raise Rejected("not_found", f"there is no entry {entry_id}")
        return entry

    def live_tasks(self, conv_id: Seq) -> Sequence[Task]:
        """Answer a conversation's live tasks in id order."""
        return self.reads.live_tasks(conv_id)

    # Conversations.

    def insert_conversation(
        self,
        *,
        parent: ParentLink | UnsetType = UNSET,
        owner: Seq | UnsetType = UNSET,
        context: Sequence[Seq] = (),
    ) -> Seq:
        """Create a conversation; answers its id."""
        seq = self.mint()
        self.writes.append(
            InsertConversation(seq=seq, parent=parent, owner=owner, context=tuple(context))
        )
        return seq

    def patch_conversation(
        self,
        conv_id: Seq,
        *,
        inbox: Sequence[InboxItem] | UnsetType = UNSET,
        label: str | UnsetType | None = UNSET,
        steering_mode: QueueMode | UnsetType = UNSET,
        follow_up_mode: QueueMode | UnsetType = UNSET,
    ) -> None:
        """Change inbox, label or queue modes (ST-32); a label of None removes it."""
        self.writes.append(
            PatchConversation(
                seq=self.mint(),
                conv_id=conv_id,
                inbox=UNSET if inbox is UNSET else tuple(inbox),
                label=label,
                steering_mode=steering_mode,
                follow_up_mode=follow_up_mode,
            )
        )

    def delete_conversation(self, conv_id: Seq) -> None:
        """Delete a conversation."""
        self.writes.append(DeleteConversation(seq=self.mint(), conv_id=conv_id))

    # Entries and context.

    def insert_entry(
        self,
        conv_id: Seq,
        kind: str,
        meta: Struct | Mapping[str, Any],
        payload: object = UNSET,
        *,
        written_by: Seq | UnsetType = UNSET,
        call_index: int | UnsetType = UNSET,
        through: Seq | UnsetType = UNSET,
        key: str | UnsetType = UNSET,
        ref: Seq | UnsetType = UNSET,
    ) -> Seq:
        """Append an entry, and select it when its kind selects; answers its id (CX-03).

        Raises:
            Rejected: `invariant`, when meta or payload do not fit the kind (CX-23).
        """
        facts = self._kinds.content(kind)
        if facts is None:
            raise Rejected("invariant", f"no content kind is named {kind!r}")
        meta_json = self._typed(meta, facts.meta, f"meta of a {kind} entry")
        if len(meta_json) > META_BYTES_MAX:
            raise Rejected(
                "invariant",
                f"the meta of a {kind} entry takes {len(meta_json)} bytes, over {META_BYTES_MAX}",
            )
        seq = self.mint()
        self.writes.append(
            InsertEntry(
                seq=seq,
                conv_id=conv_id,
                kind=kind,
                written_by=written_by,
                call_index=call_index,
                through=through,
                key=key,
                ref=ref,
                meta_json=meta_json,
                payload_json=UNSET if payload is UNSET else self._payload(kind, payload, facts),
            )
        )
        if facts.selects:
            self.writes.append(AppendContext(seq=self.mint(), conv_id=conv_id, ids=(seq,)))
        return seq

    def _payload(self, kind: str, payload: object, facts: ContentFacts) -> Raw:
        """Encode a payload; a host's own has exactly the shape of its kind (FM-03)."""
        schema = PAYLOADS.get(kind)
        if self.host and schema is not None:
            raw = checked_raw(payload)
            check_payload(raw, schema)
            return raw
        return self._typed(payload, facts.payload, f"payload of a {kind} entry")

    def replace_context(
        self, conv_id: Seq, *, through: Seq, head: Seq, expect_prefix_version: int
    ) -> None:
        """Replace the list's prefix through `through` by the summary `head`."""
        self.writes.append(
            ReplaceContext(
                seq=self.mint(),
                conv_id=conv_id,
                through=through,
                head=head,
                expect_prefix_version=expect_prefix_version,
            )
        )

    def reset_context(self, conv_id: Seq, ids: Sequence[Seq]) -> None:
        """Replace the whole list."""
        self.writes.append(ResetContext(seq=self.mint(), conv_id=conv_id, ids=tuple(ids)))

    # Tasks.

    def insert_task(
        self,
        conv_id: Seq,
        kind: str,
        state: Struct | Mapping[str, Any],
        *,
        status: str,
        spawned_by: Seq | UnsetType = UNSET,
        at_entry: Seq | UnsetType = UNSET,
        after: Sequence[Seq] = (),
    ) -> Seq:
        """Create a task; answers its id."""
        facts = self._kinds.task(kind)
        if facts is None:
            raise Rejected("invariant", f"no task kind is named {kind!r}")
        seq = self.mint()
        self.writes.append(
            InsertTask(
                seq=seq,
                conv_id=conv_id,
                kind=kind,
                at_entry=at_entry,
                spawned_by=spawned_by,
                after=tuple(after),
                status=status,
                state_json=self._typed(state, facts.state, f"state of a {kind} task"),
            )
        )
        return seq

    def patch(
        self,
        task: Task,
        *,
        status: str | UnsetType = UNSET,
        unset: Sequence[str] = (),
        after: Sequence[Seq] | UnsetType = UNSET,
        owns: Seq | UnsetType = UNSET,
        **state: object,
    ) -> None:
        """Change a live task; `state` and `unset` name fields of its kind's state (TK-14)."""
        self.writes.append(
            PatchTask(
                seq=self.mint(),
                task_id=task.id,
                status=status,
                state_json=self._patched(task, state),
                unset=self._stored_names(task, unset),
                after=UNSET if after is UNSET else tuple(after),
                owns=owns,
            )
        )

    def settle(
        self, task: Task, status: str, *, unset: Sequence[str] = (), **state: object
    ) -> None:
        """Give a task its terminal status."""
        self.writes.append(
            SettleTask(
                seq=self.mint(),
                task_id=task.id,
                status=status,
                state_json=self._patched(task, state),
                unset=self._stored_names(task, unset),
            )
        )

    def mark_abort(self, task_id: Seq) -> None:
        """Make a live task a target of its conversation's cancellation (CN-01).

        Raises:
            Rejected: `invariant`, in host code: no single task is cancelled (TK-20).
        """
        if self.host:
            raise Rejected("invariant", "host code marks no task; abort its conversation")
        self.writes.append(PatchTask(seq=self.mint(), task_id=task_id, abort_requested=True))

    def _stored_names(self, task: Task, names: Collection[str]) -> tuple[str, ...]:
        if not names:
            return ()
        facts = self._kinds.task(task.kind)
        if facts is None:
            raise Rejected("invariant", f"no task kind is named {task.kind!r}")
        known = field_names(facts.state)
        for name in names:
            if name not in known:
                raise Rejected("invariant", f"a {task.kind} task has no state field {name!r}")
        return tuple([known[name] for name in names])

    def _patched(self, task: Task, state: Mapping[str, object]) -> Raw | UnsetType:
        if not state:
            return UNSET
        fields = dict(zip(self._stored_names(task, state), state.values(), strict=True))
        return checked_raw(fields) if self.host else Raw(encode(fields))

    # Values and lists.

    def set_value(self, address: AnyAddress, value: object) -> Seq:
        """Set a session or conversation value; answers the write's seq."""
        bound = self._writable(address, "value")
        raw = self.encoded(value)
        if self.host:
            check_core_value(bound.namespace, raw)
        seq = self.mint()
        self.writes.append(
            SetValue(
                seq=seq,
                conv_id=bound.conv_id,
                namespace=bound.namespace,
                key=bound.key,
                value_json=raw,
            )
        )
        self.note_write(bound)
        return seq

    def delete_value(self, address: AnyAddress) -> None:
        """Delete a session value, or mask a conversation value."""
        bound = self._writable(address, "value")
        self.writes.append(
            DeleteValue(
                seq=self.mint(), conv_id=bound.conv_id, namespace=bound.namespace, key=bound.key
            )
        )
        self.note_write(bound)

    def append_list(self, address: AnyAddress, value: object, *, tag: str | None = None) -> Seq:
        """Append to a session or conversation list; answers the element's seq."""
        bound = self._writable(address, "list")
        seq = self.mint()
        self.writes.append(
            AppendList(
                seq=seq,
                conv_id=bound.conv_id,
                namespace=bound.namespace,
                key=bound.key,
                value_json=self.encoded(value),
                tag=UNSET if tag is None else tag,
            )
        )
        self.note_write(bound)
        return seq

    def delete_list(self, address: AnyAddress) -> None:
        """Delete a session list; a conversation list keeps its history (LN-19)."""
        bound = self._writable(address, "list")
        if bound.conv_id is not UNSET:
            raise Rejected("invariant", "a conversation list keeps its history; it is not deleted")
        self.writes.append(DeleteList(seq=self.mint(), namespace=bound.namespace, key=bound.key))
        self.note_write(bound)

    def retire_scope(self, scope: WorkingScope) -> Seq:
        """End a working scope's lifetime (WS-05)."""
        seq = self.mint()
        self.writes.append(RetireScope(seq=seq, working_scope=scope.id))
        return seq

    def _writable(self, address: AnyAddress, kind: str) -> Address:
        bound = self.bind(address)
        check_kind(bound, kind)
        if bound.working_scope is not UNSET:
            raise Rejected(
                "invariant",
                "a main command writes no working value; use a command of that scope (LN-17)",
            )
        self.check_protected(bound)
        return bound

    def _typed(self, value: object, kind: type[Struct] | None, what: str) -> Raw:
        """Encode a value of a kind's schema: its Struct as it is, plain JSON after both doors."""
        if kind is None or (isinstance(value, kind) and not self.host):
            return self.encoded(value)
        raw = checked_raw(value)
        try:
            fitted = msgspec.json.decode(raw, type=kind, strict=True)
        except msgspec.ValidationError as error:
            raise Rejected("invariant", f"the {what} does not fit its schema: {error}") from None
        if not isinstance(value, Struct):
            extra = set(cast("dict[str, Any]", value)) - set(kind.__struct_encode_fields__)
            if extra:
                raise Rejected("invariant", f"the {what} has unknown fields {sorted(extra)!r}")
        return to_raw(fitted)
