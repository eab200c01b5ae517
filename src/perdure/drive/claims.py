"""Claims: who runs a task in this process, from launch to the end of its abort (SC-12, CN-09).

A claim owns at most one invocation at a time. When its task was marked, the same claim joins the
invocation, re-reads the task, and runs `abort` with a fresh signal; so effect and abort of one task
never write at the same time.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Literal, TypeAlias

from msgspec import UNSET, Struct

from perdure.drive.context import TaskContext
from perdure.drive.kind import TaskKind
from perdure.drive.signals import SignalOwner, SignalReason
from perdure.errors import Closed, Faulted, Interrupted
from perdure.line.line import Line
from perdure.ports import Clock
from perdure.records.codec import decode
from perdure.records.seqs import Seq
from perdure.records.tasks import Task

Method: TypeAlias = Literal["effect", "recover", "abort"]


class Claim:
    """Exclusive ownership of one task in this process."""

    def __init__(
        self,
        task: Task,
        kind: TaskKind,
        *,
        line: Line,
        clock: Clock,
        report: Callable[[BaseException, Seq], None],
    ) -> None:
        """Take the task; `run` starts the invocation."""
        self.task_id: Seq = task.id
        self.conv_id: Seq = task.conv_id
        self._kind = kind
        self._line = line
        self._clock = clock
        self._report = report
        self._owner = SignalOwner()
        self._context: TaskContext | None = None
        self._runner: asyncio.Task[None] | None = None
        self._done: Callable[[Claim], None] | None = None
        self._began = False

    @property
    def signalled(self) -> bool:
        """Say whether the running invocation's signal fired."""
        return self._owner.signal.is_set

    def launch(self, task: Task, method: Method, done: Callable[["Claim"], None]) -> None:
        """Start the invocation; `done` is called when the claim is free."""
        self._done = done
        self._runner = asyncio.create_task(self._run(task, method))  # noqa: TID251 - joined by the scheduler

    def fire(self, reason: SignalReason) -> None:
        """Signal the invocation and cancel what it runs outside (D39)."""
        self._owner.fire(reason)
        if self._context is not None:
            self._context.cancel_inner()

    def cancel(self) -> bool:
        """Cancel the invocation itself; only close does so, after its grace (D08).

        Says whether work that nothing can stop is left behind (SC-26).
        """
        left_behind = False
        if self._context is not None:
            left_behind = self._context.abandon()
            self._context.cancel_inner()
        if self._runner is not None:
            self._runner.cancel()
            if not self._began:
                # A coroutine cancelled before its first step never runs, nor says that it ended.
                self._runner.add_done_callback(self._end)
        return left_behind

    def _end(self, _: object = None) -> None:
        if self._done is not None:
            self._done(self)

    @property
    def runner(self) -> "asyncio.Task[None] | None":
        """Answer the asyncio task to join."""
        return self._runner

    async def _run(self, task: Task, method: Method) -> None:
        self._began = True
        _AROUND.set((*_AROUND.get(), self))
        try:
            await self._invoke_joined(task, method)
        finally:
            self._end()

    async def _invoke_joined(self, task: Task, method: Method) -> None:
        failed = await self._observed(task, method)
        if method != "abort" and self._marked():
            if failed is not None:
                self._report(failed, self.task_id)
            self._owner = SignalOwner()
            failed = await self._observed(self._reread(), "abort")
        if failed is not None and self._line.fault is None:
            self._report(failed, self.task_id)
            self._line.stop(failed)

    async def _observed(self, task: Task, method: Method) -> BaseException | None:
        """Run one method under a span, unless its signal fired before it began (TM-03, TM-05)."""
        telemetry = self._line.telemetry
        if not telemetry.is_on or self.signalled:
            return await self._invoke(task, method)
        with telemetry.span(
            f"task.{method}",
            kind=task.kind,
            task=task.id,
            conv=task.conv_id,
            attempt=_attempt(task),
            status_from=task.status,
        ) as span:
            failed = await self._invoke(task, method)
            held = self._line.residency
            after = held.task(task.id) or held.settled_task(task.id)
            if after is not None:
                span.set(status_to=after.status)
            if failed is not None:
                span.set(error=type(failed).__name__)
            return failed

    async def _invoke(self, task: Task, method: Method) -> BaseException | None:
        """Run one method; answers an exception it did not classify (TK-18)."""
        context = TaskContext(task, self._owner.signal, line=self._line, clock=self._clock)
        self._context = context
        try:
            await getattr(self._kind, method)(task, context)
        except (Interrupted, Closed):
            return None
        except Faulted as error:
            self._line.stop(error)
            return None
        except asyncio.CancelledError:
            return None
        except Exception as error:  # noqa: BLE001 - a kind's unexpected exception faults the session (TK-18)
            return error
        finally:
            await context.end()
            self._context = None
        return None

    def _marked(self) -> bool:
        if self._line.fault is not None or self._owner.signal.reason == "close":
            return False
        task = self._line.residency.task(self.task_id)
        return (
            task is not None
            and task.abort_requested is not UNSET
            and self._line.residency.is_live(task)
        )

    def _reread(self) -> Task:
        task = self._line.residency.task(self.task_id)
        assert task is not None
        return task


class _Attempted(Struct):
    """What every state that counts attempts has."""

    attempt: int = 1


def _attempt(task: Task) -> int:
    return decode(task.state_json, _Attempted).attempt


_AROUND: Final[ContextVar[tuple[Claim, ...]]] = ContextVar("perdure_claims_around", default=())


def claims_around() -> tuple[Claim, ...]:
    """Answer the claims whose invocations this code runs in, outermost first; also on a thread."""
    return _AROUND.get()
