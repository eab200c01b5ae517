"""Readiness: what a task waits for now; pure, over task metadata (SC-08, SC-16, SC-21)."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import UNSET, Struct

from perdure.drive.kind import EndsBy, Hold
from perdure.records.seqs import Seq
from perdure.records.tasks import Role, Task

Blocked: TypeAlias = Literal["task", "timer", "poll", "decision", "observer"]


class Ready(Struct, frozen=True, gc=False, kw_only=True):
    """The method to run."""

    method: Literal["effect", "recover", "abort"]


class NotReady(Struct, frozen=True, gc=False, kw_only=True):
    """Why not, and until when if time alone ends it (wall milliseconds)."""

    because: Blocked
    until_ms: int | None = None


def readiness(
    task: Task,
    role: Role,
    *,
    hold: Hold,
    ends_by: EndsBy,
    settled: Callable[[Seq], bool],
    now_ms: int,
    may_poll: bool,
    rearm: bool,
) -> Ready | NotReady:
    """Say what an unowned live task is ready for.

    A marked task is ready for `abort` whatever it depends on (CN-13). `rearm` says that a waiting
    task of an earlier process was not re-armed yet (SC-10).
    """
    if task.abort_requested is not UNSET:
        return Ready(method="abort")
    if role is Role.INFLIGHT:
        return Ready(method="recover")
    if role is Role.WAITING:
        return Ready(method="recover") if rearm else NotReady(because=ends_by)
    if not all(settled(target) for target in task.after):
        return NotReady(because="task")
    if hold.not_before_ms is not None and hold.not_before_ms > now_ms:
        return NotReady(because="timer", until_ms=hold.not_before_ms)
    if hold.needs_poll and not may_poll:
        return NotReady(because="poll")
    return Ready(method="effect")
