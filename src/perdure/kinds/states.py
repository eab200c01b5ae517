"""The stored states of the core kinds, each with its version `v` (FM-12)."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from perdure.errors import FailureCode
from perdure.records.budgets import Reservation
from perdure.records.entries import Outcome
from perdure.records.launches import LaunchRef
from perdure.records.models import DeferredHandle
from perdure.records.names import stored
from perdure.records.seqs import Seq


class GenerationState(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename=stored,
):
    """One generation: captured settings (by digest), attempts, the inputs it owes an answer.

    `request_as_of` is the main boundary of the current request (GN-06); `poll` counts fetches of
    one deferred handle (GN-40). `reserved` is what the request of now may still spend (BG-05);
    `worked_ms` the time its ended requests took, as far as nothing beside them stored it (BG-04).
    """

    v: Literal[1]
    settings: str
    attempt: int = 1
    inputs: tuple[Seq, ...] = ()
    yields: int = 0
    not_before: int | UnsetType = UNSET
    request_as_of: Seq | UnsetType = UNSET
    overflow_retried: Literal[True] | UnsetType = UNSET
    deferred: DeferredHandle | UnsetType = UNSET
    poll: int = 0
    produced: Seq | UnsetType = UNSET
    calls: tuple[Seq, ...] = ()
    post_tools: Seq | UnsetType = UNSET
    reserved: Reservation | UnsetType = UNSET
    worked_ms: int = 0
    error: FailureCode | UnsetType = UNSET


class ToolState(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename=stored,
):
    """One call. `args` are the effective arguments, stored when they differ from the call's own.

    `offered` says that the generation offered the tool (TL-03); `replay` is captured with the
    running intent (TL-07); `launch` is where its command was started (TL-33); `allowed_by` says
    whose flag let a call run that would have asked (AQ-09). `approval` is the question that holds
    or held the call, and `approved` says that it was granted: then `args` run as they are (AQ-05).
    `worked_ms` is the time it took, as far as nothing beside it stored it (BG-04).
    """

    v: Literal[1]
    call_index: int
    call_id: str
    name: str
    offered: bool = True
    origin: Literal["exchange", "call"] = "exchange"
    attempt: int = 1
    replay: Literal["safe", "never"] = "never"
    allowed_by: str | UnsetType = UNSET
    approval: Seq | UnsetType = UNSET
    approved: Literal[True] | UnsetType = UNSET
    args: Mapping[str, Any] | UnsetType = UNSET
    launch: LaunchRef | UnsetType = UNSET
    produced: Seq | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET
    is_error: bool = False
    worked_ms: int = 0
    terminate: bool = False
    handoff: str | UnsetType = UNSET


class Handoff(
    Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Whose handoff won, and whose were superseded, by tool task (D10)."""

    tool: Seq
    superseded: tuple[Seq, ...] = ()


class PostToolsState(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename=stored,
):
    """One join: the generation whose exchange it ends, and the inputs that wait for it (D01)."""

    v: Literal[1]
    generation: Seq
    inputs: tuple[Seq, ...] = ()
    handoff: Handoff | UnsetType = UNSET
