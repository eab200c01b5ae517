"""The draft of a commit: committed state plus the records walked so far (LN-10).

`validate` walks a command's writes in order; each sees committed state and the records before it,
through this overlay. What the overlay holds at the end is what residency adopts.
"""

from collections.abc import Iterator, Mapping

from msgspec import UNSET, UnsetType

from perdure.errors import Rejected
from perdure.line.facts import KindTable, TaskFacts
from perdure.line.residency import Residency
from perdure.records.conversations import ConversationState, ParentLink
from perdure.records.entries import Entry
from perdure.records.seqs import SEQ_MAX, Seq
from perdure.records.tasks import Task


class Draft:
    """Hold the changed objects of one commit over committed ones."""

    def __init__(
        self,
        kinds: KindTable,
        residency: Residency,
        loaded: "Loaded",
        commit_end: Seq,
    ) -> None:
        """Start with nothing changed."""
        self.kinds = kinds
        self.commit_end = commit_end
        self.conversations: dict[Seq, ConversationState] = {}
        self.tasks: dict[Seq, Task] = {}
        self.entries: dict[Seq, Entry] = {}
        self.placed: dict[Seq, Seq] = {}
        self.answered: set[tuple[Seq, int]] = set()
        self.answering: set[Seq] = set()
        self._residency = residency
        self._loaded = loaded

    def conversation(self, conv_id: Seq) -> ConversationState:
        """Answer a conversation that may be written to."""
        state = self.conversations.get(conv_id) or self.committed_conversation(conv_id)
        if state is None:
            raise Rejected("unknown_target", f"there is no conversation {conv_id}")
        if state.deleted:
            raise Rejected("deleted", f"conversation {conv_id} was deleted")
        return state

    def committed_conversation(self, conv_id: Seq) -> ConversationState | None:
        """Answer a conversation as it was before this commit."""
        return self._residency.conversation(conv_id) or self._loaded.conversations.get(conv_id)

    def any_conversation(self, conv_id: Seq) -> ConversationState | None:
        """Answer a conversation, deleted or not."""
        return self.conversations.get(conv_id) or self.committed_conversation(conv_id)

    def had_begun(self, conv_id: Seq, as_of: Seq) -> bool:
        """Say whether a conversation existed at a boundary that a new one names."""
        return (conv_id, as_of) in self._loaded.begun

    def task(self, task_id: Seq) -> Task | None:
        """Answer a task."""
        return (
            self.tasks.get(task_id)
            or self._residency.task(task_id)
            or self._residency.settled_task(task_id)
            or self._loaded.tasks.get(task_id)
        )

    def entry(self, entry_id: Seq) -> Entry | None:
        """Answer an entry."""
        return (
            self.entries.get(entry_id)
            or self._residency.entry(entry_id)
            or self._loaded.entries.get(entry_id)
        )

    def facts(self, kind: str) -> TaskFacts:
        """Answer a task kind's table; raises Rejected `invariant` for an unknown kind."""
        facts = self.kinds.task(kind)
        if facts is None:
            raise Rejected("invariant", f"no task kind is named {kind!r}")
        return facts

    def is_live(self, task: Task) -> bool:
        """Say whether a task is not terminal."""
        return self.kinds.is_live(task)

    def live_tasks(self, conv_id: Seq) -> Iterator[Task]:
        """Walk a conversation's live tasks, as changed so far."""
        for task in self._residency.live_tasks(conv_id):
            current = self.tasks.get(task.id, task)
            if current is task or self.is_live(current):
                yield current
        for task in self.tasks.values():
            if (
                task.conv_id == conv_id
                and self._residency.task(task.id) is None
                and self.is_live(task)
            ):
                yield task

    def unresolved_calls(self, conv_id: Seq) -> bool:
        """Say whether a call of an open exchange has no result yet."""
        return any(
            task.at_entry is not UNSET
            and self.facts(task.kind).answers_call
            and task.id not in self.answering
            for task in self.live_tasks(conv_id)
        )

    def request_in_flight(self, conv_id: Seq) -> bool:
        """Say whether a model request of the conversation is in flight."""
        return any(
            task.status in self.facts(task.kind).open_request for task in self.live_tasks(conv_id)
        )

    def sees_entry(self, conv_id: Seq, entry_id: Seq) -> bool:
        """Say whether an entry belongs to a conversation or to its inherited prefix."""
        entry = self.entry(entry_id)
        if entry is None:
            return False
        if entry.conv_id == conv_id:
            return True
        state, cutoff = self.any_conversation(conv_id), SEQ_MAX
        link = UNSET if state is None else state.parent
        while link is not UNSET:
            cutoff = min(cutoff, link.as_of)
            if entry.conv_id == link.conv_id:
                return entry.id <= cutoff
            link = self._parent(link.conv_id)
        return False

    def _parent(self, conv_id: Seq) -> ParentLink | UnsetType:
        """Answer the link of a conversation on the way up from one that is written to."""
        if conv_id in self._loaded.parents:
            return self._loaded.parents[conv_id]
        state = self.any_conversation(conv_id)
        return UNSET if state is None else state.parent

    def tree_root(self, conv_id: Seq) -> Seq:
        """Answer the conversation at the top of an ownership tree."""
        current = conv_id
        while True:
            state = self.any_conversation(current)
            if state is None or state.owner is UNSET:
                return current
            owner = self.task(state.owner)
            if owner is None:
                return current
            current = owner.conv_id


class Loaded:
    """Rows a command targets that were not resident."""

    def __init__(
        self,
        conversations: Mapping[Seq, ConversationState] | None = None,
        tasks: Mapping[Seq, Task] | None = None,
        entries: Mapping[Seq, Entry] | None = None,
    ) -> None:
        """Hold them."""
        self.conversations = dict(conversations or {})
        self.tasks = dict(tasks or {})
        self.entries = dict(entries or {})
        self.parents: dict[Seq, ParentLink | UnsetType] = {}
        self.begun: set[tuple[Seq, Seq]] = set()
