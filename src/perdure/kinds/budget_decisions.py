"""What a person's decision on a budget does, in the decision's own commit (BG-06, BG-12)."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from perdure.errors import Rejected
from perdure.kinds.inputs import read_record
from perdure.kinds.services import Services
from perdure.line.command import Command
from perdure.records.addresses import input_record
from perdure.records.approvals import Decision
from perdure.records.budgets import Budget, Reached, raised
from perdure.records.codec import decode_json
from perdure.records.seqs import Seq
from perdure.records.tasks import Task


async def decide_budget(
    tx: Command,
    services: Services,
    approval_id: Seq,
    asked: Mapping[str, Any],
    decision: Decision,
) -> list[Task]:
    """Raise the budget that a question is about, or let it fail from now on.

    An input's budget is stored and replaced here; a session's holds for this process and changes
    when the decision is committed. Answers the other questions that this one settles: each tree
    asks about a session's budget by itself, and one decision is for all of them.

    Raises:
        Rejected: `invariant`, for a grant that raises nothing, or not far enough.
    """
    reached = msgspec.convert(asked, Reached)
    if reached.input_id is None:
        return _decide_session(services, approval_id, reached, decision)
    record = await read_record(tx, reached.input_id)
    if isinstance(record.budget, Budget):
        budget = _decided(record.budget, reached, decision)
        tx.set_value(input_record(reached.input_id), msgspec.structs.replace(record, budget=budget))
    return []


def _decide_session(
    services: Services, approval_id: Seq, reached: Reached, decision: Decision
) -> list[Task]:
    ledger = services.ledger
    others = [
        task
        for task in ledger.questions(None)
        if task.id != approval_id and task.status == "waiting"
    ]
    if ledger.budget is not None:
        budget = _decided(ledger.budget, reached, decision)
        ledger.settle_with([approval_id, *(task.id for task in others)], budget)
    return others


def _decided(budget: Budget, reached: Reached, decision: Decision) -> Budget:
    if decision.decision == "deny":
        return msgspec.structs.replace(budget, on_limit="fail")
    changes = _changes(decision)
    if changes:
        return raised(budget, changes)
    limit = budget.limit(reached.field)
    if limit is None or f"{limit:f}" != reached.limit:
        return budget
    raise Rejected(
        "invariant",
        f"a grant must say how far: {reached.sentence}; "
        f'give details such as {{"raise": {{"{reached.field}": …}}}}',
        {"field": reached.field, "limit": reached.limit, "spent": reached.spent},
    )


def _changes(decision: Decision) -> Mapping[str, Any]:
    """Answer what `details` say under `raise`."""
    details: object = None
    if isinstance(decision.details, msgspec.Raw):
        details = decode_json(decision.details)
    given = cast("dict[str, Any]", details).get("raise") if isinstance(details, dict) else None
    if given is not None and not isinstance(given, dict):
        raise Rejected(
            "invariant", f'the raise {given!r} is no table of limits, such as {{"cost": "2.00"}}'
        )
    return cast("dict[str, Any]", given) if given else {}
