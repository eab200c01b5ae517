"""A task kind whose methods a test writes, to see what the scheduler does with tasks."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from perdure.drive.context import TaskContext
from perdure.drive.kind import EndsBy, Hold, Slot
from perdure.line.command import Command
from perdure.line.facts import TaskFacts
from perdure.records.codec import decode
from perdure.records.seqs import Seq
from perdure.records.tasks import Role, Task
from tests.engine import Engine

Body: TypeAlias = Callable[[Task, TaskContext], Awaitable[None]]


class ChoreState(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A chore's name, when it may start, and a note."""

    v: Literal[1] = 1
    name: str = ""
    not_before: int | UnsetType = UNSET
    polls: bool = False
    note: str | UnsetType = UNSET


FACTS = TaskFacts(
    name="chore",
    roles={
        "planned": Role.START,
        "running": Role.INFLIGHT,
        "waiting": Role.WAITING,
        "asking": Role.WAITING,
        "done": Role.TERMINAL,
        "aborted": Role.TERMINAL,
    },
    initials=frozenset({"planned", "running", "waiting", "asking"}),
    transitions={
        "planned": frozenset({"planned", "running", "waiting", "done", "aborted"}),
        "running": frozenset({"running", "planned", "waiting", "done", "aborted"}),
        "waiting": frozenset({"waiting", "planned", "done", "aborted"}),
        "asking": frozenset({"planned", "done", "aborted"}),
    },
    state=ChoreState,
)


CALLS_MAX = 500
"""More calls than any test makes: a scheduler that spins fails instead of hanging."""


class Chores:
    """The chore kind; `bodies` are keyed by `name` or `name.method`."""

    facts: TaskFacts = FACTS
    slots: Mapping[str, Slot] = MappingProxyType({"planned": "tools", "running": "tools"})
    ends_by: Mapping[str, EndsBy] = MappingProxyType({"waiting": "observer", "asking": "decision"})

    def __init__(self, **bodies: Body) -> None:
        self.bodies = bodies
        self.calls: list[tuple[str, str]] = []
        self.holds = 0
        self.running = 0
        self.most_running = 0

    def hold(self, task: Task) -> Hold:
        self.holds += 1
        state = decode(task.state_json, ChoreState)
        return Hold(
            not_before_ms=None if state.not_before is UNSET else state.not_before,
            needs_poll=state.polls,
        )

    async def effect(self, task: Task, ctx: TaskContext) -> None:
        await self._run("effect", task, ctx)

    async def recover(self, task: Task, ctx: TaskContext) -> None:
        await self._run("recover", task, ctx)

    async def abort(self, task: Task, ctx: TaskContext) -> None:
        await self._run("abort", task, ctx)

    async def _run(self, method: str, task: Task, ctx: TaskContext) -> None:
        name = decode(task.state_json, ChoreState).name
        self.calls.append((method, name))
        assert len(self.calls) < CALLS_MAX, "the scheduler runs one task again and again"
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            body = self.bodies.get(f"{name}_{method}") or self.bodies.get(
                name if method == "effect" else ""
            )
            if body is not None:
                await body(task, ctx)
            else:
                await ctx.settle("aborted" if method == "abort" else "done")
        finally:
            self.running -= 1


async def plan(
    engine: Engine,
    *names: str,
    conv_id: Seq | None = None,
    status: str = "planned",
    after: Sequence[Seq] = (),
    spawned_by: Seq | UnsetType = UNSET,
    **state: Any,
) -> list[Seq]:
    """Create one chore a name, in one command; answers their ids."""
    conv = conv_id or (await engine.harness.root()).id
    ids: list[Seq] = []

    def build(tx: Command) -> None:
        ids.extend(
            tx.insert_task(
                conv,
                "chore",
                ChoreState(name=name, **state),
                status=status,
                after=after,
                spawned_by=spawned_by,
            )
            for name in names
        )

    await engine.line.submit(build)
    return ids


async def new_conversation(engine: Engine) -> Seq:
    """Create another conversation without an owner, as a fork's tree is separate."""
    ids: list[Seq] = []

    def build(tx: Command) -> None:
        ids.append(tx.insert_conversation())

    await engine.line.submit(build)
    return ids[0]


async def mark(engine: Engine, *ids: Seq) -> None:
    """Mark tasks as an abort does."""

    def build(tx: Command) -> None:
        for task_id in ids:
            tx.mark_abort(task_id)

    await engine.line.submit(build)


async def statuses(engine: Engine, *ids: Seq) -> list[str]:
    """Answer the stored statuses."""
    found = await engine.storage.inner.tasks(ids)
    return [found[task_id].status for task_id in ids]


def stated(task: Task) -> ChoreState:
    """Decode a chore's state."""
    return msgspec.json.decode(task.state_json, type=ChoreState)
