"""Usage totals: pages of the usage list, and the attempts nobody reported (US-10, D25).

An attempt that reported nothing is not zero: it is counted apart, by comparing the attempts a
generation made with the reports it left (US-04).
"""

from typing import Final

from msgspec import UNSET

from perdure.kinds.settlement import generation_state
from perdure.ports import Storage
from perdure.records.addresses import USAGE
from perdure.records.codec import decode
from perdure.records.messages import UsageElement
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage, TaskScan
from perdure.records.tasks import Task
from perdure.records.usage import UsageTotals, usage_totals

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
        elements: list[UsageElement] = []
        after: Seq | None = None
        before = None if as_of is None else Seq(as_of + 1)
        while True:
            page = await self._storage.elements(
                USAGE.address(), ListPage(after=after, before=before, limit=PAGE)
            )
            for element in page:
                usage = decode(element.value_json, UsageElement)
                if conv_id in (None, usage.conv_id):
                    elements.append(usage)
            if len(page) < PAGE:
                break
            after = page[-1].seq
        return usage_totals(elements, await self._attempts(conv_id, as_of))

    async def _attempts(self, conv_id: Seq | None, as_of: Seq | None) -> dict[Seq, int]:
        made: dict[Seq, int] = {}
        after: Seq | None = None
        while True:
            page = await self._storage.scan_tasks(
                TaskScan(conv_id=conv_id, kind="generation", after=after, limit=PAGE, as_of=as_of)
            )
            made.update((task.id, _made(task)) for task in page)
            if len(page) < PAGE:
                return made
            after = page[-1].id


def _made(task: Task) -> int:
    """Count the requests a generation has ended; one that is in flight is not known yet."""
    state = generation_state(task)
    ended = state.request_as_of is not UNSET and task.status != "streaming"
    return state.attempt if ended else state.attempt - 1
