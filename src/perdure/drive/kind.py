"""The contract of a task kind: what the scheduler runs (seed 3.3, `docs/internals/KINDS.md`).

A kind is data (its `TaskFacts`: roles, moves, schema) and three methods that never call one
another: `effect` starts work or finishes a local step, `recover` is for work that an earlier
process began, `abort` ends a cancelled task. Each commits and returns; none waits for another
task (TK-11). An exception that a kind did not classify is a defect and faults the session (TK-18).
"""

from collections.abc import Mapping
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from perdure.drive.context import TaskContext
from perdure.line.buffer import CommittedReads
from perdure.line.facts import TaskFacts
from perdure.records.tasks import Task

Slot: TypeAlias = Literal["generations", "tools", "jobs"]
EndsBy: TypeAlias = Literal["decision", "observer", "task"]


class Hold(Struct, frozen=True, gc=False, kw_only=True):
    """What keeps a `start` task from running besides its dependencies.

    `not_before_ms` is wall time; `needs_poll` asks for a drive that permits deferred polls.
    """

    not_before_ms: int | None = None
    needs_poll: bool = False


NO_HOLD: Final = Hold()


class TaskKind(Protocol):
    """One kind of task."""

    @property
    def facts(self) -> TaskFacts:
        """Answer the kind's table, handed to the line as data."""
        ...

    @property
    def slots(self) -> Mapping[str, Slot]:
        """Map statuses to the process-local slot their handler takes (SC-23)."""
        ...

    @property
    def ends_by(self) -> Mapping[str, EndsBy]:
        """Say for each waiting status what ends it (D23)."""
        ...

    def hold(self, task: Task) -> Hold:
        """Answer what keeps a start task from running now; reads its state, never a payload."""
        ...

    async def effect(self, task: Task, ctx: TaskContext) -> None:
        """Run a ready `start` task."""
        ...

    async def recover(self, task: Task, ctx: TaskContext) -> None:
        """Take up an `inflight` task nobody here runs, or re-arm a `waiting` one after open."""
        ...

    async def abort(self, task: Task, ctx: TaskContext) -> None:
        """Settle a marked task; its own invocation has ended."""
        ...


@runtime_checkable
class Reduces(Protocol):
    """A kind whose live tasks have something to show: what a watch's base carries (D26, X22)."""

    async def reduce(self, task: Task, reads: CommittedReads) -> object | None:
        """Reduce the pages of a live task's working scope to JSON; None for nothing to show.

        Called on the line, in the step that registers the watch; reads bounded pages and writes
        nothing. What it answers, changed by the kind's deltas, is what it would answer later.
        """
        ...
