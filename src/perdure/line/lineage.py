"""Where conversations come from: parent links, and the history that a chain of them makes.

A link is written once and never changes, so those that were read are remembered, up to a bound: a
walk over many ancestors then reads nothing.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from perdure.ports import Storage
from perdure.records.conversations import ConversationState, ParentLink
from perdure.records.entries import Entry
from perdure.records.seqs import SEQ_MAX, Seq

LINKS_MAX: Final = 10_000
"""Most links that are remembered."""


class Stretch(Struct, frozen=True):
    """A part of a history: what one conversation holds up to and including `through`."""

    conv_id: Seq
    through: Seq


class Lineage:
    """Read parent links of one storage, each once."""

    def __init__(self, storage: Storage) -> None:
        """Start knowing none."""
        self._storage = storage
        self._links: OrderedDict[Seq, ParentLink | UnsetType] = OrderedDict()

    async def parent(self, conv_id: Seq) -> ParentLink | UnsetType:
        """Answer a conversation's link; UNSET when it has none, or is not there."""
        link = self._links.get(conv_id)
        if link is None:
            state = (await self._storage.conversations([conv_id])).get(conv_id)
            if state is None:
                return UNSET
            link = self._links[conv_id] = state.parent
            if len(self._links) > LINKS_MAX:
                self._links.popitem(last=False)
        return link

    async def stretches(self, state: ConversationState) -> Sequence[Stretch]:
        """Answer what a history is made of: its own stretch first, then each ancestor's.

        An ancestor's ends at the lowest boundary on the way to it.
        """
        found = [Stretch(state.id, Seq(SEQ_MAX))]
        link = state.parent
        while link is not UNSET:
            found.append(Stretch(link.conv_id, min(found[-1].through, link.as_of)))
            link = await self.parent(link.conv_id)
        return found


def holds(history: Sequence[Stretch], entry: Entry) -> bool:
    """Say whether an entry is part of a history."""
    return any(one.conv_id == entry.conv_id and entry.id <= one.through for one in history)
