"""What may be read of a conversation: its own, and what it inherits."""

from collections.abc import Awaitable, Callable, Sequence

from msgspec import UNSET, Struct

from perdure.errors import Rejected
from perdure.line.line import Line
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry
from perdure.records.seqs import SEQ_MAX, Seq
from perdure.records.tasks import Task


class Stretch(Struct, frozen=True):
    """A part of a history: what one conversation holds up to and including `through`."""

    conv_id: Seq
    through: Seq


async def stretches(
    state: ConversationState, state_of: Callable[[Seq], Awaitable[ConversationState | None]]
) -> Sequence[Stretch]:
    """Answer what a history is made of: its own stretch first, then each ancestor's.

    An ancestor's ends at the lowest boundary on the way to it.
    """
    found = [Stretch(state.id, Seq(SEQ_MAX))]
    while state.parent is not UNSET:
        link = state.parent
        found.append(Stretch(link.conv_id, min(found[-1].through, link.as_of)))
        parent = await state_of(link.conv_id)
        if parent is None:
            break
        state = parent
    return found


def holds(history: Sequence[Stretch], entry: Entry) -> bool:
    """Say whether an entry is part of a history."""
    return any(one.conv_id == entry.conv_id and entry.id <= one.through for one in history)


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
        history = await stretches(await self.state(), self._line.conversation)
        return entry if holds(history, entry) else None

    async def task(self, task_id: Seq) -> Task | None:
        """Answer a task of it."""
        task = await self._line.task(task_id)
        return task if task is not None and task.conv_id == self._conv_id else None
