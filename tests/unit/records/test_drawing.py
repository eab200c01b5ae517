"""Drawing order, the lane, and subscriptions: pure functions over a watch (WT-11 to WT-13)."""

import pytest
from msgspec import UNSET, Raw

from perdure.records.codec import to_raw
from perdure.records.context_list import ContextList
from perdure.records.conversations import ConversationState
from perdure.records.drawing import drawn, lane
from perdure.records.entries import Entry
from perdure.records.interests import Finder, Interest
from perdure.records.messages import TextPart, UserMessage
from perdure.records.scratch import GenerationScratch, StreamedPart
from perdure.records.seqs import Seq
from perdure.records.tasks import Task
from perdure.records.view import View
from perdure.records.watch import (
    Page,
    WatchBase,
    WatchCommit,
    WatchInput,
    WatchWrite,
    read_event,
    read_page,
    wire,
)
from perdure.records.writes import InsertEntry, InsertTask, PatchTask, SettleTask, Write


def entry(seq: int, kind: str = "user", through: int | None = None) -> Entry:
    return Entry(
        id=Seq(seq),
        conv_id=Seq(1),
        kind=kind,
        through=UNSET if through is None else Seq(through),
        meta_json=Raw(b"{}"),
        payload_json=Raw(b"{}"),
        commit_end=Seq(seq),
    )


U1, A1, U2, A2, U3, A3 = (entry(seq) for seq in (1, 2, 3, 4, 23, 25))
S = entry(26, "summary", through=2)
CONTEXT = ContextList([Seq(26), Seq(3), Seq(4), Seq(23), Seq(25)])


def order(*entries: Entry) -> list[int]:
    return [one.entry.id for one in drawn(entries, CONTEXT)]


@pytest.mark.spec("WT-11", "WT-12")
def test_the_worked_example_with_limit_three() -> None:
    state = ConversationState(id=Seq(1), commit_end=Seq(28), context=CONTEXT)
    view = View(WatchBase(as_of=Seq(28), conversation=state, entries=(U3, A3, S), scratch={}))
    assert order(*view.base().entries) == [26, 23, 25]
    view.add_page(Page(as_of=Seq(28), entries=(U2, A2), before=Seq(23)))
    assert order(*view.base().entries) == [26, 3, 4, 23, 25]
    view.add_page(Page(as_of=Seq(28), entries=(U1, A1), before=Seq(3)))
    assert order(*view.base().entries) == [1, 2, 26, 3, 4, 23, 25]


@pytest.mark.spec("WT-11")
def test_summaries_that_sum_up_one_another_stand_in_their_order() -> None:
    later = entry(40, "summary", through=26)
    same = entry(41, "summary", through=2)
    assert order(U1, A1, S, U2, later, same) == [1, 2, 26, 41, 40, 3]
    assert order(U2, S, later) == [26, 40, 3]
    assert order(U2, entry(30, "summary", through=1), S) == [26, 30, 3]


@pytest.mark.spec("WT-13")
def test_what_the_model_reads_is_told_apart() -> None:
    shown = {one.entry.id: one.in_context for one in drawn([U1, S, U2], CONTEXT)}
    assert shown == {1: False, 26: True, 3: True}


def test_queued_content_is_not_drawn_in_the_transcript() -> None:
    assert order(U1, entry(5, "input")) == [1]


@pytest.mark.spec("WT-18")
def test_the_lane_is_built_from_the_base_alone() -> None:
    generation = Task(
        id=Seq(30), conv_id=Seq(1), kind="generation", status="streaming", state_json=Raw(b"{}")
    )
    call = Task(
        id=Seq(31),
        conv_id=Seq(1),
        kind="tool",
        status="running",
        state_json=Raw(b'{"callId":"c","name":"look","argsText":1}'),
    )
    reply = GenerationScratch(
        parts=(StreamedPart(type="thinking", text="hm"), StreamedPart(type="text", text="Hel"))
    )
    queued = WatchInput(
        id=Seq(9),
        kind="steer",
        mode="steer",
        messages=(UserMessage(content=(TextPart(text="and"),), timestamp=1),),
    )
    base = WatchBase(
        as_of=Seq(31),
        conversation=ConversationState(id=Seq(1), commit_end=Seq(31), context=CONTEXT),
        entries=(U3, S),
        tasks=(generation, call),
        scratch={Seq(30): to_raw(reply), Seq(31): Raw(b'{"output":"tail"}')},
        inbox=(queued,),
    )
    made = lane(read_base(base))
    assert [one.entry.id for one in made.transcript] == [26, 23]
    assert made.streaming is not None
    assert (made.streaming.task_id, made.streaming.text) == (30, "Hel")
    (running,) = made.running
    assert (running.call_id, running.name, running.output) == ("c", "look", "tail")
    assert made.queues == {"steer": (queued,)}


def read_base(base: WatchBase) -> WatchBase:
    """Send a base over the wire."""
    read = read_event(wire(base))
    assert isinstance(read, WatchBase)
    return read


@pytest.mark.spec("WT-08", "IV-13")
def test_a_page_never_regresses_an_entry() -> None:
    state = ConversationState(id=Seq(1), commit_end=Seq(25), context=CONTEXT)
    view = View(WatchBase(as_of=Seq(25), conversation=state, entries=(A3,), scratch={}))
    change = InsertEntry(
        seq=Seq(40), conv_id=Seq(1), kind="user", meta_json=Raw(b"{}"), payload_json=Raw(b"{}")
    )
    batch = WatchCommit(
        first_seq=Seq(40),
        last_seq=Seq(40),
        time_ms=1,
        writes=(WatchWrite(seq=Seq(40), change=change),),
    )
    page = read_page(wire(Page(as_of=Seq(40), entries=(U3, A3, entry(40)), before=Seq(50))))
    view.add_page(page)
    view.apply(batch)
    view.apply(batch)
    view.add_page(page)
    assert [one.id for one in view.base().entries] == [23, 25, 40]
    assert view.as_of == 40


@pytest.mark.spec("WT-17")
def test_a_subscription_gets_exactly_the_matching_records() -> None:
    finder = Finder(
        Interest(kind="tool", status="done"), Interest(record="ins_entry", kind="assistant")
    )
    state = ConversationState(id=Seq(1), commit_end=Seq(25), context=CONTEXT)
    live = Task(id=Seq(5), conv_id=Seq(1), kind="tool", status="running", state_json=Raw(b"{}"))
    finder.found(WatchBase(as_of=Seq(25), conversation=state, tasks=(live,), scratch={}))
    changes: list[Write] = [
        InsertTask(
            seq=Seq(30), conv_id=Seq(1), kind="tool", status="planned", state_json=Raw(b"{}")
        ),
        PatchTask(seq=Seq(31), task_id=Seq(30), status="running"),
        SettleTask(seq=Seq(32), task_id=Seq(5), status="done"),
        SettleTask(seq=Seq(33), task_id=Seq(30), status="done"),
        SettleTask(seq=Seq(34), task_id=Seq(6), status="done"),
        InsertEntry(seq=Seq(35), conv_id=Seq(1), kind="assistant", meta_json=Raw(b"{}")),
        InsertEntry(seq=Seq(36), conv_id=Seq(1), kind="user", meta_json=Raw(b"{}")),
    ]
    batch = WatchCommit(
        first_seq=Seq(30),
        last_seq=Seq(36),
        time_ms=1,
        writes=tuple(WatchWrite(seq=one.seq, change=one) for one in changes),
    )
    assert [one.seq for one in finder.found(batch)] == [32, 33, 35]
