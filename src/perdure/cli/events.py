"""The lines of `--json-events` (CM-04): one object each, told apart by `type`.

`generation` names one request: `<task>.<attempt>`. Joining the texts of the deltas of the last one
gives the answer.
"""

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from perdure.cli.endings import Envelope


class AcceptedEvent(Struct, frozen=True, kw_only=True, tag="accepted", tag_field="type"):
    """The input is stored."""

    session: str
    conversation: int
    input_id: int
    duplicate: bool


class DeltaEvent(Struct, frozen=True, kw_only=True, tag="delta", tag_field="type"):
    """The model said more."""

    generation: str
    text: str


class ToolEvent(Struct, frozen=True, kw_only=True, tag="tool", tag_field="type"):
    """A call began to run or ended; `outcome` is one of the four truths, null while it runs."""

    task: int
    name: str
    status: Literal["running", "ended"]
    arguments: Any
    outcome: str | None = None
    is_error: bool | None = None
    text: str | None = None


class ApprovalEvent(Struct, frozen=True, kw_only=True, tag="approval", tag_field="type"):
    """A call waits for a person."""

    id: int
    tool: str
    arguments: Any


class UsageEvent(Struct, frozen=True, kw_only=True, tag="usage", tag_field="type"):
    """One attempt reported what it used; null is unknown."""

    task: int
    attempt: int
    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    reasoning: int | None
    cost: str | None
    currency: str | None


class SignalEvent(Struct, frozen=True, kw_only=True, tag="signal", tag_field="type"):
    """The command was told to end."""

    name: str


class BaseEvent(Struct, frozen=True, kw_only=True, tag="base", tag_field="type"):
    """What a watch begins with: the session at a main boundary, as `inspect` shows it."""

    as_of: int
    base: Any


class CommitEvent(Struct, frozen=True, kw_only=True, tag="commit", tag_field="type"):
    """One main commit that a watch has shown; `timestamp` is wall milliseconds."""

    first_seq: int
    last_seq: int
    timestamp: int


class ResultEvent(Struct, frozen=True, kw_only=True, tag="result", tag_field="type"):
    """The last line: the document of `--json`."""

    result: Envelope


Event: TypeAlias = (
    AcceptedEvent
    | DeltaEvent
    | ToolEvent
    | ApprovalEvent
    | UsageEvent
    | SignalEvent
    | BaseEvent
    | CommitEvent
    | ResultEvent
)
