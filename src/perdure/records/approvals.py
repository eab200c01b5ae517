"""Approvals: a person's decision as a record, and how every surface shows it (seed 3.15, D17)."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.records.names import stored
from perdure.records.seqs import Seq

ApprovalStatus: TypeAlias = Literal["pending", "waiting", "granted", "denied", "cancelled"]

Verdict: TypeAlias = Literal["grant", "deny"]


class Decision(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename=stored,
):
    """Who decided what, and when (wall milliseconds); stored in the commit that applies it (AQ-06).

    `details` is plain JSON of whoever decided; it never changes arguments (D17).
    """

    decision: Verdict
    by: str
    details: Raw | UnsetType = UNSET
    timestamp: int


class ApprovalState(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename=stored,
):
    """One question to a person: for the call of `tool`, for a budget, or standing by itself.

    `prompt` shows no argument values unless whoever held the call wrote them in (X23).
    """

    v: Literal[1]
    prompt: str
    asked_ms: int
    tool: Seq | UnsetType = UNSET
    budget: Mapping[str, Any] | UnsetType = UNSET
    decision: Decision | UnsetType = UNSET


class Remember(Struct, frozen=True, kw_only=True):
    """Remember a grant: for exactly this call's arguments, or for globs over named ones (AQ-10).

    `arguments={}` covers every call of the tool. `expires_at_ms` is wall milliseconds; without it
    the grant stands until it is revoked.
    """

    arguments: Mapping[str, str] | None = None
    expires_at_ms: int | None = None


class Grant(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    tag="grant",
    tag_field="type",
    rename=stored,
):
    """What one decision lets run from now on: calls of `tool` in the tree of `conv_id` (AQ-10)."""

    v: Literal[1]
    tool: str
    conv_id: Seq
    arguments: Mapping[str, str] | UnsetType = UNSET
    digest: str | UnsetType = UNSET
    by: str
    timestamp: int
    expires_at_ms: int | UnsetType = UNSET


class Revocation(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="revoked",
    tag_field="type",
    rename=stored,
):
    """The end of a grant."""

    v: Literal[1]
    grant: Seq
    by: str
    timestamp: int


GrantElement: TypeAlias = Grant | Revocation
"""An element of the list of grants."""


class ApprovalOutcome(Struct, frozen=True, kw_only=True):
    """What one decision did: `applied` is False when the approval had ended or is being cancelled.

    `decision` is the one that stands, None while there is none and when it was cancelled. `grant`
    is what this decision remembered.
    """

    status: ApprovalStatus
    applied: bool
    decision: Decision | None = None
    grant: Seq | None = None


class ApprovalView(Struct, frozen=True, kw_only=True):
    """One approval as every surface shows it (AQ-05).

    `path` leads from the root's conversation to `conv` (AQ-12). `args_text` is the canonical text
    of the stored arguments, in full: exactly those that run. `asked_ms` is wall milliseconds.
    """

    id: Seq
    conv: Seq
    path: tuple[Seq, ...]
    prompt: str
    asked_ms: int
    status: ApprovalStatus
    is_marked: bool = False
    tool_task: Seq | None = None
    tool: str | None = None
    args_text: str | None = None
    budget: Mapping[str, Any] | None = None
    decision: Decision | None = None
