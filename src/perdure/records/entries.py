"""Entries: what happened, immutable, in transcript order (ST-19)."""

from typing import Any, Final, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.records.codec import decode, decode_json
from perdure.records.names import stored
from perdure.records.seqs import Seq

Outcome: TypeAlias = Literal["finished", "denied", "notStarted", "interrupted"]
"""The four truths the model is told about a call (FM-07)."""

META_BYTES_MAX: Final = 1024
"""Meta is resident, so it is small (FM-02)."""

PREVIEW_CHARACTERS_MAX: Final = 120


class ModelId(Struct, frozen=True, kw_only=True, rename=stored):
    """Name a model: `provider:model_id`, split at the first colon (PV-02)."""

    provider: str
    model_id: str

    def __str__(self) -> str:
        """Write the model the way people type it."""
        return f"{self.provider}:{self.model_id}"


class Repaired(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Say how many lone surrogates and NULs a door replaced."""

    surrogates: int = 0
    nul: int = 0


class Split(Struct, frozen=True, kw_only=True, rename=stored):
    """Say that a summary ends inside a turn, and where that turn starts."""

    turn_start: Seq


class EntryMeta(Struct, frozen=True, kw_only=True, omit_defaults=True, rename=stored):
    """The small resident facts of an entry (FM-02); which ones are set depends on the kind."""

    timestamp: int = 0
    bytes: int = 0
    tokens: int = 0
    preview: str | UnsetType = UNSET
    repaired: Repaired | UnsetType = UNSET
    mode: str | UnsetType = UNSET
    as_kind: str | UnsetType = UNSET
    from_subject: str | UnsetType = UNSET
    handoff: Literal[True] | UnsetType = UNSET
    stop: str | UnsetType = UNSET
    model: ModelId | UnsetType = UNSET
    request_as_of: Seq | UnsetType = UNSET
    prefix_version: int | UnsetType = UNSET
    context_tokens: int | UnsetType = UNSET
    fixed_tokens: int | UnsetType = UNSET
    answers: Seq | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET
    tokens_before: int | UnsetType = UNSET
    split: Split | UnsetType = UNSET
    note: Any | UnsetType = UNSET


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True, rename=stored):
    """One immutable transcript element; `commit_end` is the last seq of its creating commit.

    A placed entry (`ref` set) carries the payload of the `input` entry it refers to (D03).
    """

    id: Seq
    conv_id: Seq
    kind: str
    written_by: Seq | UnsetType = UNSET
    call_index: int | UnsetType = UNSET
    through: Seq | UnsetType = UNSET
    key: str | UnsetType = UNSET
    ref: Seq | UnsetType = UNSET
    meta_json: Raw
    payload_json: Raw | UnsetType = UNSET
    commit_end: Seq

    @property
    def meta(self) -> EntryMeta:
        """Decode the core facts of the meta; a plugin's own fields are in `meta_json`."""
        return decode(self.meta_json, EntryMeta)

    @property
    def payload(self) -> Any:
        """Decode the payload into fresh plain JSON; None when there is none."""
        return None if self.payload_json is UNSET else decode_json(self.payload_json)
