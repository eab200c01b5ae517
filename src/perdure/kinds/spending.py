"""What stored facts say was spent: by a task, an input's chain, a session (BG-03, BG-04).

An input's chain is every generation that owes it an answer, what those spawned, and everything in
the conversations that these own, at any depth. Nothing here is a counter of its own: tokens and
cost stand in the usage list, turns, attempts and time in the tasks (BG-10).
"""

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from perdure.kinds.states import GenerationState, ToolState
from perdure.ports import Storage
from perdure.records.addresses import USAGE, input_record
from perdure.records.budgets import NOTHING_SPENT, Spent
from perdure.records.codec import decode
from perdure.records.inputs import InputRecord
from perdure.records.messages import UsageElement
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage, TaskScan
from perdure.records.tasks import Task
from perdure.records.usage import cost_amount

PAGE: Final = 1_000
"""Tasks or reports read at a time."""


class Figures(Struct, frozen=True, gc=False, kw_only=True):
    """What one task's own record says: requests that ended, entries made, milliseconds worked."""

    attempts: int = 0
    turns: int = 0
    worked_ms: int = 0
    reported: frozenset[int] = frozenset()

    def spent(self) -> Spent:
        """Answer the figures as a sum; an attempt that nobody reported is unknown (BG-08)."""
        known = sum(1 for attempt in self.reported if attempt <= self.attempts)
        return Spent(
            turns=self.turns,
            worked_ms=self.worked_ms,
            unknown_attempts=self.attempts - known,
        )


NO_FIGURES: Final = Figures()


def figures_of(task: Task, reported: Iterable[int] = ()) -> Figures:
    """Read a task's figures; `reported` are the attempts its usage reports name."""
    if task.kind == "generation":
        state = decode(task.state_json, GenerationState)
        return Figures(
            attempts=made(task, state),
            turns=int(state.produced is not UNSET),
            worked_ms=state.worked_ms,
            reported=frozenset(reported),
        )
    if task.kind == "tool":
        return Figures(worked_ms=decode(task.state_json, ToolState).worked_ms)
    return NO_FIGURES


def made(task: Task, state: GenerationState) -> int:
    """Count the requests a generation has ended; one that is in flight is not known yet."""
    ended = state.request_as_of is not UNSET and task.status != "streaming"
    return state.attempt if ended else state.attempt - 1


def spent_of(element: UsageElement) -> Spent:
    """Answer what one usage report, or adjustment, adds."""
    amount = cost_amount(element.cost)
    counts = (element.input, element.output, element.cache_read, element.cache_write)
    currency = "" if element.cost is None else element.cost.currency
    return Spent(
        costs=MappingProxyType({} if amount is None else {currency: amount}),
        tokens=sum(count for count in counts if count is not None),
        unpriced=int(amount is None and element.kind == "report"),
    )


class Chain(Struct, frozen=True, kw_only=True):
    """What was spent up to one moment, and the live tasks that go on spending, by id."""

    spent: Spent
    figures: dict[Seq, Figures]


async def read_chain(storage: Storage, input_id: Seq) -> Chain:
    """Read what an input's chain has spent; costs what was written since the input came."""
    stored = await storage.value(input_record(input_id).address())
    if stored is None:
        return Chain(spent=NOTHING_SPENT, figures={})
    record = decode(stored.value_json, InputRecord)
    return await _summed(storage, await _tasks_of(storage, input_id, record.conv_id), input_id)


async def read_session(storage: Storage) -> Chain:
    """Read what a whole session has spent."""
    tasks = await scan_tasks(storage, TaskScan(limit=PAGE))
    return await _summed(storage, {task.id: task for task in tasks}, None)


async def scan_tasks(storage: Storage, scan: TaskScan) -> list[Task]:
    """Read every task of a scan, a page at a time."""
    found: list[Task] = []
    while True:
        page = await storage.scan_tasks(scan)
        found += page
        if len(page) < scan.limit:
            return found
        scan = msgspec.structs.replace(scan, after=page[-1].id)


async def _tasks_of(storage: Storage, input_id: Seq, conv_id: Seq) -> dict[Seq, Task]:
    chosen: dict[Seq, Task] = {}
    owned: list[Seq] = []
    scan = TaskScan(conv_id=conv_id, after=input_id, limit=PAGE)
    for task in await scan_tasks(storage, scan):
        if task.spawned_by in chosen or (
            task.kind == "generation"
            and input_id in decode(task.state_json, GenerationState).inputs
        ):
            chosen[task.id] = task
            if task.owns is not UNSET:
                owned.append(task.owns)
    for child in owned:
        for task in await scan_tasks(storage, TaskScan(conv_id=child, limit=PAGE)):
            chosen[task.id] = task
            if task.owns is not UNSET:
                owned.append(task.owns)
    return chosen


async def _summed(storage: Storage, tasks: dict[Seq, Task], after: Seq | None) -> Chain:
    spent = NOTHING_SPENT
    reported: dict[Seq, set[int]] = {}
    while True:
        page = await storage.elements(USAGE.address(), ListPage(after=after, limit=PAGE))
        for element in page:
            usage = decode(element.value_json, UsageElement)
            if usage.task in tasks:
                spent += spent_of(usage)
                if usage.kind == "report":
                    reported.setdefault(usage.task, set()).add(usage.attempt)
        if len(page) < PAGE:
            break
        after = page[-1].seq
    figures = {task.id: figures_of(task, reported.get(task.id, ())) for task in tasks.values()}
    for one in figures.values():
        spent += one.spent()
    return Chain(spent=spent, figures=figures)
