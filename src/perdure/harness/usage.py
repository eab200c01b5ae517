"""Usage totals: pages of the usage list, and the attempts nobody reported (US-10, D25).

An attempt that reported nothing is not zero: it is counted apart, by comparing the attempts a
generation made with the reports it left (US-04).
"""

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET, structs

from perdure.kinds.spending import figures_of, scan_tasks
from perdure.ports import Storage
from perdure.records.addresses import USAGE
from perdure.records.codec import decode
from perdure.records.messages import UsageElement
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage, TaskScan
from perdure.records.tasks import Task
from perdure.records.usage import NO_USAGE, UsageTotals, usage_totals

PAGE: Final = 1_000


class UsageReader:
    """Sum a session's usage; a repeat at the same seq costs nothing."""

    def __init__(self, storage: Storage) -> None:
        """Read from a storage."""
        self._storage = storage
        self._kept: dict[Seq | None, tuple[Seq, UsageTotals]] = {}

    async def totals(self, conv_id: Seq | None, *, as_of: Seq | None = None) -> UsageTotals:
        """Answer the totals of a conversation, or of the session; now or at a main boundary."""
        if as_of is not None:
            return await self._sum(conv_id, as_of)
        last_seq = self._storage.last_seq
        kept = self._kept.get(conv_id)
        if kept is None or kept[0] != last_seq:
            kept = (last_seq, await self._sum(conv_id))
            self._kept[conv_id] = kept
        return kept[1]

    async def _sum(self, conv_id: Seq | None, as_of: Seq | None = None) -> UsageTotals:
        elements = await self._elements(as_of)
        if conv_id is None:
            return _totals(elements, await self._tasks(None, as_of))
        own, owned = await self._own(conv_id, elements, as_of)
        if not owned:
            return own
        children = NO_USAGE
        for child in owned:
            totals, more = await self._own(child, elements, as_of)
            children += totals
            owned.extend(more)
        return structs.replace(own, children=children)

    async def _own(
        self, conv_id: Seq, elements: Sequence[UsageElement], as_of: Seq | None
    ) -> tuple[UsageTotals, list[Seq]]:
        """Answer what one conversation used itself, and the conversations its tasks own."""
        tasks = await self._tasks(conv_id, as_of)
        mine = [element for element in elements if element.conv_id == conv_id]
        return _totals(mine, tasks), [task.owns for task in tasks if task.owns is not UNSET]

    async def _elements(self, as_of: Seq | None) -> Sequence[UsageElement]:
        elements: list[UsageElement] = []
        after: Seq | None = None
        before = None if as_of is None else Seq(as_of + 1)
        while True:
            page = await self._storage.elements(
                USAGE.address(), ListPage(after=after, before=before, limit=PAGE)
            )
            elements += [decode(element.value_json, UsageElement) for element in page]
            if len(page) < PAGE:
                return elements
            after = page[-1].seq

    async def _tasks(self, conv_id: Seq | None, as_of: Seq | None) -> Sequence[Task]:
        return await scan_tasks(self._storage, TaskScan(conv_id=conv_id, limit=PAGE, as_of=as_of))


def _totals(elements: Sequence[UsageElement], tasks: Sequence[Task]) -> UsageTotals:
    figures = {task.id: figures_of(task) for task in tasks}
    attempts = {task_id: one.attempts for task_id, one in figures.items() if one.attempts}
    return usage_totals(elements, attempts) + UsageTotals(
        turns=sum(one.turns for one in figures.values()),
        worked_ms=sum(one.worked_ms for one in figures.values()),
    )
