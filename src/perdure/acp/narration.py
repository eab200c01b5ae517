"""What an editor is told of a session: committed records and streamed text as protocol updates.

A call's id is `<assistant entry>.<call index>`, so that a call has the same id while it happens and
when its session is loaded again. Text is told once: what the stream brought is not repeated when
its message is committed.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final, TypeAlias, cast

from acp.helpers import (
    update_agent_message,
    update_agent_message_text,
    update_agent_thought_text,
    update_user_message,
)
from acp.schema import (
    AgentMessageChunk,
    AgentThoughtChunk,
    ToolCallProgress,
    ToolCallStart,
    ToolKind,
    UserMessageChunk,
)
from msgspec import UNSET, Raw, UnsetType

from perdure.acp.blocks import shown, tool_contents
from perdure.kinds.states import ToolState
from perdure.records.codec import decode, decode_json
from perdure.records.entries import Entry, EntryMeta
from perdure.records.frames import DeltaFrame, FrameBatch, StartFrame
from perdure.records.messages import (
    AssistantPayload,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPayload,
    UserPayload,
    read_payload,
)
from perdure.records.seqs import Seq
from perdure.records.strict_json import repair_text
from perdure.records.tasks import Task
from perdure.records.watch import WatchCommit, WatchDelta
from perdure.records.writes import InsertEntry, InsertTask, PatchTask, Write

Update: TypeAlias = (
    UserMessageChunk | AgentMessageChunk | AgentThoughtChunk | ToolCallStart | ToolCallProgress
)

KINDS: Final = MappingProxyType(
    {
        "read": "read",
        "list": "read",
        "write": "edit",
        "edit": "edit",
        "glob": "search",
        "search": "search",
        "shell": "execute",
    }
)
"""What the protocol calls the work of a tool; any other tool does `other`."""

TITLE_CHARACTERS_MAX: Final = 120

TELLING: Final = ("command", "path", "pattern")
"""Arguments that say what a call is about, best first; else the first one does."""


class Narration:
    """Turn one conversation's events into updates, in order."""

    def __init__(self) -> None:
        """Begin with nothing told."""
        self._told: dict[Seq, dict[int, str]] = {}
        self._thoughts: dict[Seq, set[int]] = {}
        self._calls: dict[Seq, str] = {}

    # A transcript that is loaded.

    def entry(self, entry: Entry) -> Iterator[Update]:
        """Tell an entry of the transcript."""
        if entry.payload_json is not UNSET:
            call = _call_id(entry.meta, entry.call_index)
            yield from self._entry(entry.id, entry.kind, entry.payload_json, call=call)

    # A session that works.

    def delta(self, delta: WatchDelta) -> Iterator[Update]:
        """Tell streamed text, thinking included; arguments are told with their message."""
        if delta.kind == "reset":
            # What was streamed is void, but an editor cannot take it back: the answer that follows
            # is told as a message of its own.
            self._told.pop(delta.task_id, None)
            return
        if delta.kind != "frame":
            return
        told = self._told.setdefault(delta.task_id, {})
        thoughts = self._thoughts.setdefault(delta.task_id, set())
        for frame in decode(delta.payload_json, FrameBatch).frames:
            text = ""
            if isinstance(frame, StartFrame):
                if isinstance(frame.part, TextPart | ThinkingPart):
                    text = frame.part.text
                    told[frame.part_index] = ""
                if isinstance(frame.part, ThinkingPart):
                    thoughts.add(frame.part_index)
            elif isinstance(frame, DeltaFrame) and frame.part_index in told:
                text = frame.delta_text
            text, _ = repair_text(text)
            if text:
                told[frame.part_index] += text
                yield _chunk(text, is_thought=frame.part_index in thoughts)

    def commit(self, commit: WatchCommit) -> Iterator[Update]:
        """Tell what a commit did: messages, calls and their results."""
        for write in commit.writes:
            yield from self._write(write.seq, write.change)

    def _write(self, seq: Seq, change: Write) -> Iterator[Update]:
        match change:
            case InsertTask(kind="tool", at_entry=at) if at is not UNSET:
                state = decode(change.state_json, ToolState)
                self._calls[seq] = f"{at}.{state.call_index}"
            case PatchTask(status="running") if change.task_id in self._calls:
                yield ToolCallProgress(
                    tool_call_id=self._calls[change.task_id],
                    status="in_progress",
                    session_update="tool_call_update",
                )
            case InsertEntry(payload_json=payload) if payload is not UNSET:
                task = None if change.written_by is UNSET else change.written_by
                call = _call_id(decode(change.meta_json, EntryMeta), change.call_index)
                yield from self._entry(seq, change.kind, payload, call=call, task_id=task)
            case _:
                pass

    def _entry(
        self,
        entry_id: Seq,
        kind: str,
        payload: Raw,
        *,
        call: str | None,
        task_id: Seq | None = None,
    ) -> Iterator[Update]:
        if kind == "user" and task_id is None:
            yield from _said(payload)
        elif kind == "assistant":
            yield from self._answer(entry_id, payload, task_id)
        elif kind == "tool_result" and call is not None:
            if task_id is not None:
                self._calls.pop(task_id, None)
            yield _ended(call, payload)

    def _answer(self, entry_id: Seq, payload: Raw, task_id: Seq | None) -> Iterator[Update]:
        told = {} if task_id is None else self._told.pop(task_id, {})
        if task_id is not None:
            self._thoughts.pop(task_id, None)
        call_index = 0
        for index, part in enumerate(read_payload(payload, AssistantPayload).message.content):
            if isinstance(part, ToolCallPart):
                yield _asked(f"{entry_id}.{call_index}", part)
                call_index += 1
            else:
                yield from _part(part, told.get(index, ""))


def call_id(task: Task) -> str:
    """Answer the id of the call that a tool task runs."""
    return f"{task.at_entry}.{decode(task.state_json, ToolState).call_index}"


def _call_id(meta: EntryMeta, call_index: int | UnsetType) -> str | None:
    """Answer which call a result answers, None for what is no result."""
    return None if meta.answers is UNSET else f"{meta.answers}.{call_index}"


def _chunk(text: str, *, is_thought: bool) -> Update:
    return update_agent_thought_text(text) if is_thought else update_agent_message_text(text)


def _part(part: Part, told: str) -> Iterator[Update]:
    """Tell what of a part was not streamed; a text that differs is told whole."""
    if isinstance(part, TextPart | ThinkingPart):
        rest = part.text.removeprefix(told)
        if rest:
            yield _chunk(rest, is_thought=isinstance(part, ThinkingPart))
    else:
        for block in shown([part]):
            yield update_agent_message(block)


def _said(payload: Raw) -> Iterator[Update]:
    for message in read_payload(payload, UserPayload).messages:
        for block in shown(message.content):
            yield update_user_message(block)


def _asked(call: str, part: ToolCallPart) -> ToolCallStart:
    return ToolCallStart(
        tool_call_id=call,
        title=title_of(part.name, part.args if part.args is not UNSET else None),
        kind=kind_of(part.name),
        status="pending",
        raw_input=part.args if part.args is not UNSET else part.args_text,
        session_update="tool_call",
    )


def _ended(call: str, payload: Raw) -> ToolCallProgress:
    result = read_payload(payload, ToolResultPayload).message
    return ToolCallProgress(
        tool_call_id=call,
        status="failed" if result.is_error else "completed",
        content=list(tool_contents(result.content)),
        raw_output=None if result.details is UNSET else decode_json(result.details),
        session_update="tool_call_update",
    )


def title_of(tool: str, args: object) -> str:
    """Answer a call's title: the tool, and its most telling argument when that is a text."""
    given = cast("dict[str, object]", args or {})
    first = next((given[name] for name in TELLING if name in given), next(iter(given.values()), ""))
    text = " ".join(first.split()) if isinstance(first, str) else ""
    title = f"{tool} {text}".strip()
    return title if len(title) <= TITLE_CHARACTERS_MAX else f"{title[:TITLE_CHARACTERS_MAX]}…"


def kind_of(tool: str) -> ToolKind:
    """Answer what the protocol calls the work of a tool."""
    return cast("ToolKind", KINDS.get(tool, "other"))
