"""Drive a session for a person: what `run` and `resume` share.

Open, show what happens, accept when there is something to accept, drive until nothing can move or
somebody says stop, close, and answer how it ended (CM-08, CM-18 to CM-21).
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import UNSET, Struct, structs

from perdure.cli.continuing import resume_line, run_line
from perdure.cli.display import Display, task_label
from perdure.cli.endings import Ending, Outcome, Problem, Waiting, ending_of
from perdure.cli.events import AcceptedEvent, SignalEvent
from perdure.cli.last import FOLDER
from perdure.cli.places import write_whole
from perdure.cli.stopping import GRACE_S, Stop
from perdure.cli.surface import Surface
from perdure.drive.outcomes import DriveOutcome, DriveResult
from perdure.errors import Faulted, Rejected, StorageBusy, StorageDamaged
from perdure.harness.conversation import Conversation
from perdure.harness.harness import Harness
from perdure.opening import OpenSession
from perdure.records.inputs import Accepted, InputResult, InputState
from perdure.records.messages import TextPart, UserPayload, read_payload
from perdure.records.seqs import Seq

T = TypeVar("T")

OUTCOMES: Mapping[InputState, Outcome] = MappingProxyType(
    {
        "answered": "answered",
        "stopped": "done",
        "placed": "done",
        "failed": "failed",
        "aborted": "aborted",
        "withdrawn": "aborted",
        "queued": "suspended",
        "open": "suspended",
    }
)
"""How a command ends by the state of its own input (CM-20)."""


class Plan(Struct, frozen=True, kw_only=True):
    """What to drive; `session` is None while it has no name, `text` when nothing is accepted.

    `continuing` are the flags of the line that goes on with what is live, `again` those of the
    line that gives a prompt.
    """

    opening: OpenSession
    session: str | None
    continuing: Sequence[str]
    again: Sequence[str]
    text: str | None = None
    request_id: str | None = None
    conversation: int | None = None
    folder: str | None = None
    output: Path | None = None
    poll: bool = False
    is_kept: bool = True
    says_name: bool = False


async def drive(surface: Surface, plan: Plan) -> Ending:
    """Carry out a plan; whatever stops it, the session is closed cleanly.

    Raises:
        Rejected: as opening, accepting and driving say.
        Faulted: `defect`; any other fault is an ending that says how to go on.
    """
    stop = Stop(surface.terminal)
    with stop.listening(surface.flags.timeout):
        try:
            return await _drive(surface, plan, stop)
        except (StorageBusy, StorageDamaged, Faulted) as error:
            ending = ending_of(error)
            if ending is None:
                raise
            resume = _line_before_opening(plan)
            return structs.replace(ending, session=plan.session, resume=resume)


async def _drive(surface: Surface, plan: Plan, stop: Stop) -> Ending:
    harness = await _unless_told(stop, plan.opening.__aenter__())
    if harness is None:
        return Ending(outcome=stop.outcome or "interrupt", resume=_line_before_opening(plan))
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


def _line_before_opening(plan: Plan) -> str | None:
    """Answer the line that continues a session which was named but not opened.

    Its prompt was not accepted, so it is given again, under the same request id.
    """
    if not plan.is_kept or plan.session is None:
        return None
    if plan.text is not None:
        request = [] if plan.request_id is None else ["--request-id", plan.request_id]
        return run_line([*plan.again, *request], plan.session, plan.text)
    return resume_line(plan.continuing, plan.session)


async def _unless_told(stop: Stop, work: Coroutine[Any, Any, T]) -> T | None:
    """Run until it is done, or until the command is told to end; then cancel it, answer None."""
    task = asyncio.create_task(work)
    told = asyncio.create_task(stop.told.wait())
    try:
        await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        return None
    finally:
        told.cancel()


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
        conversation = await _conversation(harness, plan.conversation)
        self._conv_id = conversation.id
        await self._claim_folder()
        await self._say_what_is_live(conversation)
        harness.on_preview(self._display.on_preview)
        harness.on_commit(self._display.on_commit)
        accepted = await self._accept(conversation)
        driven = await _unless_told(self._stop, conversation.drive(poll_deferred=plan.poll))
        if self._stop.outcome is not None:
            return await self._stopped()
        assert driven is not None
        if accepted is None:
            return await self._resumed(driven, conversation)
        ending = self._ended(await conversation.result(accepted.input_id), driven)
        if plan.output is not None and ending.answer is not None:
            write_whole(plan.output, ending.answer + "\n")
        return ending

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

    async def _claim_folder(self) -> None:
        """Note where the session was made, once."""
        folder = self._plan.folder
        if folder is not None and await self._harness.get_value(FOLDER, None) is None:
            await self._harness.set_value(FOLDER, folder)

    async def _accept(self, conversation: Conversation) -> Accepted | None:
        plan = self._plan
        if plan.text is None:
            return None
        accepted = await conversation.accept(plan.text, request_id=plan.request_id)
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

    def _ended(self, result: InputResult, driven: DriveResult) -> Ending:
        """Say what became of the command's own input (CM-20)."""
        outcome = OUTCOMES[result.state]
        problem = None
        if result.error is not None:
            problem = Problem(code=result.error.code, message=result.error.message)
            self._give_again(self._plan.text)
            outcome = "limit" if result.error.code == "budget" else outcome
        answer = result.text if result.message is not None else None
        return Ending(
            outcome=outcome,
            answer=answer,
            waiting_for=_waiting(driven),
            error=problem,
            text=None if answer is None else self._display.left_to_print(result.input_id, answer),
            **self.facts(),
        )

    def _give_again(self, prompt: str | None) -> None:
        """Continue by the failed prompt when nothing is live that could be resumed (CM-10)."""
        found = self._harness.inspect()
        if self._plan.is_kept and not (found.start or found.inflight or found.waiting):
            self._resume = run_line(self._plan.again, self._name, prompt or "")

    async def _resumed(self, driven: DriveResult, conversation: Conversation) -> Ending:
        """Say what became of the inputs that ended meanwhile (CM-21)."""
        ended = self._display.ended
        outcome: Outcome = "done"
        problem = None
        if driven.outcome is DriveOutcome.SUSPENDED:
            outcome = "suspended"
        elif ended:
            record = ended[-1].record
            outcome = OUTCOMES[record.state]
            if record.state == "failed" and record.error:
                problem = Problem(code=record.error.code, message=record.error.message)
                self._give_again(await _prompt_of(conversation, ended[-1].input_id))
        else:
            said = f"nothing was left to do in {self._name!r}"
            self._terminal.say(f"{said}; `perdure run` goes on with a new prompt")
        answers = [one for one in ended if one.record.state in ("answered", "stopped")]
        texts = [self._display.left_to_print(one.input_id, one.text) or "" for one in answers]
        self._input_id = ended[-1].input_id if ended else None
        return Ending(
            outcome=outcome,
            answer=answers[-1].text if answers else None,
            waiting_for=_waiting(driven),
            error=problem,
            text="".join(texts),
            **self.facts(),
        )


async def _conversation(harness: Harness, conv_id: int | None) -> Conversation:
    if conv_id is None:
        return await harness.root()
    found = await harness.conversation(Seq(conv_id))
    if found is None:
        raise Rejected("unknown_target", f"there is no conversation {conv_id}")
    return found


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


def _waiting(driven: DriveResult) -> Sequence[Waiting] | None:
    if driven.outcome is not DriveOutcome.SUSPENDED:
        return None
    return [
        Waiting(kind=wait.kind, task=wait.task, conversation=wait.conv, until=wait.until)
        for wait in driven.waiting_for
    ]
