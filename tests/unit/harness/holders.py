"""The holder rule of input records, checked at every boundary (D01).

Open inputs are exactly the disjoint union of `inputs` over live generations and joins; a queued one
stands in exactly one inbox; every other one in neither. A record only moves along the table.
"""

from typing import Any

from perdure.kinds.states import GenerationState, PostToolsState
from perdure.line.line import Delivery
from perdure.records.codec import decode
from perdure.records.inputs import FINAL_STATES, InputRecord, InputState
from perdure.records.seqs import Seq
from perdure.records.writes import Commit, SetValue
from tests.engine import Engine

MOVES: dict[InputState | None, set[InputState]] = {
    None: {"queued", "open", "placed"},
    "queued": {"open", "withdrawn", "placed"},
    "open": {"answered", "stopped", "failed", "aborted"},
}


class Holders:
    """Fold deliveries; fail at the first boundary that breaks the rule."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.records: dict[Seq, InputRecord] = {}
        self.boundaries = 0
        self.conversations: set[Seq] = {Seq(1)}
        engine.line.listen(self.check)

    def rebind(self) -> None:
        """Go on after a reopening."""
        self.engine.line.listen(self.check)

    def check(self, delivery: Delivery) -> None:
        if delivery.scope is not None:
            return
        for input_id, record in records_in(delivery.commit).items():
            before = self.records.get(input_id)
            moves = MOVES.get(None if before is None else before.state, set())
            assert record.state in moves, f"{input_id}: {before} -> {record}"
            self.records[input_id] = record
        self.boundaries += 1
        held = self.engine.line.residency
        owed: list[Seq] = []
        for task in held.live_tasks():
            kind: Any = {"generation": GenerationState, "post_tools": PostToolsState}.get(task.kind)
            if kind is not None:
                owed.extend(decode(task.state_json, kind).inputs)
        waiting: list[Seq] = []
        for conv_id in self.conversations:
            state = held.conversation(conv_id)
            waiting.extend(item.id for item in (state.inbox if state is not None else ()))
        states = {seq: record.state for seq, record in self.records.items()}
        assert sorted(owed) == sorted(seq for seq, state in states.items() if state == "open")
        assert sorted(waiting) == sorted(seq for seq, state in states.items() if state == "queued")
        for seq, state in states.items():
            assert (state in FINAL_STATES) == (seq not in owed and seq not in waiting)


def records_in(commit: Commit) -> dict[Seq, InputRecord]:
    """Answer the input records a commit writes."""
    return {
        Seq(int(write.key)): decode(write.value_json, InputRecord)
        for write in commit.writes
        if isinstance(write, SetValue) and write.namespace == "perdure.input"
    }
