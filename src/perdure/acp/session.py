"""One session that an editor works in: its turns, what is told of them, and what is asked.

A turn is a prompt that is accepted and driven until it is final. All that the editor is told comes
from the session's watch, in commit order, so a turn ends after everything it caused was told. A
call that waits for a person is asked about as soon as it is held, and again when the session is
loaded while it still waits.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final

from acp.helpers import text_block, tool_content, update_agent_message_text
from acp.interfaces import Client
from acp.schema import AllowedOutcome, PermissionOption, StopReason, ToolCallUpdate

from perdure.acp.blocks import Block, message_of
from perdure.acp.hosting import Opened
from perdure.acp.narration import Narration, Update, call_id, kind_of, title_of
from perdure.drive.outcomes import DriveOutcome, DriveResult
from perdure.errors import Faulted
from perdure.harness.approvals import list_approvals
from perdure.harness.conversation import Conversation
from perdure.records.approvals import ApprovalView, Remember
from perdure.records.codec import decode, decode_json
from perdure.records.inputs import FINAL_STATES, InputRecord, InputResult
from perdure.records.seqs import Seq
from perdure.records.watch import (
    FaultSignal,
    WatchBase,
    WatchCommit,
    WatchDelta,
    WatchEvent,
)
from perdure.records.writes import InsertTask, PatchTask, SettleTask, SetValue, Write

PAGE: Final = 500
"""Entries told at a time when a session is loaded."""

CLOSE_GRACE_S: Final = 2.0
"""How long the end of the connection waits for running calls (CM-35's three seconds in all)."""

OPTIONS: Final = (
    PermissionOption(option_id="allow", name="Allow", kind="allow_once"),
    PermissionOption(
        option_id="always", name="Allow this very call from now on", kind="allow_always"
    ),
    PermissionOption(option_id="deny", name="Deny", kind="reject_once"),
)


class TurnFailed(Exception):
    """A turn that ended without an answer; `code` is the input's error code (FM-10)."""

    def __init__(self, code: str, message: str) -> None:
        """Say why."""
        super().__init__(message)
        self.code = code


class EditorSession:
    """One open session, as an editor sees it."""

    def __init__(
        self, opened: Opened, conversation: Conversation, client: Client, *, by: str
    ) -> None:
        """Tell `client` of the conversation; `by` is who decides when it answers (AQ-06)."""
        self.id = opened.harness.info.id
        self._harness = opened.harness
        self._reader = opened.reader
        self._conversation = conversation
        self._client = client
        self._by = by
        self._narration = Narration()
        self._turns: dict[Seq, asyncio.Future[StopReason | None]] = {}
        self._approvals: set[Seq] = set()
        self._asked: dict[Seq, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._driver: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._watching = asyncio.Event()

    async def start(self) -> None:
        """Begin to listen; what happens from now on is told."""
        self._keep(self._listen())
        await self._watching.wait()

    async def replay(self) -> None:
        """Tell the whole transcript, oldest first."""
        after: Seq | None = None
        while True:
            page = await self._conversation.entries(after=after, limit=PAGE)
            for entry in page:
                await self._tell(self._narration.entry(entry))
            if len(page) < PAGE:
                return
            after = page[-1].id

    async def prompt(self, blocks: Sequence[Block]) -> StopReason:
        """Accept a prompt and answer how its turn ended, after everything it caused was told.

        Raises:
            Rejected: the prompt holds nothing that can be accepted.
            TurnFailed: the input failed, or the session stopped.
        """
        accepted = await self._conversation.accept([message_of(blocks)])
        ended = self._turns.setdefault(
            accepted.input_id, asyncio.get_running_loop().create_future()
        )
        self._drive()
        try:
            reason = await asyncio.shield(ended)
        finally:
            self._turns.pop(accepted.input_id, None)
        if reason is not None:
            return reason
        return _stop_reason(await self._conversation.result(accepted.input_id))

    async def cancel(self) -> None:
        """Abort what runs; the turns it ends answer `cancelled`."""
        await self._conversation.abort()
        self._drive()

    async def close(self) -> None:
        """Stop listening and asking, and close the session; nothing is aborted (CM-08)."""
        await self._harness.close(grace=CLOSE_GRACE_S)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Working.

    def _drive(self) -> None:
        if self._driver is None or self._driver.done():
            self._driver = self._keep(self._driven())

    async def _driven(self) -> None:
        """Drive until nothing is left; while a person is asked, wait for the next commit."""
        try:
            while True:
                self._moved.clear()
                driven = await self._conversation.drive(poll_deferred=True)
                if driven.outcome is not DriveOutcome.SUSPENDED:
                    return
                if await self._waits_for_budgets(driven):
                    self._end_turns("max_turn_requests")
                await self._moved.wait()
        except Faulted as fault:
            self._fail_turns(str(fault))

    async def _waits_for_budgets(self, driven: DriveResult) -> bool:
        """Say whether nothing but a budget holds the work; an editor cannot raise one."""
        tasks = [await self._conversation.task(wait.task) for wait in driven.waiting_for]
        return all(task is not None and "budget" in task.state for task in tasks)

    def _end_turns(self, reason: StopReason | None) -> None:
        for turn in self._turns.values():
            if not turn.done():
                turn.set_result(reason)

    def _fail_turns(self, message: str) -> None:
        for turn in self._turns.values():
            if not turn.done():
                turn.set_exception(TurnFailed("faulted", message))

    def _keep(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Listening.

    async def _listen(self) -> None:
        async with self._conversation.watch(limit=1) as watch:
            async for event in watch:
                await self._heard(event)

    async def _heard(self, event: WatchEvent) -> None:
        match event:
            case WatchBase():
                for task in event.tasks:
                    if task.kind == "approval" and task.status == "waiting":
                        self._ask(task.id)
                self._watching.set()
            case WatchDelta():
                await self._tell(self._narration.delta(event))
            case WatchCommit():
                await self._tell(self._narration.commit(event))
                for write in event.writes:
                    self._notice(write.change)
                self._moved.set()
            case FaultSignal():
                self._fail_turns(event.message)
            case _:
                pass

    def _notice(self, change: Write) -> None:
        """Take note of an approval that waits or ends, and of an input that is final."""
        match change:
            case InsertTask(kind="approval"):
                self._approvals.add(change.seq)
            case PatchTask(status="waiting") if change.task_id in self._approvals:
                self._ask(change.task_id)
            case SettleTask() if change.task_id in self._approvals:
                self._approvals.discard(change.task_id)
                question = self._asked.pop(change.task_id, None)
                if question is not None:
                    question.cancel()
            case SetValue(namespace="perdure.input"):
                turn = self._turns.get(Seq(int(change.key)))
                is_final = decode(change.value_json, InputRecord).state in FINAL_STATES
                if turn is not None and is_final and not turn.done():
                    turn.set_result(None)
            case _:
                pass

    async def _tell(self, updates: Iterable[Update]) -> None:
        for update in updates:
            await self._client.session_update(session_id=self.id, update=update)

    # Asking.

    def _ask(self, approval_id: Seq) -> None:
        self._approvals.add(approval_id)
        if approval_id not in self._asked:
            self._asked[approval_id] = self._keep(self._ask_about(approval_id))

    async def _ask_about(self, approval_id: Seq) -> None:
        """Ask the editor's person; no answer decides nothing, and a late one changes nothing."""
        view = await self._view(approval_id)
        if view is None:
            return
        if view.tool is None:
            await self._tell([update_agent_message_text(f"\n{view.prompt}\n")])
            return
        answer = await self._client.request_permission(
            session_id=self.id, tool_call=await self._call(view), options=list(OPTIONS)
        )
        if not isinstance(answer.outcome, AllowedOutcome):
            return
        # Answered: what the decision's own commit tells must not end this any more.
        self._asked.pop(approval_id, None)
        choice = answer.outcome.option_id
        await self._harness.decide_approval(
            approval_id,
            "deny" if choice == "deny" else "grant",
            by=self._by,
            remember=Remember() if choice == "always" else None,
        )
        self._drive()

    async def _view(self, approval_id: Seq) -> ApprovalView | None:
        """Read an approval as it is shown; None when it was decided meanwhile."""
        storage = await self._reader()
        try:
            views = await list_approvals(storage)
        finally:
            await storage.close()
        return next((view for view in views if view.id == approval_id), None)

    async def _call(self, view: ApprovalView) -> ToolCallUpdate:
        """Answer the call as it is shown: the very arguments that will run (AQ-05)."""
        assert view.tool is not None
        assert view.tool_task is not None
        assert view.args_text is not None
        args = decode_json(view.args_text.encode())
        task = await self._conversation.task(view.tool_task)
        return ToolCallUpdate(
            tool_call_id=call_id(task) if task is not None else str(view.tool_task),
            title=title_of(view.tool, args),
            kind=kind_of(view.tool),
            status="pending",
            raw_input=args,
            content=[tool_content(text_block(view.args_text))],
        )


def _stop_reason(result: InputResult) -> StopReason:
    """Answer how a turn ended by what became of its input.

    Raises:
        TurnFailed: it failed, for another reason than the content or a budget.
    """
    match result.state:
        case "aborted" | "withdrawn":
            return "cancelled"
        case "failed":
            assert result.error is not None
            if result.error.code == "content_filter":
                return "refusal"
            if result.error.code == "budget":
                return "max_turn_requests"
            raise TurnFailed(result.error.code, result.error.message)
        case _:
            cut = result.message is not None and result.message.stop == "length"
            return "max_tokens" if cut else "end_turn"
