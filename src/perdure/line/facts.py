"""What the line knows of kinds: tables of roles, moves and schemas, handed in as data (TK-07)."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from perdure.errors import Rejected
from perdure.records.tasks import Role, Task
from perdure.records.versions import Step, check_steps

NOTHING_MAPPED: Final[Mapping[str, str]] = MappingProxyType({})


class TaskFacts(Struct, frozen=True, kw_only=True):
    """One task kind as the line and the scheduler see it.

    `exchange_root`: a generation; what it spawns is foreground. `answers_call`: while such a task
    of an exchange lives, its call is unresolved. `open_request`: statuses with a request in flight.
    `wakes`: kinds of tasks that wait for one of this kind; its settlement moves the task it was
    spawned for in the same commit, if that one still waits (TK-23). `steps` raise states of
    earlier versions; `mapped` says which status one of an earlier release is now (FM-12, FM-14).
    """

    name: str
    roles: Mapping[str, Role]
    initials: frozenset[str]
    transitions: Mapping[str, frozenset[str]]
    state: type[Struct]
    exchange_root: bool = False
    answers_call: bool = False
    open_request: frozenset[str] = frozenset()
    wakes: frozenset[str] = frozenset()
    steps: tuple[Step, ...] = ()
    mapped: Mapping[str, str] = NOTHING_MAPPED


class ContentFacts(Struct, frozen=True, kw_only=True):
    """One content kind as the line sees it.

    `selects`: inserting it appends it to the context list (CX-01). `answers`: it answers a call of
    an exchange. `asks`: its entries may hold the calls of an exchange. `steps` raise payloads of
    earlier versions (FM-12).
    """

    name: str
    selects: bool
    answers: bool = False
    asks: bool = False
    keyed: bool = False
    meta: type[Struct]
    payload: type[Struct] | None = None
    steps: tuple[Step, ...] = ()


class KindTable:
    """Every registered kind, by name; refuses what could not run."""

    def __init__(self, tasks: Iterable[TaskFacts], contents: Iterable[ContentFacts]) -> None:
        """Check and keep the tables.

        Raises:
            Rejected: `invariant`, naming kind and fault (TK-07, TK-22, CX-23).
        """
        self._tasks: dict[str, TaskFacts] = {}
        self._contents: dict[str, ContentFacts] = {}
        self._roles: dict[tuple[str, str], Role] = {}
        for facts in tasks:
            if facts.name in self._tasks:
                raise Rejected("invariant", f"two task kinds are named {facts.name!r}")
            _check_task_kind(facts)
            self._tasks[facts.name] = facts
            for status, role in facts.roles.items():
                self._roles[facts.name, status] = role
        for content in contents:
            if content.name in self._contents:
                raise Rejected("invariant", f"two content kinds are named {content.name!r}")
            if content.payload is not None:
                check_steps(content.payload, content.steps, f"content kind {content.name!r}")
            self._contents[content.name] = content

    def task(self, name: str) -> TaskFacts | None:
        """Answer a task kind's facts."""
        return self._tasks.get(name)

    def content(self, name: str) -> ContentFacts | None:
        """Answer a content kind's facts."""
        return self._contents.get(name)

    def role(self, kind: str, status: str) -> Role | None:
        """Answer what a status of a kind means, None when either is unknown."""
        return self._roles.get((kind, status))

    def is_live(self, task: Task) -> bool:
        """Say whether a task's status is not terminal."""
        return self._roles.get((task.kind, task.status)) is not Role.TERMINAL

    @property
    def has_older(self) -> bool:
        """Say whether a kind has an earlier version or a status of an earlier release."""
        return any(facts.steps or facts.mapped for facts in self._tasks.values()) or any(
            content.steps for content in self._contents.values()
        )

    def exchange_roots(self) -> tuple[str, ...]:
        """Name the kinds whose newest task per conversation stays resident (RS-02)."""
        return tuple(name for name, facts in self._tasks.items() if facts.exchange_root)


def _check_task_kind(facts: TaskFacts) -> None:
    if not facts.initials:
        _refuse(facts, "it has no initial status")
    for status in facts.initials:
        if facts.roles.get(status) is None:
            _refuse(facts, f"the initial status {status!r} has no role")
    for status, targets in facts.transitions.items():
        _check_moves(facts, status, targets)
    for status, role in facts.roles.items():
        if role is not Role.TERMINAL and not facts.transitions.get(status):
            _refuse(facts, f"the status {status!r} can never end")

    for old, status in facts.mapped.items():
        role = facts.roles.get(status)
        if old in facts.roles or role is None or role is Role.TERMINAL:
            _refuse(facts, f"the status {old!r} of an earlier release is mapped to {status!r}")
    check_steps(facts.state, facts.steps, f"task kind {facts.name!r}")


def _check_moves(facts: TaskFacts, status: str, targets: frozenset[str]) -> None:
    if status not in facts.roles:
        _refuse(facts, f"a transition leaves the unknown status {status!r}")
    if facts.roles[status] is Role.TERMINAL and targets:
        _refuse(facts, f"the terminal status {status!r} has outgoing transitions")
    for target in targets - set(facts.roles):
        _refuse(facts, f"a transition names the unknown status {target!r}")


def _refuse(facts: TaskFacts, fault: str) -> None:
    raise Rejected("invariant", f"task kind {facts.name!r}: {fault}")


@lru_cache(maxsize=256)
def field_names(state: type[Any]) -> Mapping[str, str]:
    """Map a Struct's Python field names to the stored ones."""
    return dict(zip(state.__struct_fields__, state.__struct_encode_fields__, strict=True))
