"""Calls whose work is one command: launched under a committed place, found again after a crash.

The launch place (folder and nonce) is committed with `running` before anything starts (TL-33).
Recovery asks the host what became of it: it ended, so its true output and exit code are the result;
it was never started, and now cannot; or it is still alive, and its whole group is stopped before
the interrupted result is committed. No process of a call is alive once its result is stored.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from perdure.drive.context import TaskContext
from perdure.errors import Interrupted, ToolFailed, text_of
from perdure.kinds.budgets import TimeLimit
from perdure.kinds.services import Services
from perdure.kinds.sink import TaskSink
from perdure.kinds.tool_settlement import CallResult, error_result
from perdure.ports import LaunchingTool, ProcessHost, Tool, ToolContext
from perdure.records.launches import Exited, LaunchRef, Lost, NeverRan, Running
from perdure.records.messages import TextPart

STOP_GRACE_MS: Final = 5_000
"""Time between TERM and KILL (KT-18)."""

BUDGET_GRACE_MS: Final = 500
"""The same when a budget's time is up, which ends work within a second (BG-09)."""

NONCE_BYTES: Final = 8

STOPPED_LOG_BYTES: Final = 16_384
"""How much of the end of an interrupted command's output is shown."""


class LaunchedCalls:
    """Run, recover and stop the commands of calls."""

    def __init__(self, services: Services) -> None:
        """Take the host's services."""
        self._services = services

    def place(self, ctx: TaskContext) -> LaunchRef:
        """Name a fresh launch of this call."""
        nonce = self._services.randomness.token(NONCE_BYTES)
        return LaunchRef(dir=f"{self._services.session_id}/{ctx.task_id}-{nonce}", nonce=nonce)

    async def run(
        self,
        ctx: TaskContext,
        tool: LaunchingTool,
        context: ToolContext,
        args: Mapping[str, Any],
        ref: LaunchRef,
        *,
        time_limit: TimeLimit | None = None,
    ) -> CallResult:
        """Launch, wait at most the tool's time limit or its budget's, and report the end."""
        host = self._host()
        if host is None:
            return error_result("notStarted", "not executed: this host starts no processes")
        try:
            spec = tool.launch(args, ref)
        except ToolFailed as error:
            return error_result("notStarted", f"not executed: {error}")
        try:
            # A start that is under way runs to its end: taken up before, it would pass for one that
            # never began, and then begin (CN-11).
            started = await ctx.outside(ctx.unstoppable(host.launch(spec)))
        except OSError as error:
            # What became of it is told by its place, not by the error.
            result = await self.recover(ctx, tool, context, args, ref)
            if result.outcome != "notStarted":
                return result
            return error_result("notStarted", f"not executed: it could not be started: {error}")
        if isinstance(started, Exited):
            return await self._report(ctx, tool, context, args, ref, ended=started)
        wait_ms = tool.timeout_ms(args)
        if time_limit is None or wait_ms < time_limit.ms:
            ended, timed_out = await self._wait(ctx, ref, host, wait_ms, grace_ms=STOP_GRACE_MS)
            return await self._report(
                ctx, tool, context, args, ref, ended=ended, timed_out=timed_out
            )
        grace_ms = BUDGET_GRACE_MS
        ended, timed_out = await self._wait(ctx, ref, host, time_limit.ms, grace_ms=grace_ms)
        result = await self._report(ctx, tool, context, args, ref, ended=ended, timed_out=timed_out)
        return _over_budget(result, time_limit) if timed_out else result

    async def recover(
        self,
        ctx: TaskContext,
        tool: Tool | LaunchingTool | None,
        context: ToolContext,
        args: Mapping[str, Any],
        ref: LaunchRef,
    ) -> CallResult:
        """Settle what an earlier process started (K04)."""
        host = self._host()
        assert host is not None
        found = await host.reconcile(ref)
        if isinstance(found, NeverRan):
            return error_result("notStarted", "not executed: the command was never started")
        if isinstance(found, Running):
            found = await host.stop(ref, grace_ms=STOP_GRACE_MS)
            return await self._stopped(host, ref)
        # An earlier recovery, or a close, may have stopped it and died before it could say so.
        was_cut = isinstance(found, Lost) or found.stopped
        if was_cut or not isinstance(tool, LaunchingTool):
            return await self._stopped(host, ref)
        return await self._report(ctx, tool, context, args, ref, ended=found)

    async def stop(self, ref: LaunchRef) -> None:
        """Stop the whole group of a command, if it runs."""
        host = self._host()
        if host is None:
            return
        found = await host.reconcile(ref)
        if isinstance(found, Running):
            await host.stop(ref, grace_ms=STOP_GRACE_MS)

    async def forget(self, ref: LaunchRef) -> None:
        """Remove the folder of a launch whose result is stored."""
        host = self._host()
        if host is not None:
            await host.forget(ref)

    def _host(self) -> ProcessHost | None:
        return self._services.processes

    async def _wait(
        self,
        ctx: TaskContext,
        ref: LaunchRef,
        host: ProcessHost,
        limit_ms: int,
        *,
        grace_ms: int,
    ) -> tuple[Exited | Lost, bool]:
        """Wait for the end, or stop the group at the time limit; says whether it was stopped."""
        waiting = ctx.start(host.wait(ref))
        timer = ctx.start(self._services.clock.sleep(limit_ms))
        await asyncio.wait({waiting, timer}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done() and ctx.signal.reason is None:
            await _cancelled(waiting)
            return await host.stop(ref, grace_ms=grace_ms), True
        await _cancelled(timer)
        return await ctx.join(waiting), False

    async def _report(
        self,
        ctx: TaskContext,
        tool: LaunchingTool,
        context: ToolContext,
        args: Mapping[str, Any],
        ref: LaunchRef,
        *,
        ended: Exited | Lost,
        timed_out: bool = False,
    ) -> CallResult:
        host = self._host()
        assert host is not None
        sink = context.out
        assert isinstance(sink, TaskSink)
        try:
            await ctx.outside(
                tool.report(args, context, ended, timed_out=timed_out, host=host, ref=ref)
            )
        except Interrupted:
            raise
        except Exception as error:  # noqa: BLE001 - tool execute: whatever it raises is its result (TL-09)
            return error_result(
                "finished", f"{type(error).__name__}: {text_of(error)}", window=sink.window
            )
        return CallResult(
            outcome="finished",
            parts=sink.parts(),
            is_error=sink.is_error,
            details=sink.details_json,
            window=sink.window,
            sink=sink,
        )

    async def _stopped(self, host: ProcessHost, ref: LaunchRef) -> CallResult:
        log = await host.log(ref, offset=-STOPPED_LOG_BYTES, limit=STOPPED_LOG_BYTES)
        text = log.decode(errors="replace").replace("\x00", "\u2400")
        return error_result(
            "interrupted",
            "interrupted: the command was cut off while it ran; it may have had effects"
            + (f"\noutput until then:\n{text}" if text else ""),
        )


def _over_budget(result: CallResult, time_limit: TimeLimit) -> CallResult:
    """Say first that the budget's time ended the command."""
    why = TextPart(text=f"stopped: {time_limit.reached.sentence}")
    return msgspec.structs.replace(result, parts=(why, *result.parts), is_error=True)


async def _cancelled(call: "asyncio.Task[Any]") -> None:
    """Cancel an outside call and see it end."""
    call.cancel()
    await asyncio.wait({call})
