"""Budgets as people meet them: spent against each limit, and raise and continue (BG-11, BG-12).

Reading needs no lock and no engine, so a surface in another process may do it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from perdure.drive.outcomes import DriveResult, Inspection
from perdure.errors import Rejected
from perdure.harness.harness import Harness
from perdure.kinds.approval import approval_state
from perdure.kinds.spending import PAGE, read_chain, scan_tasks
from perdure.kinds.states import GenerationState, PostToolsState
from perdure.ports import Storage
from perdure.records.addresses import input_record
from perdure.records.budgets import FIELDS, Budget, BudgetField, Reached, Spent
from perdure.records.codec import decode
from perdure.records.inputs import InputRecord
from perdure.records.seqs import Seq
from perdure.records.sessions import TaskScan
from perdure.records.tasks import Task


class LimitSpent(Struct, frozen=True, kw_only=True):
    """One limit and what is spent of it, as texts; `unknown` counts what nobody reported."""

    field: BudgetField
    spent: str
    limit: str
    unknown: int = 0


class BudgetSpent(Struct, frozen=True, kw_only=True):
    """One input's budget, limit by limit; `currency` is the cost's."""

    input_id: Seq
    currency: str
    limits: Sequence[LimitSpent]


def against(budget: Budget, spent: Spent) -> Sequence[LimitSpent]:
    """Answer what is spent of each limit of a budget."""
    return [
        LimitSpent(
            field=field,
            spent=f"{spent.of(field, budget.currency):f}",
            limit=f"{limit:f}",
            unknown=spent.unknown(field, budget.currency),
        )
        for field in FIELDS
        if (limit := budget.limit(field)) is not None
    ]


async def budget_spent(storage: Storage, input_id: Seq) -> BudgetSpent | None:
    """Answer an input's budget with what its chain has spent; None when it has none."""
    stored = await storage.value(input_record(input_id).address())
    budget = UNSET if stored is None else decode(stored.value_json, InputRecord).budget
    if not isinstance(budget, Budget):
        return None
    spent = (await read_chain(storage, input_id)).spent
    return BudgetSpent(input_id=input_id, currency=budget.currency, limits=against(budget, spent))


async def open_budgets(storage: Storage) -> Sequence[BudgetSpent]:
    """Answer the budgets of all inputs that live work owes an answer, by input."""
    live = await scan_tasks(storage, TaskScan(live=True, limit=PAGE))
    ids = sorted({input_id for task in live for input_id in _owed(task)})
    found = [await budget_spent(storage, input_id) for input_id in ids]
    return [one for one in found if one is not None]


def _owed(task: Task) -> Iterable[Seq]:
    if task.kind == "generation":
        return decode(task.state_json, GenerationState).inputs
    if task.kind == "post_tools":
        return decode(task.state_json, PostToolsState).inputs
    return ()


def only_budgets(driven: DriveResult, found: Inspection) -> bool:
    """Say whether a suspended drive waits for nothing but budgets."""
    asking = {task.id for task in found.waiting if _asked(task) is not None}
    return bool(driven.waiting_for) and all(wait.task in asking for wait in driven.waiting_for)


async def raise_budgets(harness: Harness, limits: Mapping[str, Any], *, by: str) -> Sequence[Seq]:
    """Grant every question about a budget that these limits raise; answers the approvals (BG-12).

    A question about another limit goes on waiting. The next drive goes on where the work stopped.

    Raises:
        Rejected: `nothing_to_do`, when no budget waits to be raised by one of these limits;
            `invariant`, for a limit that is not above the one it replaces.
    """
    granted: list[Seq] = []
    waiting: list[str] = []
    for task in harness.inspect().waiting:
        asked = _asked(task)
        if asked is None:
            continue
        if asked.field in limits:
            details = {"raise": {asked.field: limits[asked.field]}}
            await harness.decide_approval(task.id, "grant", details=details, by=by)
            granted.append(task.id)
        else:
            waiting.append(asked.sentence)
    if not granted:
        raise nothing_raised(limits, waiting)
    return granted


def nothing_raised(limits: Iterable[str], waiting: Sequence[str]) -> Rejected:
    """Say that no question is about one of these limits; `waiting` are those there are."""
    why = "; ".join(waiting) or "no budget is waited for"
    return Rejected("nothing_to_do", f"{' and '.join(limits)} can raise nothing here: {why}")


def _asked(task: Task) -> Reached | None:
    """Answer what limit an approval asks about, None when it asks about no budget."""
    if task.kind != "approval":
        return None
    asked = approval_state(task).budget
    return None if asked is UNSET else msgspec.convert(asked, Reached)
