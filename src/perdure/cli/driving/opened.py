"""Drive a session that this command has open (CM-08, CM-18 to CM-21).

Show what happens, accept when there is something to accept, drive until nothing can move or
somebody says stop, ask a person meanwhile, close, and answer how it ended.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import UNSET, structs

from perdure.cli.asking.asker import Asker
from perdure.cli.asking.typed import can_ask
from perdure.cli.continuing import resume_line, run_line
from perdure.cli.display import Display, task_label
from perdure.cli.driving.meanwhile import meanwhile
from perdure.cli.driving.plan import Plan, unless_told
from perdure.cli.driving.waiting import Stands, say_what_waits, stands_of
from perdure.cli.endings import Ending, Problem, ending_of
from perdure.cli.events import AcceptedEvent, SignalEvent
from perdure.cli.forwarding.here import conversation_of, give
from perdure.cli.last import FOLDER
from perdure.cli.places import write_whole
from perdure.cli.spending import limits_words
from perdure.cli.stopping import GRACE_S, Stop
from perdure.cli.surface import Surface
from perdure.cli.work import by_of
from perdure.drive.outcomes import DriveOutcome, DriveResult
from perdure.errors import Faulted, Rejected, StorageDamaged
from perdure.harness.approvals import list_approvals
from perdure.harness.conversation import Conversation
from perdure.harness.harness import Harness
from perdure.harness.spending import budget_spent, open_budgets, raise_budgets
from perdure.opening import system_ports
from perdure.records.approvals import ApprovalView
from perdure.records.inputs import Accepted, InputResult
from perdure.records.messages import TextPart, UserPayload, read_payload
from perdure.records.seqs import Seq


async def drive_here(surface: Surface, plan: Plan, harness: Harness, stop: Stop) -> Ending:
    """Carry out a plan on a harness that its opening has opened, and close it.

    Raises:
        Rejected: as accepting and driving say.
        Faulted: `defect`; any other fault is an ending that says how to go on.
    """
    driven = _Drive(surface, plan, harness, stop)
    try:
        return await driven.run()
    except (Faulted, StorageDamaged) as error:
        ending = ending_of(error)
        if ending is None:
            raise
        return structs.replace(ending, **driven.facts())
    finally:
        await plan.opening.__aexit__(None, None, None)


class _Drive:
    """One drive of an open session."""

    def __init__(self, surface: Surface, plan: Plan, harness: Harness, stop: Stop) -> None:
        self._surface = surface
        self._terminal = surface.terminal
        self._plan = plan
        self._harness = harness
        self._stop = stop
        self._display = Display(surface)
        self._name = harness.info.name
        self._resume: str | None = None
        self._conv_id: Seq | None = None
        self._input_id: Seq | None = None

    async def run(self) -> Ending:
        """Accept, drive, close, and say how it ended."""
        plan, harness = self._plan, self._harness
        if plan.is_kept:
            self._resume = resume_line(plan.continuing, self._name)
            self._stop.last_words = self._resume
        if plan.says_name and plan.is_kept:
            self._terminal.say(f"session {self._name}", "dim")
        conv_id = None if plan.conversation is None else Seq(plan.conversation)
        conversation = await conversation_of(harness, conv_id)
        self._conv_id = conversation.id
        await self._claim_folder()
        await self._say_what_is_live(conversation)
        harness.on_preview(self._display.on_preview)
        harness.on_commit(self._display.on_commit)
        if plan.raises:
            await raise_budgets(harness, plan.raises, by=by_of("cli"))
        accepted = await self._accept(conversation)
        async with self._asking() as asker:
            driven = await unless_told(self._stop, self._driven(conversation, asker))
        if self._stop.outcome is not None:
            return await self._stopped()
        assert driven is not None
        stands = await self._stands(driven)
        if self._has_budget(stands):
            await self._say_budgets()
        if accepted is None:
            return await self._resumed(stands, conversation)
        ending = self._ended(await conversation.result(accepted.input_id), stands)
        if plan.output is not None and ending.answer is not None:
            write_whole(plan.output, ending.answer + "\n")
        return ending

    @asynccontextmanager
    async def _asking(self) -> AsyncGenerator[Asker | None]:
        """Ask a person about what waits while the body runs; None when nobody can be asked."""
        is_machine = self._surface.flags.machine != "no"
        if not self._plan.asks or is_machine or not can_ask(self._terminal):
            yield None
            return
        asker = Asker(
            self._terminal,
            self._harness,
            self._approvals,
            clock=system_ports().clock,
            by=by_of("terminal"),
        )
        forget = self._harness.on_commit(asker.on_commit)
        task = asyncio.create_task(asker.run())
        try:
            yield asker
        finally:
            forget()
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    async def _driven(self, conversation: Conversation, asker: Asker | None) -> DriveResult:
        """Drive until nothing can move and nobody is asked any more."""
        while True:
            decisions = 0 if asker is None else asker.decisions
            driven = await conversation.drive(poll_deferred=self._plan.poll)
            waits_on = driven.outcome is DriveOutcome.SUSPENDED
            if asker is None or not waits_on or not await asker.another(decisions):
                return driven

    async def _approvals(self) -> Sequence[ApprovalView]:
        storage = await self._plan.opening.reader()
        try:
            return await list_approvals(storage)
        finally:
            await storage.close()

    async def _stands(self, driven: DriveResult) -> Stands:
        """Say what waits for a decision, with the command that decides it (AQ-08)."""
        if driven.outcome is not DriveOutcome.SUSPENDED:
            return Stands()
        stands = stands_of(driven.waiting_for, await self._approvals(), self._plan, self._name)
        say_what_waits(self._terminal, stands)
        return stands

    def _has_budget(self, stands: Stands) -> bool:
        """Say whether a budget is given, raised, waited for, or was that of an ended input."""
        if self._plan.budget is not None or self._plan.raises or stands.only_budgets:
            return True
        return any(one.record.budget is not UNSET for one in self._display.ended)

    async def _say_budgets(self) -> None:
        """Say what is spent against each limit, for what ended and for what waits (BG-11)."""
        storage = await self._plan.opening.reader()
        try:
            found = {one.input_id: one for one in await open_budgets(storage)}
            for ended in self._display.ended:
                one = await budget_spent(storage, ended.input_id)
                if one is not None:
                    found[one.input_id] = one
        finally:
            await storage.close()
        for one in found.values():
            self._terminal.say(f"[budget {one.input_id}] {limits_words(one)}", "dim")

    async def _say_what_is_live(self, conversation: Conversation) -> None:
        """Say what an earlier process left: what was interrupted, what waits (CM-21)."""
        found = self._harness.inspect()
        for tasks, said in (
            (found.inflight, "was interrupted"),
            (found.waiting, "waits"),
            (found.start, "goes on"),
        ):
            for task in tasks:
                self._terminal.say(f"{task_label(task)} {said}", "dim")
                if task.kind == "tool" and task.at_entry is not UNSET:
                    entry = await conversation.entry(task.at_entry)
                    if entry is not None:
                        self._display.recall(entry)
                    self._display.note_call(task)

    async def _claim_folder(self) -> None:
        """Note where the session was made, once."""
        folder = self._plan.folder
        if folder is not None and await self._harness.get_value(FOLDER, None) is None:
            await self._harness.set_value(FOLDER, folder)

    async def _accept(self, conversation: Conversation) -> Accepted | None:
        plan = self._plan
        if plan.text is None:
            return None
        accepted = await give(conversation, plan.mode, plan.text, plan.request_id, plan.budget)
        self._input_id = accepted.input_id
        if self._surface.flags.machine == "events":
            self._terminal.document(
                AcceptedEvent(
                    session=self._name,
                    conversation=conversation.id,
                    input_id=accepted.input_id,
                    duplicate=accepted.duplicate,
                )
            )
        return accepted

    def facts(self) -> dict[str, Any]:
        """Answer what every ending of this drive says, whatever ended it."""
        return {
            "session": self._name,
            "conversation": self._conv_id,
            "input_id": self._input_id,
            "usage": self._display.spent(),
            "resume": self._resume,
        }

    async def _stopped(self) -> Ending:
        """Close as told: nothing is aborted, nothing is marked (CM-08)."""
        outcome = self._stop.outcome
        assert outcome is not None
        if self._surface.flags.machine == "events":
            self._terminal.document(SignalEvent(name=outcome))
        self._terminal.say(f"closing {self._name!r}; it can be continued", "dim")
        report = await self._harness.close(grace=GRACE_S)
        for task in report.abandoned:
            self._terminal.complain(f"task {task} did not end; it is left behind", "warn")
        return Ending(outcome=outcome, **self.facts())

    def _ended(self, result: InputResult, stands: Stands) -> Ending:
        """Say what became of the command's own input (CM-20)."""
        outcome = stands.outcome_of(result.state, self._plan.mode)
        problem = None
        if result.error is not None:
            problem = Problem(code=result.error.code, message=result.error.message)
            self._give_again(self._plan.text)
            outcome = "limit" if result.error.code == "budget" else outcome
        answer = result.text if result.message is not None else None
        return Ending(
            outcome=outcome,
            answer=answer,
            waiting_for=stands.waiting_for,
            data=stands.document,
            error=problem,
            text=None if answer is None else self._display.left_to_print(result.input_id, answer),
            **self.facts(),
        )

    def _give_again(self, prompt: str | None) -> None:
        """Continue by the failed prompt when nothing is live that could be resumed (CM-10)."""
        found = self._harness.inspect()
        if self._plan.is_kept and not (found.start or found.inflight or found.waiting):
            self._resume = run_line(self._plan.again, self._name, prompt or "")

    async def _resumed(self, stands: Stands, conversation: Conversation) -> Ending:
        """Say what became of the inputs that ended meanwhile (CM-21)."""
        found = meanwhile(self._display, stands)
        self._input_id = found.input_id
        if found.is_nothing:
            said = f"nothing was left to do in {self._name!r}"
            self._terminal.say(f"{said}; `perdure run` goes on with a new prompt")
        if found.problem is not None and found.input_id is not None:
            self._give_again(await _prompt_of(conversation, found.input_id))
        return found.ending(stands, self.facts())


async def _prompt_of(conversation: Conversation, input_id: Seq) -> str | None:
    """Answer the text of an input, None when it is another conversation's or has no entry."""
    try:
        entry = (await conversation.result(input_id)).entry
    except Rejected:
        return None
    if entry is None or entry.payload_json is UNSET:
        return None
    messages = read_payload(entry.payload_json, UserPayload).messages
    parts = [part for message in messages for part in message.content]
    return "".join(part.text for part in parts if isinstance(part, TextPart))
