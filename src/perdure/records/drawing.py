"""How a transcript is drawn: one order for the page, the command line and every client (WT-11).

Entries stand where they were stored, but a summary stands right after the last entry it sums up,
or above everything when that one is not loaded. What the model reads is told apart from the rest.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec import UNSET, Struct

from perdure.records.codec import decode
from perdure.records.conversations import InboxTag
from perdure.records.entries import Entry
from perdure.records.names import stored
from perdure.records.scratch import GenerationScratch, StreamedPart, ToolScratch
from perdure.records.seqs import Seq
from perdure.records.tasks import Task
from perdure.records.watch import WatchBase, WatchInput


class Drawn(Struct, frozen=True, gc=False, kw_only=True):
    """An entry to draw; `in_context` says that the model reads it (WT-13)."""

    entry: Entry
    in_context: bool


class RunningTool(Struct, frozen=True, gc=False, kw_only=True):
    """A call that has no result yet; `output` is the end of what it wrote so far."""

    task_id: Seq
    call_id: str
    name: str
    status: str
    output: str = ""


class Streaming(Struct, frozen=True, gc=False, kw_only=True):
    """The message a generation is writing, as far as it came."""

    task_id: Seq
    parts: tuple[StreamedPart, ...] = ()

    @property
    def text(self) -> str:
        """Answer the text parts joined."""
        return "".join(part.text for part in self.parts if part.type == "text")


class Lane(Struct, frozen=True, gc=False, kw_only=True):
    """A conversation in one piece: what was said, is being said, runs, and waits (WT-18)."""

    transcript: tuple[Drawn, ...]
    streaming: Streaming | None
    running: tuple[RunningTool, ...]
    queues: Mapping[InboxTag, tuple[WatchInput, ...]]


class _Call(Struct, frozen=True, gc=False, kw_only=True, rename=stored):
    """What a tool task's state says of its call."""

    call_id: str
    name: str


def drawn(entries: Iterable[Entry], context: Collection[Seq]) -> tuple[Drawn, ...]:
    """Answer loaded entries in the order they are drawn (WT-11, WT-13).

    `entries` are any part of a transcript, `context` is the conversation's context list. Queued
    content (`input` entries) is drawn from the queue, not here.
    """
    loaded = sorted((one for one in entries if one.kind != "input"), key=_by_id)
    order = [one for one in loaded if not _moves(one)]
    for summary in (one for one in loaded if _moves(one)):
        order.insert(_place(order, summary), summary)
    listed = frozenset(context)
    return tuple(Drawn(entry=one, in_context=one.id in listed) for one in order)


def _moves(entry: Entry) -> bool:
    return entry.kind == "summary" and entry.through is not UNSET


def _place(order: Sequence[Entry], summary: Entry) -> int:
    """Answer where a summary goes: after its `through` and what already stands there, or on top."""
    place = 0
    for index, entry in enumerate(order):
        if entry.id == summary.through or (_moves(entry) and entry.through == summary.through):
            place = index + 1
    if place:
        return place
    # What it sums up is not loaded: above the oldest entry, below older summaries that are there.
    while place < len(order) and _moves(order[place]):
        place += 1
    return place


def lane(base: WatchBase) -> Lane:
    """Build the lane of a base, or of a view's `base()`, from nothing else (WT-18)."""
    own = [task for task in base.tasks if task.conv_id == base.conversation.id]
    streaming = [task for task in own if task.kind == "generation" and task.id in base.scratch]
    queues: dict[InboxTag, tuple[WatchInput, ...]] = {}
    for item in base.inbox:
        queues[item.kind] = (*queues.get(item.kind, ()), item)
    return Lane(
        transcript=drawn(base.entries, base.conversation.context),
        streaming=None if not streaming else _streaming(streaming[-1], base),
        running=tuple(_running(task, base) for task in own if task.kind == "tool"),
        queues=MappingProxyType(queues),
    )


def _streaming(task: Task, base: WatchBase) -> Streaming:
    return Streaming(task_id=task.id, parts=decode(base.scratch[task.id], GenerationScratch).parts)


def _running(task: Task, base: WatchBase) -> RunningTool:
    call = decode(task.state_json, _Call)
    raw = base.scratch.get(task.id)
    return RunningTool(
        task_id=task.id,
        call_id=call.call_id,
        name=call.name,
        status=task.status,
        output="" if raw is None else decode(raw, ToolScratch).output,
    )


def _by_id(entry: Entry) -> Seq:
    return entry.id
