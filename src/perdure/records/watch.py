"""What a watch delivers: a base, then batches, deltas and signals (WT-19).

Field names are those of the wire; `wire` encodes any of these, `read_event` reads it back.
"""

from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.records.codec import decode
from perdure.records.context_list import ContextList
from perdure.records.conversations import ConversationState, InboxItem, InboxTag
from perdure.records.entries import Entry
from perdure.records.messages import UserMessage, UserPayload
from perdure.records.names import stored, stored_as
from perdure.records.seqs import Seq
from perdure.records.tasks import Task
from perdure.records.writes import Write


class WatchInput(Struct, frozen=True, gc=False, kw_only=True):
    """One queued input with its content: where it waits (`kind`) and how it was given (`mode`)."""

    id: Seq
    kind: InboxTag
    mode: str
    messages: tuple[UserMessage, ...]


class WatchValue(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=stored):
    """A value that was asked for; `conv` is absent for one of the session, `value` for none."""

    namespace: str
    key: str = ""
    conv_id: Seq | UnsetType = UNSET
    value_json: Raw | UnsetType = UNSET


class WatchBase(
    Struct, frozen=True, gc=False, kw_only=True, tag="base", tag_field="type", rename=stored
):
    """A conversation at the main boundary `as_of`; every later commit follows once.

    `entries` are the newest of the transcript, in order; `tasks` those that live; `scratch` is what
    their kinds reduce of their working scopes, by task id.
    """

    as_of: Seq
    conversation: ConversationState
    entries: tuple[Entry, ...] = ()
    tasks: tuple[Task, ...] = ()
    scratch: dict[Seq, Raw]
    inbox: tuple[WatchInput, ...] = ()
    values: tuple[WatchValue, ...] = ()


class WatchWrite(Struct, frozen=True, gc=False, kw_only=True, rename=stored_as(seq="seq")):
    """One write of a batch: its seq, and the record; a placed entry carries its payload too."""

    seq: Seq
    change: Write


class WatchCommit(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="commit",
    tag_field="type",
    rename=stored_as(
        first_seq="firstSeq", last_seq="lastSeq", time_ms="timestamp", writes="writes"
    ),
):
    """The relevant writes of one main commit, never split; `time_ms` is wall milliseconds."""

    first_seq: Seq
    last_seq: Seq
    time_ms: int
    writes: tuple[WatchWrite, ...]


class WatchDelta(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="delta",
    tag_field="type",
    rename=stored_as(task_id="taskId"),
):
    """Something a live task shows, after its working commit.

    `kind` is `frame`, `output`, `progress`, `reset` (what stands there is replaced by the payload),
    or one that a task kind emits.
    """

    task_id: Seq
    kind: str
    payload_json: Raw


class Quiescent(
    Struct, frozen=True, gc=False, kw_only=True, tag="quiescent", tag_field="type", rename=stored
):
    """A conversation has no foreground work left."""

    conv_id: Seq


class FaultSignal(Struct, frozen=True, gc=False, kw_only=True, tag="fault", tag_field="type"):
    """The session stopped; the last item of its watch."""

    message: str


class HandlerError(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    tag="handler_error",
    tag_field="type",
    rename=stored_as(task_id="taskId"),
):
    """A listener or an observer threw; nothing else is affected (LN-13)."""

    task_id: Seq | UnsetType = UNSET
    message: str


class ClosedSignal(Struct, frozen=True, gc=False, tag="closed", tag_field="type"):
    """The session was closed; the last item of its watch."""


class Overflow(Struct, frozen=True, gc=False, tag="overflow", tag_field="type"):
    """The watcher read too slowly and was dropped; the last item of its watch. Watch again."""


SnapshotReason: TypeAlias = Literal[
    "unknown", "inside_commit", "future", "too_many_commits", "too_many_bytes"
]


class SnapshotRequired(
    Struct, frozen=True, gc=False, kw_only=True, tag="snapshot_required", tag_field="type"
):
    """What was asked for cannot be continued; a new base follows (WB-16)."""

    reason: SnapshotReason


WatchSignal: TypeAlias = Quiescent | FaultSignal | HandlerError | ClosedSignal | Overflow
WatchEvent: TypeAlias = WatchBase | WatchCommit | WatchDelta | WatchSignal | SnapshotRequired

LAST_SIGNALS: Final = (FaultSignal, ClosedSignal, Overflow)
"""Signals after which a watch says nothing more (WT-07)."""


class Page(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    tag="page",
    tag_field="type",
    rename=stored,
):
    """A page of a transcript at the main boundary `as_of`, and the bound it was asked with."""

    as_of: Seq
    entries: tuple[Entry, ...]
    before: Seq | UnsetType = UNSET
    after: Seq | UnsetType = UNSET


class EntryPage(list[Entry]):
    """A page of entries that knows the main boundary it was read at (WT-08)."""

    def __init__(
        self, entries: list[Entry], *, as_of: Seq, before: Seq | None, after: Seq | None
    ) -> None:
        """Take the entries in the order they were asked for."""
        super().__init__(entries)
        self.as_of = as_of
        self.before = before
        self.after = after

    def page(self) -> Page:
        """Answer the wire form, in transcript order."""
        return Page(
            as_of=self.as_of,
            entries=tuple(sorted(self, key=_by_id)),
            before=UNSET if self.before is None else self.before,
            after=UNSET if self.after is None else self.after,
        )


def queued_input(item: InboxItem, entry: Entry) -> WatchInput:
    """Answer a queued input with the content of its entry."""
    payload = Raw(b'{"messages":[]}') if entry.payload_json is UNSET else entry.payload_json
    mode = entry.meta.mode
    return WatchInput(
        id=item.id,
        kind=item.kind,
        mode=item.kind if mode is UNSET else mode,
        messages=decode(payload, UserPayload).messages,
    )


def _by_id(entry: Entry) -> Seq:
    return entry.id


def json_form(value: object) -> object:
    """Answer what the encoder asks of a value that is no JSON type: a context list is its ids.

    Raises:
        TypeError: for any other type; a record that holds one is a defect.
    """
    if isinstance(value, ContextList):
        return list(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def from_json(kind: type[Any], value: Any) -> Any:
    """Answer what the decoder asks for a field that is no JSON type; raises TypeError likewise."""
    if kind is ContextList:
        return ContextList(value)
    raise TypeError(f"a {kind.__name__} is not read from JSON")


_ENCODER: Final = msgspec.json.Encoder(enc_hook=json_form)
_EVENTS: Final[msgspec.json.Decoder[WatchEvent]] = msgspec.json.Decoder(
    WatchEvent, dec_hook=from_json
)
_PAGES: Final = msgspec.json.Decoder(Page, dec_hook=from_json)


def wire(event: WatchEvent | Page) -> bytes:
    """Encode an event or a page as one JSON object, told apart by `type`."""
    return _ENCODER.encode(event)


def read_event(data: bytes) -> WatchEvent:
    """Read an event from its JSON; raises msgspec.ValidationError for anything else."""
    return _EVENTS.decode(data)


def read_page(data: bytes) -> Page:
    """Read a page from its JSON; raises msgspec.ValidationError for anything else."""
    return _PAGES.decode(data)
