"""What a person or a program sees while a session is driven.

Text of the model is shown as its frames arrive; what a quick reply had no frames for is taken from
its committed message. A call is shown when it starts to run and when it ends, with its outcome.
Listeners only put words in the terminal's queue: they never wait.
"""

from types import MappingProxyType
from typing import Any, Final

from msgspec import UNSET, Struct

from perdure.cli.endings import Spent
from perdure.cli.events import ApprovalEvent, DeltaEvent, Event, ToolEvent, UsageEvent
from perdure.cli.spending import spent_of
from perdure.cli.surface import Surface
from perdure.cli.visible import one_line
from perdure.kinds.states import GenerationState, ToolState
from perdure.line.line import Delivery, Preview
from perdure.records.addresses import USAGE
from perdure.records.approvals import ApprovalState
from perdure.records.codec import canonical, decode
from perdure.records.entries import Entry
from perdure.records.frames import DeltaFrame, FrameBatch, StartFrame
from perdure.records.inputs import FINAL_STATES, InputRecord
from perdure.records.messages import (
    AssistantPayload,
    TextPart,
    ToolCallPart,
    ToolResultPayload,
    UsageElement,
    read_payload,
)
from perdure.records.seqs import Seq
from perdure.records.strict_json import repair_text
from perdure.records.tasks import Task
from perdure.records.usage import usage_totals
from perdure.records.writes import AppendList, SetValue

LINE_CHARACTERS_MAX: Final = 160
"""How much of a call's arguments, or of its error, is shown on its line."""

QUEUE_WORDS: Final = MappingProxyType(
    {"followUp": "follow-up", "nextRun": "next run", "prompt": "queued"}
)
"""How a queued text is named on its line; any other mode by its own word."""

OUTCOME_WORDS: Final = MappingProxyType(
    {
        "finished": "finished",
        "denied": "denied",
        "notStarted": "not started",
        "interrupted": "interrupted",
    }
)


class _Stream:
    """One request's text as far as it was shown."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shown = ""
        self._texts: set[int] = set()

    def take(self, batch: FrameBatch) -> str:
        """Answer the text that a batch adds, thinking and arguments left out."""
        added: list[str] = []
        for frame in batch.frames:
            if isinstance(frame, StartFrame) and isinstance(frame.part, TextPart):
                self._texts.add(frame.part_index)
                added.append(frame.part.text)
            elif isinstance(frame, DeltaFrame) and frame.part_index in self._texts:
                added.append(frame.delta_text)
        text, _ = repair_text("".join(added))
        self.shown += text
        return text


class Ended(Struct, frozen=True, kw_only=True):
    """An input that ended while the session was driven, and its answer's text."""

    input_id: Seq
    record: InputRecord
    text: str


class Display:
    """Listen to one open session and show it."""

    def __init__(self, surface: Surface, *, is_watch: bool = False) -> None:
        """Show on the surface's terminal: words, or events for a program.

        A watch is asked for all that is said, so its words go to standard output wherever that is.
        """
        self._terminal = surface.terminal
        self._events = surface.flags.machine == "events"
        is_shown = is_watch or self._terminal.out_is_terminal
        self._streams_text = surface.flags.machine == "no" and is_shown
        self._streams: dict[Seq, _Stream] = {}
        self._calls: dict[tuple[Seq, int], ToolCallPart] = {}
        self._texts: dict[Seq, str] = {}
        self._usage: list[UsageElement] = []
        self._attempts: dict[Seq, int] = {}
        self._held: dict[Seq, tuple[str, Any]] = {}
        self._waiting: set[Seq] = set()
        self._marked: set[Seq] = set()
        self.ended: list[Ended] = []

    # Listeners.

    def on_preview(self, preview: Preview) -> None:
        """Show streamed text."""
        if isinstance(preview.payload, FrameBatch):
            stream = self._streams.setdefault(preview.task_id, _Stream(f"{preview.task_id}.1"))
            self._show_text(stream, stream.take(preview.payload))

    def on_commit(self, delivery: Delivery) -> None:
        """Show what a commit says: answers, calls, usage, ended inputs."""
        if delivery.scope is not None:
            return
        for entry in delivery.entries:
            self._entry(entry)
        for task in delivery.tasks:
            if task.kind == "generation":
                self._generation(task)
            elif task.kind == "tool":
                self._call(task, delivery.entries)
            elif task.kind == "approval":
                self._approval(task)
        self._aborts(delivery)
        for write in delivery.commit.writes:
            if isinstance(write, AppendList) and write.namespace == USAGE.namespace:
                self._used(decode(write.value_json, UsageElement))
            elif isinstance(write, SetValue) and write.namespace == "perdure.input":
                self._input(Seq(int(write.key)), decode(write.value_json, InputRecord))

    # Text.

    def recall(self, entry: Entry) -> None:
        """Take note of the calls of a message that an earlier process committed."""
        if entry.payload_json is not UNSET:
            message = read_payload(entry.payload_json, AssistantPayload).message
            for index, call in enumerate(message.calls):
                self._calls[entry.id, index] = call

    def _entry(self, entry: Entry) -> None:
        if entry.kind == "input":
            self._queued(entry)
        if entry.kind != "assistant" or entry.payload_json is UNSET:
            return
        self.recall(entry)
        message = read_payload(entry.payload_json, AssistantPayload).message
        self._texts[entry.id] = message.text
        task = entry.written_by
        if task is UNSET:
            return
        stream = self._streams.pop(task, None) or _Stream(f"{task}.{self._attempts.get(task, 1)}")
        if message.text.startswith(stream.shown):
            self._show_text(stream, message.text[len(stream.shown) :])
        else:
            self._end_line(stream)
            stream = _Stream(f"{stream.name}.final")
            self._show_text(stream, message.text)
        stream.shown = message.text
        self._end_line(stream)

    def _show_text(self, stream: _Stream, text: str) -> None:
        if not text:
            return
        if self._events:
            self._event(DeltaEvent(generation=stream.name, text=text))
        elif self._streams_text:
            self._terminal.answer(text)

    def _end_line(self, stream: _Stream) -> None:
        if self._streams_text and stream.shown and not stream.shown.endswith("\n"):
            self._terminal.answer("\n")

    # Tasks.

    def _generation(self, task: Task) -> None:
        state = decode(task.state_json, GenerationState)
        if task.status == "streaming":
            self._attempts[task.id] = state.attempt
            self._streams[task.id] = _Stream(f"{task.id}.{state.attempt}")
            return
        stream = self._streams.pop(task.id, None)
        if stream is not None:
            self._end_line(stream)
        if task.status == "retry_wait":
            self._terminal.say(
                f"{task_label(task)} failed or was cut; attempt {state.attempt} follows",
                "warn",
            )

    def _call(self, task: Task, entries: tuple[Entry, ...]) -> None:
        state = decode(task.state_json, ToolState)
        result = next((entry for entry in entries if entry.id == state.produced), None)
        if result is None and task.status != "running":
            self.note_call(task)
            return
        if result is None and task.abort_requested is not UNSET:
            return  # it was shown when it started
        arguments = self._arguments_of(task, state)
        label = task_label(task)
        if result is None:
            self._event(
                ToolEvent(task=task.id, name=state.name, status="running", arguments=arguments)
            )
            self._terminal.say(f"{label} {_short_arguments(arguments)}", "dim")
            return
        text = _result_text(result)
        outcome = "finished" if state.outcome is UNSET else state.outcome
        self._event(
            ToolEvent(
                task=task.id,
                name=state.name,
                status="ended",
                arguments=arguments,
                outcome=outcome,
                is_error=state.is_error,
                text=text,
            )
        )
        said = OUTCOME_WORDS[outcome]
        if state.is_error:
            said = f"{said}, an error: {_short(text)}"
        self._terminal.say(f"{label} {said}", "bad" if state.is_error else "dim")

    def note_call(self, task: Task) -> None:
        """Take note of a call that waits for a person, for the line that says so."""
        if task.status == "waiting":
            state = decode(task.state_json, ToolState)
            self._held[task.id] = state.name, self._arguments_of(task, state)

    def _arguments_of(self, task: Task, state: ToolState) -> Any:
        at_entry = task.at_entry
        call = None if at_entry is UNSET else self._calls.get((at_entry, state.call_index))
        return _arguments(state, call)

    def _approval(self, task: Task) -> None:
        """Say that something waits for a person, or what was decided and by whom (AQ-11)."""
        state = decode(task.state_json, ApprovalState)
        if task.status == "waiting" and task.abort_requested is UNSET:
            if task.id not in self._waiting:
                self._waiting.add(task.id)
                held = None if state.tool is UNSET else self._held.get(state.tool)
                tool, arguments = held or ("", None)
                self._event(ApprovalEvent(id=task.id, tool=tool, arguments=arguments))
                what = f"{one_line(tool)} {_short_arguments(arguments)}" if tool else state.prompt
                self._terminal.say(f"[approval {task.id}] waits: {one_line(what)}", "warn")
        elif task.status not in ("pending", "waiting"):
            by = "" if state.decision is UNSET else f" by {one_line(state.decision.by)}"
            self._terminal.say(f"[approval {task.id}] {task.status}{by}", "dim")

    def _aborts(self, delivery: Delivery) -> None:
        """Say once that somebody asked for an abort."""
        marked = [task.id for task in delivery.tasks if task.abort_requested is not UNSET]
        fresh = [task for task in marked if task not in self._marked]
        if fresh and not self._marked:
            self._terminal.say("[abort] was asked for", "warn")
        self._marked.update(fresh)

    def _queued(self, entry: Entry) -> None:
        """Show a text that somebody gave while the session ran."""
        mode = entry.meta.mode
        text = "" if entry.meta.preview is UNSET else entry.meta.preview
        word = "input" if mode is UNSET else QUEUE_WORDS.get(mode, mode)
        self._terminal.say(f"[{word} {entry.id}] {_short(text)}", "dim")

    # Facts.

    def _used(self, element: UsageElement) -> None:
        self._usage.append(element)
        cost = element.cost
        self._event(
            UsageEvent(
                task=element.task,
                attempt=element.attempt,
                input=element.input,
                output=element.output,
                cache_read=element.cache_read,
                cache_write=element.cache_write,
                reasoning=element.reasoning,
                cost=None if cost is None else cost.amount,
                currency=None if cost is None else cost.currency,
            )
        )

    def _input(self, input_id: Seq, record: InputRecord) -> None:
        if record.state not in FINAL_STATES:
            return
        text = "" if record.answer is UNSET else self._texts.get(record.answer, "")
        self.ended.append(Ended(input_id=input_id, record=record, text=text))

    def _event(self, event: Event) -> None:
        if self._events:
            self._terminal.document(event)

    def left_to_print(self, input_id: Seq, answer: str) -> str | None:
        """Answer what standard output still needs for an answer: all of it and a newline, or None.

        On a terminal an answer that was streamed stands there already.
        """
        if self._streams_text and any(one.input_id == input_id for one in self.ended):
            return None
        return answer + "\n"

    def spent(self) -> Spent | None:
        """Answer what this command's requests used; None when there was none."""
        totals = usage_totals(self._usage, self._attempts)
        return spent_of(totals)


def task_label(task: Task) -> str:
    """Name a task on its lines: a call by its tool, any other by its kind."""
    name = decode(task.state_json, ToolState).name if task.kind == "tool" else task.kind
    return f"[{one_line(name)} {task.id}]"


def _arguments(state: ToolState, call: ToolCallPart | None) -> Any:
    """Answer a call's arguments, or the raw text that did not parse."""
    if state.args is not UNSET:
        return state.args
    if call is None:
        return None
    return call.args if call.args is not UNSET else call.args_text


def _short_arguments(arguments: Any) -> str:
    if arguments is None or arguments == {}:
        return ""
    return _short(arguments if isinstance(arguments, str) else canonical(arguments).decode())


def _short(text: str, limit: int = LINE_CHARACTERS_MAX) -> str:
    line = one_line(text)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _result_text(entry: Entry) -> str:
    if entry.payload_json is UNSET:
        return ""
    content = read_payload(entry.payload_json, ToolResultPayload).message.content
    return "\n".join(part.text for part in content if isinstance(part, TextPart))
