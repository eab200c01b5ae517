"""Tasks: small mutable records with a status; what the scheduler runs (TK-01)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.records.codec import decode_json
from perdure.records.names import stored
from perdure.records.seqs import Seq
from perdure.records.writes import InsertTask


class Role(StrEnum):
    """What a status means to the scheduler, and all it means (TK-06)."""

    START = "start"
    INFLIGHT = "inflight"
    WAITING = "waiting"
    TERMINAL = "terminal"


class Task(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=stored):
    """One task at one boundary; absent optional fields stay absent, never null."""

    id: Seq
    conv_id: Seq
    kind: str
    at_entry: Seq | UnsetType = UNSET
    spawned_by: Seq | UnsetType = UNSET
    after: tuple[Seq, ...] = ()
    status: str
    state_json: Raw
    owns: Seq | UnsetType = UNSET
    abort_requested: Literal[True] | UnsetType = UNSET

    @property
    def state(self) -> Mapping[str, Any]:
        """Decode the state into fresh plain JSON; kinds decode it into their own Struct."""
        return decode_json(self.state_json)


def new_task(write: InsertTask) -> Task:
    """Answer the task that an insert creates; its id is the seq."""
    return Task(
        id=write.seq,
        conv_id=write.conv_id,
        kind=write.kind,
        at_entry=write.at_entry,
        spawned_by=write.spawned_by,
        after=write.after,
        status=write.status,
        state_json=write.state_json,
    )
