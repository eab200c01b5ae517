"""What a drive answers, and what inspect shows (ER-03, ER-10, OP-04)."""

from enum import StrEnum
from typing import Literal, TypeAlias

from msgspec import Struct

from perdure.records.seqs import Seq
from perdure.records.tasks import Task

WaitKind: TypeAlias = Literal["decision", "poll", "timer", "outside"]


class DriveOutcome(StrEnum):
    """How a drive ended."""

    IDLE = "idle"
    SUSPENDED = "suspended"
    CLOSED = "closed"


class Wait(Struct, frozen=True, gc=False, kw_only=True):
    """One task that blocks a suspended drive; `until` is wall milliseconds of a timer."""

    kind: WaitKind
    task: Seq
    conv: Seq
    until: int | None = None


class DriveResult(Struct, frozen=True, gc=False, kw_only=True):
    """The answer of every drive; `next_at` is the earliest `notBefore` in scope."""

    outcome: DriveOutcome
    waiting_for: tuple[Wait, ...] = ()
    next_at: int | None = None


class Inspection(Struct, frozen=True, kw_only=True):
    """All live tasks by durable role, cancellation marks included; starts nothing."""

    start: tuple[Task, ...] = ()
    inflight: tuple[Task, ...] = ()
    waiting: tuple[Task, ...] = ()
