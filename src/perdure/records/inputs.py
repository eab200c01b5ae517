"""What became of each accepted input: the input record and its public reading (D01, D02).

Beside it the record of what a request made that is no input.
"""

from typing import Final, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from perdure.records.budgets import Budget
from perdure.records.entries import Entry
from perdure.records.messages import AssistantMessage, MessageError
from perdure.records.names import stored, stored_as
from perdure.records.seqs import Seq

InputMode: TypeAlias = Literal["prompt", "followUp", "steer", "nextRun", "spawn", "write"]
InputState: TypeAlias = Literal[
    "queued", "open", "answered", "stopped", "failed", "aborted", "withdrawn", "placed"
]
CreatingVerb: TypeAlias = Literal["fork", "rewind"]

FINAL_STATES: Final[frozenset[InputState]] = frozenset(
    {"answered", "stopped", "failed", "aborted", "withdrawn", "placed"}
)


class InputRecord(Struct, frozen=True, gc=False, kw_only=True, rename=stored):
    """Value of `perdure.input`, key the input id: the one durable fact of an input's outcome.

    `budget` is what its whole chain may spend; a raise replaces it (BG-02).
    """

    v: Literal[1] = 1
    conv_id: Seq
    mode: InputMode
    state: InputState
    digest: str
    request_id: str | UnsetType = UNSET
    entry: Seq | UnsetType = UNSET
    task: Seq | UnsetType = UNSET
    answer: Seq | UnsetType = UNSET
    partial: Seq | UnsetType = UNSET
    error: MessageError | UnsetType = UNSET
    withdrawn_by: Literal["cancel", "abort", "delete"] | UnsetType = UNSET
    budget: Budget | UnsetType = UNSET


class CreationRecord(Struct, frozen=True, gc=False, kw_only=True, rename=stored):
    """Value of `perdure.creation`, key the id of what was made; `conv` is where it was asked for.

    Written only for a request with a key: what has none is never asked for again.
    """

    v: Literal[1] = 1
    conv_id: Seq
    verb: CreatingVerb
    digest: str
    request_id: str


class Accepted(Struct, frozen=True, gc=False, kw_only=True):
    """A durable acceptance: the input's id, and whether the request key had been seen before."""

    input_id: Seq
    duplicate: bool = False


class InputResult(Struct, frozen=True, gc=False, kw_only=True, rename=stored_as(input_id="id")):
    """What became of one input, read at one moment (ER-08).

    `message` is the assistant message of an answered or stopped input, else None; `text` is that
    message's text parts joined, else "".
    """

    input_id: Seq
    conv_id: Seq
    mode: InputMode
    state: InputState
    entry: Entry | None = None
    answer: Seq | None = None
    message: AssistantMessage | None = None
    partial: AssistantMessage | None = None
    error: MessageError | None = None
    withdrawn_by: Literal["cancel", "abort", "delete"] | None = None

    @property
    def final(self) -> bool:
        """Say whether nothing will change this result any more."""
        return self.state in FINAL_STATES

    @property
    def text(self) -> str:
        """Answer the message's text, or "" when there is none."""
        return self.message.text if self.message is not None else ""
