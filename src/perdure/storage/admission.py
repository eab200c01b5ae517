"""What storage refuses before it admits anything: batches, bounds, names (ST-03, ST-10, ST-25).

A refusal is `Rejected`; nothing was changed and no seq was used. The door of the engine has
checked values already; storage checks the encoded bytes once more, whatever the door did.

Invariants kept here: seqs are contiguous from the last one; one lifetime a batch; only the
fifteen writes; every value is strict JSON text without NUL, surrogates or non-finite numbers.
"""

import json
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final, NoReturn, cast, get_args

import msgspec
from msgspec import UNSET, Raw

from perdure.errors import Rejected
from perdure.records.addresses import Address, WorkingScope
from perdure.records.codec import encode
from perdure.records.seqs import SEQ_MAX, Seq
from perdure.records.sessions import COMMITS_LIMIT_MAX, NAME_BYTES_MAX, SCAN_LIMIT_MAX
from perdure.records.strict_json import DEPTH_MAX, check
from perdure.records.writes import (
    AppendList,
    Commit,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertTask,
    PatchTask,
    RetireScope,
    SettleTask,
    SetValue,
    Write,
    scope_of,
)

WRITE_KINDS: Final[frozenset[type]] = frozenset(get_args(Write))
RAW_FIELDS: Final[tuple[tuple[type, tuple[str, ...]], ...]] = (
    (InsertEntry, ("meta_json", "payload_json")),
    (InsertTask, ("state_json",)),
    (PatchTask, ("state_json",)),
    (SettleTask, ("state_json",)),
    (SetValue, ("value_json",)),
    (AppendList, ("value_json",)),
)
"""Which fields of which writes hold encoded values."""

_NUL_ESCAPE: Final = b"\\u0000"
_DECODE: Final[Callable[[bytes | Raw], Any]] = msgspec.json.Decoder().decode


def refuse(message: str, **details: object) -> NoReturn:
    """Raise Rejected `invariant`."""
    raise Rejected("invariant", message, details)


def admit(commit: Commit, last_seq: Seq, *, gaps: bool = False) -> tuple[bytes, str | None]:
    """Check a batch and answer its writes as JSON text and its working scope, None for main.

    Args:
        commit: the batch.
        last_seq: the highest committed seq.
        gaps: accept a first seq above the next one; a replay of main commits has such gaps.

    Raises:
        Rejected: `invariant`, naming the rule.
    """
    _check_seqs(commit, last_seq, gaps=gaps)
    try:
        scope = scope_of(commit)
    except ValueError as error:
        refuse(str(error))
    _check_time(commit, scope)
    try:
        text = encode(commit.writes)
    except (UnicodeEncodeError, TypeError, ValueError) as error:
        refuse(f"the writes cannot be stored as JSON text: {error}")
    for write in commit.writes:
        admits = _CHECKS.get(type(write))
        if admits is not None:
            admits(write)
    # What those let through shows in the whole text; only then is every part looked at, which
    # costs more than all the rest.
    if _may_hide(text):
        for write in commit.writes:
            _check_text(write)
            _check_parts(write)
    return text, scope


def _check_seqs(commit: Commit, last_seq: Seq, *, gaps: bool) -> None:
    writes = commit.writes
    if not writes:
        refuse("a commit holds at least one write")
    first = commit.first_seq
    if type(first) is not int or not 0 < first <= SEQ_MAX:
        refuse(f"the first seq {first!r} is not an integer from 1 to {SEQ_MAX}")
    if first <= last_seq or (first != last_seq + 1 and not gaps):
        refuse(f"the first seq is {first!r}; the next one is {last_seq + 1}", last_seq=last_seq)
    if type(commit.last_seq) is not int or commit.last_seq != first + len(writes) - 1:
        refuse(f"the last seq {commit.last_seq!r} does not fit {len(writes)} writes from {first}")
    if commit.last_seq > SEQ_MAX:
        refuse(f"the last seq {commit.last_seq!r} is above {SEQ_MAX}: the sequence is used up")
    for seq, write in enumerate(writes, first):
        if type(write) not in WRITE_KINDS:
            refuse(f"{type(write).__name__} is not one of the fifteen writes")
        if type(write.seq) is not int or write.seq != seq:
            refuse(f"a write has seq {write.seq!r} where {seq} is due")


def _check_time(commit: Commit, scope: str | None) -> None:
    if scope is None:
        if type(commit.time_ms) is not int or commit.time_ms < 0:
            refuse(f"the time {commit.time_ms!r} is not a count of milliseconds")
        return
    WorkingScope(scope)
    if commit.time_ms != 0:
        refuse(f"a working commit carries no time, not {commit.time_ms!r}")


def _check_place(namespace: str) -> None:
    if not namespace:
        refuse("a namespace must not be empty")


# One check a kind of write.


def _check_entry(write: InsertEntry) -> None:
    _check_raw(write, "meta_json", write.meta_json, fields=True)
    if write.payload_json is not UNSET:
        _check_raw(write, "payload_json", write.payload_json)


def _check_state(write: InsertTask | PatchTask | SettleTask) -> None:
    if write.state_json is not UNSET:
        _check_raw(write, "state_json", write.state_json, fields=True)


def _check_address(write: SetValue | DeleteValue | AppendList) -> None:
    _check_place(write.namespace)
    if write.conv_id is not UNSET and write.working_scope is not UNSET:
        refuse("a working address carries no conversation id (WS-15)")
    if type(write) is not DeleteValue:
        value = cast("SetValue | AppendList", write).value_json
        _check_raw(write, "value_json", value)


def _check_list(write: DeleteList) -> None:
    _check_place(write.namespace)


def _check_retired(write: RetireScope) -> None:
    WorkingScope(write.working_scope)


_CHECKS: Final = MappingProxyType(
    cast(
        "dict[type, Callable[[Any], None]]",
        {
            InsertEntry: _check_entry,
            InsertTask: _check_state,
            PatchTask: _check_state,
            SettleTask: _check_state,
            SetValue: _check_address,
            DeleteValue: _check_address,
            AppendList: _check_address,
            DeleteList: _check_list,
            RetireScope: _check_retired,
        },
    )
)


def _check_raw(write: Write, field: str, raw: Raw, *, fields: bool = False) -> None:
    """Refuse bytes that are no strict JSON, or no object where `fields` are due (ST-25)."""
    try:
        value: object = _DECODE(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        value = _long_numbers(bytes(raw), f"{field} of write {write.seq}", error)
    if fields and type(value) is not dict:
        refuse(f"{field} of write {write.seq} is not a JSON object: {value!r}")


def _may_hide(data: bytes) -> bool:
    """Say whether bytes may hold deep nesting, or a NUL written as an escape."""
    deep = len(data) > DEPTH_MAX and data.count(b"{") + data.count(b"[") > DEPTH_MAX
    return deep or _NUL_ESCAPE in data


def _long_numbers(data: bytes, what: str, error: Exception) -> object:
    # The quick decoder refuses integers of more than 64 bits; strict JSON has longer ones.
    if "Integer value out of range" not in str(error):
        refuse(f"{what} is not strict JSON: {error}")
    try:
        value = cast("object", json.loads(data))
    except (ValueError, RecursionError) as cause:
        refuse(f"{what} is not strict JSON: {cause}")
    check(value, what)
    return value


def _check_parts(write: Write) -> None:
    """Refuse an encoded value that is nested too deep or holds a NUL."""
    for field in raw_fields(write):
        raw = getattr(write, field)
        if raw is not UNSET and _may_hide(bytes(raw)):
            what = f"{field} of write {write.seq}"
            try:
                value = json.loads(bytes(raw))
            except RecursionError as error:
                refuse(f"{what} is not strict JSON: {error}")
            check(value, what)


def raw_fields(write: Write) -> tuple[str, ...]:
    """Name the fields of a write that hold encoded values."""
    return next((fields for owner, fields in RAW_FIELDS if type(write) is owner), ())


def _check_text(write: Write) -> None:
    """Refuse a NUL in a write's own texts."""
    for field in write.__struct_fields__:
        value: object = getattr(write, field)
        texts = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
        if any(isinstance(text, str) and "\x00" in text for text in texts):
            refuse(f"{field} of write {write.seq} holds a NUL: {value!r}")


def check_limit(limit: int, *, most: int = SCAN_LIMIT_MAX) -> None:
    """Refuse a limit outside 1 to `most` (ST-13, BR-10)."""
    if type(limit) is not int or not 1 <= limit <= most:
        refuse(f"the limit {limit!r} is not an integer from 1 to {most}")


def check_commits_limit(limit: int) -> None:
    """Refuse a page size outside 1 to 1,000."""
    check_limit(limit, most=COMMITS_LIMIT_MAX)


def check_address(address: Address, kind: str) -> None:
    """Refuse an address of the other kind or of two lifetimes (VL-04, WS-15)."""
    if address.kind != kind:
        refuse(f"{address!r} is the address of a {address.kind}, not of a {kind}")
    _check_place(address.namespace)
    if address.conv_id is not UNSET and address.working_scope is not UNSET:
        refuse("a working address carries no conversation id (WS-15)")


def check_name(name: str) -> None:
    """Refuse a session name that is not 1 to 256 bytes of plain text (SN-03)."""
    wanted = f"a session name is 1 to {NAME_BYTES_MAX} UTF-8 bytes without control characters"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        refuse(f"the session name {name!r} holds a lone surrogate; {wanted}")
    controls = any(char < " " or "\x7f" <= char <= "\x9f" for char in name)
    if not 1 <= size <= NAME_BYTES_MAX or controls or not name.strip():
        refuse(f"the session name {name!r} is refused; {wanted}, and not only blanks")
