"""The wire shapes of a watch carry exactly the stated fields (WT-19)."""

import json
from typing import Any

import pytest
from msgspec import Raw

from perdure.records.conversations import ConversationState
from perdure.records.seqs import Seq
from perdure.records.watch import (
    ClosedSignal,
    FaultSignal,
    HandlerError,
    Overflow,
    Page,
    Quiescent,
    WatchBase,
    WatchCommit,
    WatchDelta,
    WatchEvent,
    WatchWrite,
    read_event,
    read_page,
    wire,
)
from perdure.records.writes import RetireScope

ONE = Seq(1)
STATE = ConversationState(id=ONE, commit_end=ONE)
WRITE = WatchWrite(seq=ONE, change=RetireScope(seq=ONE, working_scope="9"))

SHAPES: list[tuple[WatchEvent, str, set[str]]] = [
    (
        WatchBase(as_of=ONE, conversation=STATE, scratch={Seq(9): Raw(b'{"text":"a"}')}),
        "base",
        {"asOf", "conversation", "entries", "tasks", "scratch", "inbox", "values"},
    ),
    (
        WatchCommit(first_seq=ONE, last_seq=ONE, time_ms=5, writes=(WRITE,)),
        "commit",
        {"firstSeq", "lastSeq", "timestamp", "writes"},
    ),
    (
        WatchDelta(task_id=ONE, kind="frame", payload_json=Raw(b"{}")),
        "delta",
        {"taskId", "kind", "payload"},
    ),
    (Quiescent(conv_id=ONE), "quiescent", {"conv"}),
    (FaultSignal(message="m"), "fault", {"message"}),
    (HandlerError(task_id=ONE, message="m"), "handler_error", {"taskId", "message"}),
    (HandlerError(message="m"), "handler_error", {"message"}),
    (ClosedSignal(), "closed", set()),
    (Overflow(), "overflow", set()),
]


@pytest.mark.spec("WT-19")
@pytest.mark.parametrize(("event", "name", "fields"), SHAPES, ids=lambda one: type(one).__name__)
def test_an_event_has_exactly_its_fields(event: WatchEvent, name: str, fields: set[str]) -> None:
    sent: dict[str, Any] = json.loads(wire(event))
    assert sent.pop("type") == name
    assert set(sent) == fields
    assert wire(read_event(wire(event))) == wire(event)


@pytest.mark.spec("WT-19", "WT-03")
def test_a_write_has_its_seq_and_its_change() -> None:
    commit = json.loads(wire(SHAPES[1][0]))
    assert [set(write) for write in commit["writes"]] == [{"seq", "change"}]


@pytest.mark.spec("WT-19", "WT-08")
@pytest.mark.parametrize("bound", [{"before": ONE}, {"after": ONE}])
def test_a_page_has_its_boundary_its_entries_and_one_bound(bound: dict[str, Seq]) -> None:
    page = Page(as_of=ONE, entries=(), **bound)
    sent = json.loads(wire(page))
    assert (sent.pop("type"), set(sent)) == ("page", {"asOf", "entries", *bound})
    assert read_page(wire(page)) == page
