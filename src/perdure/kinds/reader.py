"""What may be read of a conversation: its own, and what it inherits."""

from perdure.errors import Rejected
from perdure.line.line import Line
from perdure.line.lineage import holds
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry
from perdure.records.seqs import Seq
from perdure.records.tasks import Task


class ConversationView:
    """Read one conversation; never writes (`ports.ConversationReader`)."""

    def __init__(self, line: Line, conv_id: Seq) -> None:
        """Bind to the conversation."""
        self._line = line
        self._conv_id = conv_id

    @property
    def id(self) -> Seq:
        """Answer the conversation's id."""
        return self._conv_id

    async def state(self) -> ConversationState:
        """Answer its state."""
        state = await self._line.conversation(self._conv_id)
        if state is None:
            raise Rejected("unknown_target", f"there is no conversation {self._conv_id}")
        return state

    async def entry(self, entry_id: Seq) -> Entry | None:
        """Answer an entry of it, or of its inherited prefix."""
        entry = await self._line.entry(entry_id)
        if entry is None or entry.conv_id == self._conv_id:
            return entry
        history = await self._line.lineage.stretches(await self.state())
        return entry if holds(history, entry) else None

    async def task(self, task_id: Seq) -> Task | None:
        """Answer a task of it."""
        task = await self._line.task(task_id)
        return task if task is not None and task.conv_id == self._conv_id else None
