"""A view: what a watch has shown so far, put together (WT-10).

It starts with a base and applies what follows, a whole batch at a time. At every boundary it equals
a base read there. Command line, page and client all show from one of these.
"""

from msgspec import UNSET, Raw, structs

from perdure.records.conversations import ConversationState, InboxItem
from perdure.records.entries import Entry, new_entry
from perdure.records.folding import edited, patch_task
from perdure.records.scratch import with_delta
from perdure.records.seqs import Seq
from perdure.records.tasks import Task, new_task
from perdure.records.watch import (
    Page,
    WatchBase,
    WatchCommit,
    WatchDelta,
    WatchEvent,
    WatchInput,
    WatchValue,
    queued_input,
)
from perdure.records.writes import (
    AppendContext,
    DeleteConversation,
    DeleteValue,
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


class View:
    """One conversation as its watcher knows it."""

    def __init__(self, base: WatchBase) -> None:
        """Start from a base."""
        self._take(base)

    def _take(self, base: WatchBase) -> None:
        self.as_of = base.as_of
        self.conversation: ConversationState = base.conversation
        self._entries: dict[Seq, Entry] = {entry.id: entry for entry in base.entries}
        self._tasks: dict[Seq, Task] = {task.id: task for task in base.tasks}
        self._scratch: dict[Seq, Raw] = dict(base.scratch)
        self._inbox: dict[Seq, WatchInput] = {one.id: one for one in base.inbox}
        self._values = {(one.conv_id, one.namespace, one.key): one for one in base.values}

    def base(self) -> WatchBase:
        """Answer all of it in the form of a base."""
        return WatchBase(
            as_of=self.as_of,
            conversation=self.conversation,
            entries=tuple(self._entries[seq] for seq in sorted(self._entries)),
            tasks=tuple(self._tasks[seq] for seq in sorted(self._tasks)),
            scratch=dict(self._scratch),
            inbox=tuple(self._inbox.values()),
            values=tuple(self._values.values()),
        )

    def apply(self, event: WatchEvent) -> None:
        """Take the next event; a base starts anew, a commit that is known changes nothing."""
        if isinstance(event, WatchBase):
            self._take(event)
        elif isinstance(event, WatchCommit):
            if event.last_seq > self.as_of:
                self._commit(event)
        elif isinstance(event, WatchDelta):
            self._delta(event)

    def add_page(self, page: Page) -> None:
        """Take older entries; one that is there already stays as it is (WT-08)."""
        for entry in page.entries:
            self._entries.setdefault(entry.id, entry)

    def _delta(self, delta: WatchDelta) -> None:
        if delta.task_id not in self._tasks:
            return
        scratch = with_delta(self._scratch.get(delta.task_id), delta.kind, delta.payload_json)
        if scratch is None:
            self._scratch.pop(delta.task_id, None)
        else:
            self._scratch[delta.task_id] = scratch

    def _commit(self, event: WatchCommit) -> None:
        for write in event.writes:
            self._write(write.change, event.last_seq)
        self.as_of = event.last_seq

    def _write(self, write: Write, commit_end: Seq) -> None:
        if isinstance(write, InsertTask):
            self._tasks[write.seq] = new_task(write)
        elif isinstance(write, PatchTask | SettleTask):
            self._task(write, commit_end)
            return
        elif isinstance(write, SetValue | DeleteValue):
            self._value(write)
        if getattr(write, "conv_id", UNSET) == self.conversation.id:
            self._own(write, commit_end)
            self._touch(commit_end)

    def _touch(self, commit_end: Seq) -> None:
        self.conversation = structs.replace(self.conversation, commit_end=commit_end)

    def _task(self, write: PatchTask | SettleTask, commit_end: Seq) -> None:
        task = self._tasks.get(write.task_id)
        if task is None:
            return
        if task.conv_id == self.conversation.id:
            self._touch(commit_end)
        if isinstance(write, PatchTask):
            self._tasks[task.id] = patch_task(task, write)
        else:
            del self._tasks[task.id]
            self._scratch.pop(task.id, None)

    def _value(self, write: SetValue | DeleteValue) -> None:
        place = (write.conv_id, write.namespace, write.key)
        if place in self._values:
            self._values[place] = WatchValue(
                namespace=write.namespace,
                key=write.key,
                conv_id=write.conv_id,
                value_json=write.value_json if isinstance(write, SetValue) else UNSET,
            )

    def _own(self, write: Write, commit_end: Seq) -> None:
        """Apply a write of the view's own conversation."""
        state = self.conversation
        if isinstance(write, InsertEntry):
            self._entries[write.seq] = new_entry(write, commit_end)
        elif isinstance(write, AppendContext):
            self.conversation = structs.replace(state, context=state.context.append(write.ids))
        elif isinstance(write, ReplaceContext | ResetContext):
            self.conversation = structs.replace(
                state,
                context=edited(state.context, write),
                prefix_version=state.prefix_version + 1,
            )
        elif isinstance(write, PatchConversation):
            self._patch(write)
        elif isinstance(write, DeleteConversation):
            self.conversation = structs.replace(state, deleted=True)

    def _patch(self, write: PatchConversation) -> None:
        changes = {
            name: given
            for name in ("inbox", "label", "steering_mode", "follow_up_mode")
            if (given := getattr(write, name)) is not UNSET
        }
        if changes.get("label", "") is None:
            changes["label"] = UNSET
        self.conversation = structs.replace(self.conversation, **changes)
        if write.inbox is not UNSET:
            self._queue(write.inbox)

    def _queue(self, items: tuple[InboxItem, ...]) -> None:
        self._inbox = {
            item.id: self._inbox.get(item.id) or queued_input(item, self._entries[item.entry])
            for item in items
        }
