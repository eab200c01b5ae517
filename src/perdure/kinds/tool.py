"""A tool call: admission, execution, its own result, and nothing else (seed 3.10).

It reads no sibling, drains no queue and creates no generation (TL-11). Effective arguments and the
replay declaration are committed with `running` before anything runs (TL-07); an interrupted call
runs again only when both the stored and the current declaration are `safe` (TL-15).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Struct

from perdure.drive.context import TaskContext
from perdure.drive.kind import NO_HOLD, EndsBy, Hold, Slot
from perdure.errors import Interrupted, InvalidArguments, PerdureError, ToolFailed, text_of
from perdure.kinds.admission import Admitted, Asking, admit, hold_call
from perdure.kinds.budgets import Allowance, Watch, start
from perdure.kinds.hook_points import after_tool
from perdure.kinds.launching import LaunchedCalls
from perdure.kinds.reader import ConversationView
from perdure.kinds.services import Services
from perdure.kinds.sink import TaskSink, reduced_output, stored_checkpoint, stored_output
from perdure.kinds.states import ToolState
from perdure.kinds.steps import held_loop, stepped
from perdure.kinds.tool_settlement import (
    CallResult,
    as_shown,
    error_result,
    settle_call,
    tool_state,
    with_patches,
)
from perdure.line.buffer import CommittedReads
from perdure.line.facts import TaskFacts
from perdure.ports import LaunchingTool, Replay, Threads, Tool
from perdure.records.budgets import Reached
from perdure.records.codec import encode
from perdure.records.launches import LaunchRef
from perdure.records.messages import AssistantPayload, TextPart, ToolCallPart, read_payload
from perdure.records.scratch import ToolScratch
from perdure.records.seqs import Seq
from perdure.records.strict_json import repair_text
from perdure.records.tasks import Role, Task

T = TypeVar("T")

DEFAULT_OUTPUT_BYTES: Final = 65_536


class _DefaultOutput(Struct, frozen=True):
    """The cap of an interrupted call whose tool is gone."""

    retain: str = "tail"
    bytes_max: int = DEFAULT_OUTPUT_BYTES


class CallContext(Struct, frozen=True, kw_only=True):
    """What a running tool is given (`ports.ToolContext`)."""

    signal: Any
    invocation_id: Seq
    call_id: str
    conv: ConversationView
    out: TaskSink
    resources: Mapping[str, object]
    threads: Threads


class CallThreads:
    """Threads for one call: an abort waits for what runs on them (CN-11, SC-26)."""

    def __init__(self, ctx: TaskContext, threads: Threads) -> None:
        """Bind the host's threads to the call."""
        self._ctx = ctx
        self._threads = threads

    async def run(self, name: str, work: Callable[[], T]) -> T:
        """Run blocking work on a daemon thread of that name."""
        return await self._ctx.unstoppable(self._threads.run(name, work))

    def stuck(self) -> Sequence[str]:
        """Name the abandoned threads that still run."""
        return self._threads.stuck()


class ToolCall:
    """The tool kind."""

    facts: TaskFacts = TaskFacts(
        name="tool",
        roles={
            "planned": Role.START,
            "truncated": Role.START,
            "finishing": Role.START,
            "running": Role.INFLIGHT,
            "waiting": Role.WAITING,
            "done": Role.TERMINAL,
            "aborted": Role.TERMINAL,
        },
        initials=frozenset({"planned", "truncated"}),
        transitions={
            "planned": frozenset({"waiting", "running", "done", "aborted"}),
            "truncated": frozenset({"done", "aborted"}),
            "running": frozenset({"finishing", "done", "aborted", "planned"}),
            "waiting": frozenset({"planned", "done", "aborted"}),
            "finishing": frozenset({"done", "aborted"}),
        },
        state=ToolState,
        answers_call=True,
    )
    slots: Mapping[str, Slot] = MappingProxyType({"planned": "tools", "running": "tools"})
    ends_by: Mapping[str, EndsBy] = MappingProxyType({"waiting": "task"})

    def __init__(self, services: Services) -> None:
        """Take the host's services."""
        self._services = services
        self._launched = LaunchedCalls(services)
        # Asked once a tool: telling by a protocol what a tool can do costs more than a small call.
        self._launching = {
            name: tool for name, tool in services.tools.items() if isinstance(tool, LaunchingTool)
        }

    def hold(self, task: Task) -> Hold:
        """Answer nothing: only its dependencies hold it."""
        return NO_HOLD

    async def effect(self, task: Task, ctx: TaskContext) -> None:
        """Run the call, or say why it does not run."""
        state = tool_state(task)
        if task.status == "truncated":
            await settle_call(
                ctx,
                self._services,
                error_result(
                    "notStarted", "not executed: the reply ended before this call was complete"
                ),
            )
            return
        call = await self._call_part(task, ctx, state)
        admission = await admit(ctx, self._services, task, call)
        if isinstance(admission, Asking) and state.attempt == 1:
            over = await hold_call(ctx, self._services, admission)
            if over is not None:
                await self._over_budget(ctx, state, over)
        elif isinstance(admission, Admitted):
            await self._run(ctx, state, call, admission)
        else:
            tool = self._services.tools.get(state.name)
            await self._refuse(ctx, tool, state, admission)

    async def _refuse(
        self, ctx: TaskContext, tool: Tool | None, state: ToolState, refusal: CallResult | Asking
    ) -> None:
        """Settle a call that may not run; one that ran before a crash was interrupted (FM-07)."""
        if state.attempt > 1 or isinstance(refusal, Asking):
            refusal = await self._interrupted(ctx, tool, attempt=state.attempt - 1)
        await settle_call(ctx, self._services, refusal)

    async def _over_budget(self, ctx: TaskContext, state: ToolState, over: Reached) -> None:
        """Settle a call that its budget does not let start (BG-07)."""
        unrun = error_result("notStarted", f"not executed: {over.sentence}")
        await self._refuse(ctx, self._services.tools.get(state.name), state, unrun)

    async def recover(self, task: Task, ctx: TaskContext) -> None:
        """Take up an interrupted call: its command's true end, another run, or interrupted."""
        if task.status != "running":
            return
        state = tool_state(task)
        tool = self._services.tools.get(state.name)
        if await self._settle_launched(task, ctx, tool, state):
            return
        if state.replay == "safe" and tool is not None and tool.replay == "safe":
            await ctx.patch(
                status="planned",
                attempt=state.attempt + 1,
                shows=ctx.shown(
                    "reset",
                    await reduced_output(ctx.line, ctx.task_id, attempt=state.attempt + 1),
                ),
            )
            return
        result = await self._interrupted(ctx, tool, attempt=state.attempt)
        await settle_call(ctx, self._services, result)

    async def reduce(self, task: Task, reads: CommittedReads) -> ToolScratch | None:
        """Answer the end of the call's output, and its last checkpoint (D26)."""
        return await reduced_output(reads, task.id, attempt=tool_state(task).attempt)

    async def abort(self, task: Task, ctx: TaskContext) -> None:
        """Settle a marked call: interrupted when it ran, not started when it never did (TL-18)."""
        state = tool_state(task)
        tool = self._services.tools.get(state.name)
        if task.status == "running":
            if not await self._settle_launched(task, ctx, tool, state):
                result = await self._interrupted(ctx, tool, attempt=state.attempt)
                await settle_call(ctx, self._services, result)
            return
        unrun = error_result("notStarted", "not executed: the run was aborted before this call")
        await self._refuse(ctx, tool, state, unrun)

    async def _settle_launched(
        self, task: Task, ctx: TaskContext, tool: Tool | None, state: ToolState
    ) -> bool:
        """Settle a call by what became of its command; says whether there is one (TL-33)."""
        if state.launch is UNSET or self._services.processes is None:
            return False
        call = await self._call_part(task, ctx, state)
        args = state.args if state.args is not UNSET else _args(call)
        context = self._context(ctx, state, self._sink(ctx, tool, state))
        result = await self._launched.recover(ctx, tool, context, args, state.launch)
        if task.abort_requested is UNSET:
            result = await self._observed(ctx, tool, result)
        await settle_call(ctx, self._services, result)
        await self._launched.forget(state.launch)
        return True

    # Before it runs.

    async def _call_part(self, task: Task, ctx: TaskContext, state: ToolState) -> ToolCallPart:
        assert task.at_entry is not UNSET
        entry = await ctx.line.entry(task.at_entry)
        assert entry is not None
        assert entry.payload_json is not UNSET
        message = read_payload(entry.payload_json, AssistantPayload).message
        return message.calls[state.call_index]

    # Running.

    def _intent(self, call: ToolCallPart, admitted: Admitted) -> dict[str, Any]:
        """Answer what is captured with `running`: replay, flag, changed arguments (TL-07)."""
        facts: dict[str, Any] = {"replay": admitted.tool.replay}
        if admitted.allowed_by is not None:
            facts["allowed_by"] = admitted.allowed_by
        if call.args is UNSET or encode(admitted.args) != encode(call.args):
            facts["args"] = admitted.args
        return facts

    async def _run(
        self, ctx: TaskContext, state: ToolState, call: ToolCallPart, admitted: Admitted
    ) -> None:
        tool, args = admitted.tool, admitted.args
        launching = tool.name in self._launching
        facts = self._intent(call, admitted)
        if launching:
            facts["launch"] = self._launched.place(ctx)
        # The intent of an effect not declared safe is on disk before the effect (BR-02).
        allowance = await start(ctx, self._services, barrier=_needs_barrier(tool.replay), **facts)
        if isinstance(allowance, Reached):
            await self._over_budget(ctx, state, allowance)
        if not isinstance(allowance, Allowance):
            return
        sink = self._sink(ctx, tool, state)
        context = self._context(ctx, state, sink)
        try:
            with ctx.span("tool.execute", name=tool.name, call_index=state.call_index) as span:
                if launching:
                    launch: LaunchRef = facts["launch"]
                    result = await self._launched.run(
                        ctx,
                        self._launching[tool.name],
                        context,
                        args,
                        launch,
                        time_limit=allowance.time_limit,
                    )
                else:
                    watch = Watch(allowance.time_limit)
                    result = await self._execute(ctx, tool, context, args, watch)
                written = 0 if result.window is None else result.window.total
                span.set(bytes=written, is_error=result.is_error, outcome=result.outcome)
        except Interrupted as interruption:
            if interruption.reason == "abort":
                await sink.flush()
            elif launching:
                await self._launched.stop(facts["launch"])
            return
        finally:
            sink.end()
        result = await self._observed(ctx, tool, result)
        await settle_call(ctx, self._services, result)
        if launching:
            await self._launched.forget(facts["launch"])

    async def _observed(
        self, ctx: TaskContext, tool: Tool | None, result: CallResult
    ) -> CallResult:
        """Show what a call ended with to after_tool; cut off, the true result stays (D17, D22)."""
        if result.outcome != "finished" or not self._services.hooks.at("after_tool"):
            return result
        try:
            shown = await after_tool(ctx, self._services, await ctx.task(), as_shown(result))
        except Interrupted:
            return result
        policy: Any = _DefaultOutput() if tool is None else tool.output
        return with_patches(result, shown, policy)

    async def _execute(
        self,
        ctx: TaskContext,
        tool: Tool,
        context: CallContext,
        args: Mapping[str, Any],
        watch: Watch,
    ) -> CallResult:
        sink = context.out
        work = stepped(
            partial(tool.execute, args, context),
            self._services.clock,
            lambda held_ms: self._services.report(
                held_loop(f"the tool {tool.name!r}", held_ms), ctx.task_id
            ),
        )
        call = ctx.start(work)
        watch.over(ctx, call)
        try:
            answer = await sink.pump.join(ctx, call)
        except Exception as error:  # noqa: BLE001 - tool execute: whatever it raises is its result
            if watch.fired is not None and ctx.signal.reason is None:
                return stopped_call(watch.fired, sink)
            return _raised(error, ctx, sink)
        if answer is not None:
            text = f"the tool answered a {type(answer).__name__}, which means nothing"
            return error_result("finished", text, window=sink.window)
        return finished_call(sink)

    def _sink(self, ctx: TaskContext, tool: Tool | None, state: ToolState) -> TaskSink:
        policy: Any = tool.output if tool is not None else _DefaultOutput()
        return TaskSink(ctx, policy, attempt=state.attempt, secrets=self._services.secrets)

    def _context(self, ctx: TaskContext, state: ToolState, sink: TaskSink) -> CallContext:
        return CallContext(
            signal=ctx.signal,
            invocation_id=ctx.task_id,
            call_id=state.call_id,
            conv=ConversationView(ctx.line, ctx.conv_id),
            out=sink,
            resources=self._services.resources,
            threads=CallThreads(ctx, self._services.threads),
        )

    async def _interrupted(
        self, ctx: TaskContext, tool: Tool | None, *, attempt: int
    ) -> CallResult:
        """Say that the call was cut while it ran, with its last checkpoint (TL-16, BB-02)."""
        policy: Any = tool.output if tool is not None else _DefaultOutput()
        return error_result(
            "interrupted",
            "interrupted: the call was stopped while it ran; it may have had effects",
            window=await stored_output(ctx, policy, attempt=attempt),
            checkpoint=await stored_checkpoint(ctx),
        )


def _needs_barrier(replay: Replay) -> bool:
    return replay != "safe"


def _args(call: ToolCallPart) -> Mapping[str, Any]:
    return {} if call.args is UNSET else call.args


def finished_call(sink: TaskSink) -> CallResult:
    """Make the result of a call that ran to its end."""
    return CallResult(
        outcome="finished",
        parts=sink.parts(),
        is_error=sink.is_error,
        details=sink.details_json,
        window=sink.window,
        sink=sink,
    )


def stopped_call(reached: Reached, sink: TaskSink) -> CallResult:
    """Make the result of a call that its budget's time ended, with what it had written (BG-09)."""
    result = error_result("finished", f"stopped: {reached.sentence}", window=sink.window)
    return msgspec.structs.replace(result, sink=sink, details=sink.details_json)


def _raised(error: Exception, ctx: TaskContext, sink: TaskSink) -> CallResult:
    """Make the result of what a tool raised (TL-09); after the signal it was cut off (TL-10)."""
    if ctx.signal.reason is not None:
        raise Interrupted(ctx.signal.reason) from error
    return failed_call(error, sink)


def failed_call(error: Exception, sink: TaskSink) -> CallResult:
    """Make the result of a call whose tool raised: the message, and what it had written."""
    plain = isinstance(error, ToolFailed | InvalidArguments | PerdureError)
    text = text_of(error) if plain else f"{type(error).__name__}: {text_of(error)}"
    clean, repairs = repair_text(text)
    sink.repairs += repairs
    parts = (TextPart(text=clean or type(error).__name__),)
    written = (TextPart(text=f"output until then:\n{sink.window.shown()}"),)
    return CallResult(
        outcome="finished",
        parts=(*parts, *written, *sink.images) if sink.window.total else (*parts, *sink.images),
        is_error=True,
        details=sink.details_json,
        window=sink.window,
        sink=sink,
    )
