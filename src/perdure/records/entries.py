"""Entries: what happened, immutable, in transcript order (ST-19)."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.errors import Rejected, StorageDamaged
from perdure.records.codec import checked_raw, decode, decode_json
from perdure.records.names import stored
from perdure.records.seqs import Seq
from perdure.records.strict_json import NO_REPAIRS, Repairs, repair_text
from perdure.records.writes import InsertEntry

Outcome: TypeAlias = Literal["finished", "denied", "notStarted", "interrupted"]
"""The four truths the model is told about a call (FM-07)."""

META_BYTES_MAX: Final = 1024
"""Meta is resident, so it is small (FM-02)."""

PREVIEW_CHARACTERS_MAX: Final = 120


_GAP: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
_JOINERS: Final = ("\u200d", "\ufe0e", "\ufe0f")
"""Zero-width joiner and variation selectors: they belong to the character before them."""

_SKIN_TONES: Final = ("\U0001f3fb", "\U0001f3ff")
_FLAG_LETTERS: Final = ("\U0001f1e6", "\U0001f1ff")


class ModelId(Struct, frozen=True, gc=False, kw_only=True, rename=stored):
    """Name a model: `provider:model_id`, split at the first colon (PV-02)."""

    provider: str
    model_id: str

    def __str__(self) -> str:
        """Write the model the way people type it."""
        return f"{self.provider}:{self.model_id}"


class Repaired(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Say how many lone surrogates, NULs and secrets a door replaced."""

    surrogates: int = 0
    nul: int = 0
    secrets: int = 0


class Split(Struct, frozen=True, gc=False, kw_only=True, rename=stored):
    """Say that a summary ends inside a turn, and where that turn starts."""

    turn_start: Seq


class EntryMeta(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=stored):
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


class Entry(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=stored):
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
        """Decode the core facts of the meta; a plugin's own fields are in `meta_json`.

        Raises:
            StorageDamaged: the stored bytes are no meta.
        """
        try:
            return decode(self.meta_json, EntryMeta)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise StorageDamaged(f"the meta of entry {self.id}: {error}") from None

    @property
    def payload(self) -> Any:
        """Decode the payload into fresh plain JSON; None when there is none.

        Raises:
            StorageDamaged: the stored bytes are no JSON that perdure stores.
        """
        if self.payload_json is UNSET:
            return None
        try:
            return decode_json(self.payload_json)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise StorageDamaged(f"the payload of entry {self.id}: {error}") from None


def new_entry(write: InsertEntry, commit_end: Seq) -> Entry:
    """Answer the entry that an insert creates; its id is the seq."""
    return Entry(
        id=write.seq,
        conv_id=write.conv_id,
        kind=write.kind,
        written_by=write.written_by,
        call_index=write.call_index,
        through=write.through,
        key=write.key,
        ref=write.ref,
        meta_json=write.meta_json,
        payload_json=write.payload_json,
        commit_end=commit_end,
    )


def repaired_meta(repairs: Repairs) -> Repaired | UnsetType:
    """Answer what `meta.repaired` says of a door's counts: nothing when nothing was replaced."""
    if repairs == NO_REPAIRS:
        return UNSET
    return Repaired(surrogates=repairs.surrogates, nul=repairs.nul, secrets=repairs.secrets)


def preview_of(text: str) -> str:
    """Answer the start of a text on one line, at most 120 characters, none of them half (FM-02).

    White space and control characters become single spaces. What a reader sees as one character
    (a letter with its accents, a joined emoji, a flag) is kept whole or left out.
    """
    clean, _ = repair_text(_cut(text, 4 * PREVIEW_CHARACTERS_MAX))
    return _cut(_GAP.sub(" ", clean).strip(), PREVIEW_CHARACTERS_MAX)


def _cut(text: str, length: int) -> str:
    """Keep at most `length` code points, and no part of a character that does not fit whole."""
    if len(text) <= length:
        return text
    end = length
    while end and _continues(text, end):
        end -= 1
    return text[: end or length]


def _continues(text: str, index: int) -> bool:
    """Say whether the character at `index` is drawn as part of the one before it."""
    char, before = text[index], text[index - 1]
    if unicodedata.category(char)[0] == "M" or char in _JOINERS or before == _JOINERS[0]:
        return True
    if _SKIN_TONES[0] <= char <= _SKIN_TONES[1]:
        return True
    if not _FLAG_LETTERS[0] <= char <= _FLAG_LETTERS[1]:
        return False
    run = 0
    while run < index and _FLAG_LETTERS[0] <= text[index - 1 - run] <= _FLAG_LETTERS[1]:
        run += 1
    return run % 2 == 1


def checked_meta(meta: EntryMeta | Mapping[str, object]) -> Raw:
    """Encode an entry's meta; it is resident, so it is strict JSON of at most 1 KiB (FM-02, VD-17).

    Raises:
        Rejected: `invariant`, naming the size, or path and type of what is no strict JSON.
    """
    raw = checked_raw(meta)
    size = len(bytes(raw))
    if size > META_BYTES_MAX:
        raise Rejected(
            "invariant",
            f"an entry's meta of {size} bytes; at most {META_BYTES_MAX} fit, so keep large facts "
            f"in the payload",
            {"bytes": size},
        )
    return raw
