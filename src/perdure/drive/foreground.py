"""Foreground, ownership trees and busy: pure readings of live tasks (SC-01 to SC-07)."""

from collections.abc import Iterable

from msgspec import UNSET

from perdure.line.facts import KindTable
from perdure.line.residency import Residency
from perdure.records.seqs import Seq
from perdure.records.tasks import Task


def is_foreground(task: Task, kinds: KindTable, held: Residency) -> bool:
    """Say whether a live task is a generation, or was spawned for one (SC-01)."""
    facts = kinds.task(task.kind)
    if facts is not None and facts.exchange_root:
        return True
    if task.spawned_by is UNSET:
        return False
    spawner = held.task(task.spawned_by)
    spawner_facts = kinds.task(spawner.kind) if spawner is not None else None
    return spawner_facts is not None and spawner_facts.exchange_root


def tree_of(conv_id: Seq, held: Residency) -> tuple[Seq, ...]:
    """Answer a conversation and those reached from it through live owners (SC-07)."""
    tree = [conv_id]
    for current in tree:
        for task in held.live_tasks(current):
            if task.owns is not UNSET:
                tree.append(task.owns)  # noqa: PERF401 - a loop over what it appends to
    return tuple(tree)


def required(conv_id: Seq, kinds: KindTable, held: Residency) -> tuple[Task, ...]:
    """Answer the required foreground of a conversation, closed over what it waits for (SC-02)."""
    found: dict[Seq, Task] = {}
    pending: list[Task] = [
        task for task in held.live_tasks(conv_id) if is_foreground(task, kinds, held)
    ]
    while pending:
        task = pending.pop()
        if task.id in found:
            continue
        found[task.id] = task
        for target in task.after:
            other = held.task(target)
            if other is not None and held.is_live(other):
                pending.append(other)
        if task.owns is not UNSET:
            pending.extend(
                child for child in held.live_tasks(task.owns) if is_foreground(child, kinds, held)
            )
    return tuple(found[seq] for seq in sorted(found))


def marked(tasks: Iterable[Task]) -> bool:
    """Say whether any task is a cancellation target."""
    return any(task.abort_requested is not UNSET for task in tasks)


def is_busy(conv_id: Seq, kinds: KindTable, held: Residency) -> bool:
    """Say whether foreground work or outstanding cancellation remains (SC-03)."""
    if any(is_foreground(task, kinds, held) for task in held.live_tasks(conv_id)):
        return True
    return any(marked(held.live_tasks(member)) for member in tree_of(conv_id, held))
