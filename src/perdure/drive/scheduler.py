"""The scheduler: one per session, serving the union of active drives (seed 3.6).

A sweep reads in order: which marked tasks run here (signal all of them before anything else), which
unowned tasks are ready, which drives are answered, and when the next timer is due. It starts every
ready task within the limits and waits for none; commits, ended claims, timers and freed slots wake
it. It reads task metadata only, never a payload (SC-16).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from typing import Literal, TypeAlias

from msgspec import UNSET, Struct

from perdure.drive.claims import Claim, claims_around
from perdure.drive.foreground import is_foreground, marked, tree_of
from perdure.drive.kind import NO_HOLD, TaskKind
from perdure.drive.limits import Limits
from perdure.drive.outcomes import DriveOutcome, DriveResult, Inspection, Wait, WaitKind
from perdure.drive.readiness import NotReady, Ready, readiness
from perdure.errors import Rejected
from perdure.line.line import Delivery, Line, check_outside
from perdure.ports import Clock
from perdure.records.seqs import Seq
from perdure.records.tasks import Role, Task

_Scope: TypeAlias = tuple[Task, ...]
"""Live tasks by id."""

CANCEL_WAIT_S = 1.0
"""How long close waits for cancelled handlers before it abandons them by name (D08)."""


class CloseReport(Struct, frozen=True, kw_only=True):
    """Which tasks' handlers returned, were cancelled, or were abandoned, by task id.

    `threads` names the threads that still run, each after its tool (SC-26).
    """

    returned: tuple[Seq, ...] = ()
    cancelled: tuple[Seq, ...] = ()
    abandoned: tuple[Seq, ...] = ()
    threads: tuple[str, ...] = ()


class _Drive:
    """One caller's wait: a conversation tree or the session."""

    def __init__(
        self,
        conv_id: Seq | None,
        *,
        poll: bool,
        wait_timers: bool,
        until: Callable[[], bool] | None,
    ) -> None:
        self.conv_id = conv_id
        self.until = until
        self.poll = poll
        self.wait_timers = wait_timers
        # Passes for this drive run under whatever its caller observes (TM-04).
        self.context = copy_context()
        self.answer: asyncio.Future[DriveResult] = asyncio.get_running_loop().create_future()


class Scheduler:
    """Run tasks for whoever drives."""

    def __init__(
        self,
        line: Line,
        kinds: Mapping[str, TaskKind],
        *,
        clock: Clock,
        limits: Limits,
        report: Callable[[BaseException, Seq | None], None],
    ) -> None:
        """Take the line; tasks up to its head now belong to earlier processes (SC-10)."""
        self._line = line
        self._kinds = kinds
        self._clock = clock
        self._limits = limits
        self._report = report
        self._opened_at = line.last_seq
        self._claims: dict[Seq, Claim] = {}
        self._slots: dict[Seq, str] = {}
        self._rearmed: set[Seq] = set()
        self._drives: list[_Drive] = []
        self._wake = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._timer_due: int | None = None
        self._closing = False
        self._stop_listening = line.listen(self._on_commit)
        self._stop_slots = limits.on_release(self._wake.set)
        line.listen_faults(self._fail_drives)

    # Driving.

    async def drive(
        self,
        conv_id: Seq | None,
        *,
        poll_deferred: bool = False,
        wait_timers: bool = True,
        until: Callable[[], bool] | None = None,
    ) -> DriveResult:
        """Run what is ready until the scope is idle, suspended or closed, or `until` holds.

        `until` reads committed state in memory and is asked after every sweep.
        Cancelling the caller ends its wait only (OP-14).

        Raises:
            Faulted: the session stopped while driving (FT-06).
            Rejected: `nested_command`, where it would wait for itself: inside a command (LN-20),
                or inside a call that it would drive.
        """
        if self._line.fault is not None:
            raise self._line.fault
        self.check_free(conv_id)
        if self._closing:
            return DriveResult(outcome=DriveOutcome.CLOSED)
        drive = _Drive(conv_id, poll=poll_deferred, wait_timers=wait_timers, until=until)
        self._drives.append(drive)
        self._wake.set()
        if self._loop is None:
            self._loop = asyncio.create_task(self._run())  # noqa: TID251 - ends with the last drive, joined by close
        try:
            return await drive.answer
        finally:
            if drive in self._drives:
                self._drives.remove(drive)
                self._wake.set()

    def check_free(self, conv_id: Seq | None) -> None:
        """Refuse a wait for a conversation, or the session, from where it could never end.

        Raises:
            Rejected: `nested_command`.
        """
        check_outside(self._line)
        for claim in claims_around():
            if self._claims.get(claim.task_id) is claim and (
                conv_id is None or claim.conv_id in tree_of(conv_id, self._line.residency)
            ):
                raise Rejected(
                    "nested_command",
                    f"task {claim.task_id} cannot wait for the conversation it runs in; "
                    f"accept the input, and whoever drives the task drives that too",
                )

    def inspect(self) -> Inspection:
        """Answer all live tasks by role (OP-04)."""
        by_role: dict[Role, list[Task]] = {role: [] for role in Role}
        for task in self._line.residency.live_tasks():
            role = self._line.kinds.role(task.kind, task.status)
            if role is not None:
                by_role[role].append(task)
        return Inspection(
            start=tuple(by_role[Role.START]),
            inflight=tuple(by_role[Role.INFLIGHT]),
            waiting=tuple(by_role[Role.WAITING]),
        )

    def running(self) -> Mapping[Seq, Claim]:
        """Answer the claims of this process by task id."""
        return dict(self._claims)

    async def _run(self) -> None:
        try:
            while self._drives:
                self._wake.clear()
                if self._line.fault is not None:
                    break
                self._drives[0].context.run(self._pass)
                if not self._drives:
                    break
                await self._wake.wait()
        except Exception as error:  # noqa: BLE001 - a defect here faults the session, it does not vanish
            self._line.stop(error)
        finally:
            self._loop = None
            self._cancel_timer()
            if self._line.fault is not None:
                self._fail_drives()

    def _fail_drives(self) -> None:
        """Tell every driver why the session stopped, and signal what still runs (FT-06)."""
        self._wake.set()
        for claim in self._claims.values():
            claim.fire("close")
        for drive in self._drives:
            if not drive.answer.done():
                assert self._line.fault is not None
                drive.answer.set_exception(self._line.fault)
        self._drives.clear()

    def _on_commit(self, delivery: Delivery) -> None:
        # What a claimed task does to itself changes nothing until its claim is free; anything
        # else may make work ready.
        for task in delivery.tasks:
            if task.id not in self._claims or task.abort_requested is not UNSET:
                self._wake.set()
                return

    def _pass(self) -> None:
        """Sweep once for every drive, and answer those whose condition holds (TM-01)."""
        telemetry = self._line.telemetry
        scopes = {drive.conv_id: self._scope(drive.conv_id) for drive in self._drives}
        if not telemetry.is_on:
            self._sweep(scopes)
            self._answer_drives(scopes)
            return
        drives, claims = len(self._drives), len(self._claims)
        with telemetry.span("harness.drive", drives=drives, live=len(_union(scopes))) as span:
            self._sweep(scopes)
            span.set(launched=len(self._claims) - claims)
            self._answer_drives(scopes)
            span.set(answered=drives - len(self._drives))

    # The sweep.

    def _scope(self, conv_id: Seq | None) -> _Scope:
        """Answer the live tasks of a conversation's tree, or of the session, by id."""
        held = self._line.residency
        if conv_id is None:
            return held.live_tasks()
        tree = tree_of(conv_id, held)
        if len(tree) == 1:
            return held.live_tasks(conv_id)
        return tuple(sorted((task for one in tree for task in held.live_tasks(one)), key=_by_id))

    def _sweep(self, scopes: Mapping[Seq | None, _Scope]) -> None:
        held = self._line.residency
        scoped = _union(scopes)
        for task in scoped:
            claim = self._claims.get(task.id)
            if claim is not None and task.abort_requested is not UNSET and not claim.signalled:
                claim.fire("abort")
        next_due: int | None = None
        for task in scoped:
            if task.id in self._claims or self._closing or held.task(task.id) is not task:
                continue
            state = self._readiness(task)
            if isinstance(state, Ready):
                self._launch(task, state.method)
            elif state.until_ms is not None:
                next_due = state.until_ms if next_due is None else min(next_due, state.until_ms)
        self._arm_timer(next_due)

    def _readiness(self, task: Task) -> Ready | NotReady:
        kind = self._kinds[task.kind]
        role = kind.facts.roles[task.status]
        if task.abort_requested is not UNSET and self._has_marked_descendants(task):
            return NotReady(because="task")
        return readiness(
            task,
            role,
            hold=kind.hold(task) if role is Role.START else NO_HOLD,
            ends_by=kind.ends_by.get(task.status, "observer"),
            settled=self._settled,
            now_ms=self._clock.now_ms(),
            may_poll=any(drive.poll for drive in self._drives),
            rearm=task.id <= self._opened_at and task.id not in self._rearmed,
        )

    def _settled(self, task_id: Seq) -> bool:
        # Every live task is resident, so one that is not has settled (SC-17).
        task = self._line.residency.task(task_id)
        return task is None or not self._line.residency.is_live(task)

    def _has_marked_descendants(self, task: Task) -> bool:
        """Say whether an owner must still wait for its marked descendants (CN-15)."""
        if task.owns is UNSET:
            return False
        held = self._line.residency
        return any(marked(held.live_tasks(conv_id)) for conv_id in tree_of(task.owns, held))

    def _launch(self, task: Task, method: Literal["effect", "recover", "abort"]) -> None:
        kind = self._kinds[task.kind]
        slot = kind.slots.get(task.status) if method != "abort" else None
        if slot is not None:
            if not self._limits.take(slot):
                return
            self._slots[task.id] = slot
        if kind.facts.roles[task.status] is Role.WAITING:
            self._rearmed.add(task.id)
        claim = Claim(
            task,
            kind,
            line=self._line,
            clock=self._clock,
            report=self._report,
        )
        self._claims[task.id] = claim
        claim.launch(task, method, self._free)

    def _free(self, claim: Claim) -> None:
        # Only who holds the task gives it back: a newer claim keeps its slot (SC-14).
        if self._claims.get(claim.task_id) is claim:
            del self._claims[claim.task_id]
            slot = self._slots.pop(claim.task_id, None)
            if slot is not None:
                self._limits.release(slot)
        self._wake.set()
        if self._line.fault is not None:
            self._fail_drives()

    # Timers.

    def _arm_timer(self, due_ms: int | None) -> None:
        if due_ms == self._timer_due:
            return
        self._cancel_timer()
        if due_ms is not None:
            self._timer_due = due_ms
            self._timer = asyncio.create_task(self._tick(due_ms))  # noqa: TID251 - cancelled by _cancel_timer

    async def _tick(self, due_ms: int) -> None:
        await self._clock.sleep(max(0, due_ms - self._clock.now_ms()))
        self._timer = None
        self._timer_due = None
        self._wake.set()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_due = None

    # Answers.

    def _answer_drives(self, scopes: Mapping[Seq | None, _Scope]) -> None:
        for drive in tuple(self._drives):
            result = self._result(drive, scopes[drive.conv_id])
            if result is not None and not drive.answer.done():
                drive.answer.set_result(result)
                self._drives.remove(drive)

    def _result(self, drive: _Drive, scope: _Scope) -> DriveResult | None:
        if drive.until is not None and drive.until():
            return DriveResult(outcome=DriveOutcome.IDLE)
        if not any(self._is_needed(task, drive.conv_id) for task in scope):
            return DriveResult(outcome=DriveOutcome.IDLE)
        return self._suspension(drive, scope)

    def _is_needed(self, task: Task, conv_id: Seq | None) -> bool:
        """Say whether a drive of a conversation, or of the session, goes on for this task."""
        if conv_id is None or task.abort_requested is not UNSET:
            return True
        line = self._line
        return task.conv_id == conv_id and is_foreground(task, line.kinds, line.residency)

    def _suspension(self, drive: _Drive, scope: _Scope) -> DriveResult | None:
        """Answer suspended when nothing in scope can move by itself, else None (OP-10)."""
        waits: list[Wait] = []
        next_at: int | None = None
        for task in scope:
            if task.id in self._claims:
                return None
            state = self._readiness(task)
            if isinstance(state, Ready):
                return None
            if state.because == "observer" or (state.because == "timer" and drive.wait_timers):
                return None
            if state.until_ms is not None:
                next_at = state.until_ms if next_at is None else min(next_at, state.until_ms)
            if state.because != "task":
                waits.append(
                    Wait(
                        kind=_wait_kind(state.because),
                        task=task.id,
                        conv=task.conv_id,
                        until=state.until_ms,
                    )
                )
        if not waits:
            waits = [Wait(kind="outside", task=task.id, conv=task.conv_id) for task in scope]
        return DriveResult(
            outcome=DriveOutcome.SUSPENDED, waiting_for=tuple(waits), next_at=next_at
        )

    # Closing.

    async def drain(self, *, ms: int) -> None:
        """Launch nothing more; wait up to `ms` of the clock for what runs to settle (OP-27)."""
        self._closing = True
        pending: set[asyncio.Task[None]] = {
            claim.runner for claim in self._claims.values() if claim.runner is not None
        }
        if ms <= 0 or not pending:
            return
        timer = asyncio.create_task(self._clock.sleep(ms))  # noqa: TID251 - ended below
        while pending and not timer.done():
            await asyncio.wait({*pending, timer}, return_when=asyncio.FIRST_COMPLETED)
            pending = {one for one in pending if not one.done()}
        timer.cancel()
        await asyncio.wait({timer})

    async def close(self, *, grace_s: float | None) -> CloseReport:
        """Signal every invocation, wait up to the grace, cancel, and name what is left (D08)."""
        self._closing = True
        self._stop_listening()
        self._stop_slots()
        self._cancel_timer()
        for drive in self._drives:
            if not drive.answer.done():
                drive.answer.set_result(DriveResult(outcome=DriveOutcome.CLOSED))
        self._drives.clear()
        self._wake.set()
        if self._loop is not None:
            await self._loop
        claims = {claim.runner: claim for claim in self._claims.values() if claim.runner}
        for claim in claims.values():
            claim.fire("close")
        pending = set(claims)
        if pending:
            _, pending = await asyncio.wait(pending, timeout=grace_s)
        left_behind = {runner for runner in pending if claims[runner].cancel()}
        stuck: set[asyncio.Task[None]] = set()
        if pending:
            _, stuck = await asyncio.wait(pending, timeout=CANCEL_WAIT_S)
        stuck |= left_behind
        return CloseReport(
            returned=_ids(claims, set(claims) - pending),
            cancelled=_ids(claims, pending - stuck),
            abandoned=_ids(claims, stuck),
        )


def _union(scopes: Mapping[Seq | None, _Scope]) -> _Scope:
    """Answer the tasks of every scope once, by id."""
    if len(scopes) == 1:
        return next(iter(scopes.values()))
    tasks = {task.id: task for scope in scopes.values() for task in scope}
    return tuple(sorted(tasks.values(), key=_by_id))


def _by_id(task: Task) -> Seq:
    return task.id


def _ids(
    claims: Mapping["asyncio.Task[None]", Claim], runners: Iterable["asyncio.Task[None]"]
) -> tuple[Seq, ...]:
    return tuple(sorted(claims[runner].task_id for runner in runners))


def _wait_kind(because: str) -> WaitKind:
    match because:
        case "decision" | "poll" | "timer":
            return because
        case _:
            return "outside"
