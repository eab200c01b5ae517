"""The join: one exchange's results are in; decide what follows (seed 3.11).

The only kind that reads sibling tools. It has no outside effect, so it has no in-flight status: its
one command either lands whole or leaves it pending (PT-11).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import UNSET

from perdure.drive.context import TaskContext
from perdure.drive.kind import NO_HOLD, EndsBy, Hold, Slot
from perdure.kinds.exchange import after_cancellation, place_writes, start_generation
from perdure.kinds.inputs import move_inputs, user_meta
from perdure.kinds.queues import place, select
from perdure.kinds.services import Services, captured
from perdure.kinds.settlement import generation_state
from perdure.kinds.states import Handoff, PostToolsState, ToolState
from perdure.line.command import Command
from perdure.line.facts import TaskFacts
from perdure.records.addresses import task_scope
from perdure.records.codec import decode
from perdure.records.messages import UserPayload, text_message
from perdure.records.seqs import Seq
from perdure.records.settings import GenerationSettings
from perdure.records.tasks import Role, Task


class PostTools:
    """The post_tools kind."""

    facts: TaskFacts = TaskFacts(
        name="post_tools",
        roles={"pending": Role.START, "done": Role.TERMINAL, "aborted": Role.TERMINAL},
        initials=frozenset({"pending"}),
        transitions={"pending": frozenset({"done", "aborted"})},
        state=PostToolsState,
    )
    slots: Mapping[str, Slot] = MappingProxyType({})
    ends_by: Mapping[str, EndsBy] = MappingProxyType({})

    def __init__(self, services: Services) -> None:
        """Take the host's services."""
        self._services = services

    def hold(self, task: Task) -> Hold:
        """Answer nothing: only its dependencies hold it."""
        return NO_HOLD

    async def effect(self, task: Task, ctx: TaskContext) -> None:
        """Settle the join and create its successor, in one commit (PT-16)."""
        settings = await self._settings(task, ctx)

        async def build(tx: Command) -> None:
            join = await tx.task(task.id)
            if join.abort_requested is not UNSET:
                await self._aborted(tx, join)
                return
            calls = [await tx.task(target) for target in join.after]
            await self._decide(tx, join, calls, settings)

        await ctx.commit(build)

    async def recover(self, task: Task, ctx: TaskContext) -> None:
        """Do nothing: either the commit landed, or the task is still pending."""

    async def abort(self, task: Task, ctx: TaskContext) -> None:
        """Settle aborted; nothing else changes, but for what D38 says."""

        async def build(tx: Command) -> None:
            await self._aborted(tx, await tx.task(task.id))

        await ctx.commit(build)

    async def _settings(self, task: Task, ctx: TaskContext) -> GenerationSettings:
        state = decode(task.state_json, PostToolsState)
        generation = await ctx.line.task(state.generation)
        assert generation is not None
        return await captured(ctx, self._services, generation_state(generation).settings)

    async def _aborted(self, tx: Command, join: Task) -> None:
        state = decode(join.state_json, PostToolsState)
        tx.settle(join, "aborted")
        await move_inputs(tx, state.inputs, "aborted", task=join.id)
        tx.retire_scope(task_scope(join.id))
        await after_cancellation(tx, join, self._services)

    async def _decide(
        self, tx: Command, join: Task, calls: Sequence[Task], settings: GenerationSettings
    ) -> None:
        state = decode(join.state_json, PostToolsState)
        results = [decode(call.state_json, ToolState) for call in calls]
        aborted = any(call.status == "aborted" for call in calls)
        handoff = None if aborted else _handoff(calls, results)
        if handoff is None:
            tx.settle(join, "done")
        else:
            text, chosen = handoff
            tx.settle(join, "done", handoff=chosen)
            self._reset(tx, join, text)
        if aborted or _terminates(results, settings):
            await move_inputs(
                tx,
                state.inputs,
                "aborted" if aborted else "stopped",
                task=join.id,
                answer=UNSET if aborted else join.at_entry,
            )
            await place_writes(tx, join)
        else:
            conversation = await tx.conversation(join.conv_id)
            opened = await place(
                tx, conversation, select(conversation, "post_tools"), written_by=join.id
            )
            await start_generation(
                tx, join.conv_id, self._services, inputs=(*state.inputs, *opened)
            )
        tx.retire_scope(task_scope(join.id))

    def _reset(self, tx: Command, join: Task, text: str) -> Seq:
        """Append the handoff and make it the whole context (X01, PT-06)."""
        now_ms = self._services.clock.now_ms()
        message = text_message(text, now_ms)
        entry = tx.insert_entry(
            join.conv_id,
            "user",
            user_meta((message,), now_ms, handoff=True),
            UserPayload(messages=(message,)),
            written_by=join.id,
        )
        tx.reset_context(join.conv_id, (entry,))
        return entry


def _handoff(calls: Sequence[Task], results: Sequence[ToolState]) -> tuple[str, Handoff] | None:
    """Answer the handoff of the highest call index among successful calls (D10)."""
    asked = sorted(
        (result.call_index, call.id, result.handoff)
        for call, result in zip(calls, results, strict=True)
        if result.handoff is not UNSET and not result.is_error
    )
    if not asked:
        return None
    _, tool, text = asked[-1]
    return text, Handoff(tool=tool, superseded=tuple(task_id for _, task_id, _ in asked[:-1]))


def _terminates(results: Sequence[ToolState], settings: GenerationSettings) -> bool:
    """Say whether the run stops here, by the captured policy (D11)."""
    asked = [result.terminate and not result.is_error for result in results]
    return bool(asked) and (any(asked) if settings.termination == "any" else all(asked))
