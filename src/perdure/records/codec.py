"""Bytes of records: one encoder, typed decoders, the canonical form and its digests.

A value handed to a command is encoded at once; the bytes (`Raw`) are the immutable snapshot, so
neither the giver nor a reader can change what is stored (ST-18, LN-21).
"""

import hashlib
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from perdure.records.strict_json import JsonValue, check

T = TypeVar("T")

_ENCODER: Final = msgspec.json.Encoder()
_CANONICAL: Final = msgspec.json.Encoder(order="sorted")

EMPTY_OBJECT: Final = Raw(b"{}")


def encode(record: object) -> bytes:
    """Encode a record made of checked parts; field order is the Struct's own."""
    return _ENCODER.encode(record)


def to_raw(record: object) -> Raw:
    """Encode a record made of checked parts into an immutable snapshot."""
    return Raw(_ENCODER.encode(record))


def checked_raw(value: object) -> Raw:
    """Encode a program's value after the strict door (VD-17); a record is taken as its JSON.

    Raises:
        Rejected: `invariant`, with path and type.
    """
    plain: object = value
    if isinstance(value, Struct):
        # Bytes stay bytes, so that the door refuses them instead of storing their base64.
        plain = msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview))
    check(plain)
    return Raw(_ENCODER.encode(plain))


@lru_cache(maxsize=256)
def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Answer the decoder of a type; made once."""
    return msgspec.json.Decoder(kind)


def decode(data: bytes | Raw, kind: type[T]) -> T:
    """Decode stored bytes into a record type; unknown fields are ignored.

    Raises:
        msgspec.ValidationError: when the bytes do not fit the type.
    """
    record: T = decoder(kind).decode(data)
    return record


def decode_json(data: bytes | Raw) -> Any:
    """Decode stored bytes into fresh plain JSON objects."""
    return decoder(Any).decode(data)


def canonical(value: JsonValue) -> bytes:
    """Encode in perdure's canonical form: keys in code-point order, no spaces, UTF-8 (FM-15).

    Integers in full, shortest round-trip floats. Raises Rejected `invariant` for a value that a
    door would refuse: such a value has no digest.
    """
    check(value)
    return _CANONICAL.encode(value)


def digest(form: JsonValue) -> str:
    """Answer the SHA-256 of a canonical form, as 64 hex digits; the form names its version."""
    return hashlib.sha256(canonical(form)).hexdigest()


def merge_object(base: Raw, patch: Raw, unset: tuple[str, ...] = ()) -> Raw:
    """Merge a patch into an object field by field; `unset` names fields to remove (TK-14, X45).

    A field that is not named keeps its very bytes; null is a value and removes nothing; a field
    that is set and unset by one patch is gone.

    Raises:
        msgspec.ValidationError: when base or patch is no object.
    """
    fields = decoder(dict[str, Raw]).decode(base)
    fields.update(decoder(dict[str, Raw]).decode(patch))
    for name in unset:
        fields.pop(name, None)
    return Raw(_ENCODER.encode(fields))
