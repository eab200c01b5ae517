"""Bytes of records: canonical form, digests, snapshots, merged objects."""

import hashlib
import math
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from perdure.errors import Rejected
from perdure.records.codec import (
    canonical,
    checked_raw,
    decode_json,
    digest,
    encode,
    merge_object,
    to_raw,
)
from perdure.records.entries import EntryMeta, ModelId

VECTORS: list[tuple[Any, str]] = [
    ({}, "{}"),
    ([], "[]"),
    ((1, (2,)), "[1,[2]]"),
    (None, "null"),
    (True, "true"),
    ("", '""'),
    ({"v": 1, "b": None, "a": [True, False]}, '{"a":[true,false],"b":null,"v":1}'),
    # Code points, not UTF-16 units: U+FFFF stands before U+10000.
    (
        {"\U00010000": 1, "\uffff": 2, "\ue000": 3, "é": 4, "z": 5, "Z": 6, "": 7, "10": 8, "9": 9},
        '{"":7,"10":8,"9":9,"Z":6,"z":5,"é":4,"\ue000":3,"\uffff":2,"\U00010000":1}',
    ),
    ({"b": {"d": 1, "c": 2}, "a": [{"f": 1, "e": 2}]}, '{"a":[{"e":2,"f":1}],"b":{"c":2,"d":1}}'),
    ('"\\/\b\f\n\r\t', '"\\"\\\\/\\b\\f\\n\\r\\t"'),
    ("\x1f\x7f\u2028é\U0001f600", '"\\u001f\x7f\u2028é\U0001f600"'),
    (0, "0"),
    (-1, "-1"),
    (9007199254740993, "9007199254740993"),
    (2**64, "18446744073709551616"),
    (-7108510333361982070, "-7108510333361982070"),
    (10**30, "1" + "0" * 30),
    (0.0, "0.0"),
    (-0.0, "-0.0"),
    (1.0, "1.0"),
    (100.0, "100.0"),
    (0.1, "0.1"),
    (0.1 + 0.2, "0.30000000000000004"),
    (1e-7, "1e-7"),
    (1e16, "1e16"),
    (1e22, "1e22"),
    (123456789012345680.0, "1.2345678901234568e17"),
    (5e-324, "5e-324"),
    (1.7976931348623157e308, "1.7976931348623157e308"),
]  # fmt: skip


@pytest.mark.spec("FM-15")
@pytest.mark.parametrize(("value", "text"), VECTORS)
def test_the_canonical_form_is_pinned(value: Any, text: str) -> None:
    assert canonical(value) == text.encode()


@pytest.mark.spec("FM-15")
def test_a_digest_is_sha256_of_the_canonical_form() -> None:
    form = {"v": 1, "verb": "accept", "conv": 1}
    assert digest(form) == hashlib.sha256(b'{"conv":1,"v":1,"verb":"accept"}').hexdigest()


@pytest.mark.spec("FM-15")
@pytest.mark.parametrize("value", [math.nan, {"a": math.inf}, "\ud800", "\x00", b"", {1: 2}, {1}])
def test_what_a_door_refuses_has_no_digest(value: Any) -> None:
    with pytest.raises(Rejected):
        digest(value)


def test_a_snapshot_is_not_changed_by_its_giver() -> None:
    given: dict[str, Any] = {"a": [1]}
    raw = checked_raw(given)
    given["a"].append(2)
    read = decode_json(raw)
    read["a"].append(3)
    assert decode_json(raw) == {"a": [1]}


def test_a_record_is_taken_as_its_json() -> None:
    model = ModelId(provider="local", model_id="smollm2")
    assert bytes(checked_raw(model)) == b'{"provider":"local","modelId":"smollm2"}'
    with pytest.raises(Rejected, match=r"\$\.note\.at"):
        checked_raw(EntryMeta(note={"at": math.nan}))
    with pytest.raises(Rejected, match="bytes"):
        checked_raw(EntryMeta(note={"at": b"x"}))


def test_a_patch_merges_field_by_field_and_keeps_the_other_bytes() -> None:
    base = Raw(b'{"v":1, "x": {"deep" : [1.0,  1e400000]}, "y":2,"z":3}')
    merged = merge_object(base, to_raw({"y": None, "n": {"a": 1}}), ("z", "absent"))
    assert bytes(merged) == b'{"v":1,"x":{"deep" : [1.0,  1e400000]},"y":null,"n":{"a":1}}'
    assert bytes(merge_object(merged, to_raw({"n": 2}), ("n",))) == (
        b'{"v":1,"x":{"deep" : [1.0,  1e400000]},"y":null}'
    )


@pytest.mark.parametrize("wrong", [b"[]", b"null", b"1"])
def test_only_objects_merge(wrong: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        merge_object(Raw(wrong), to_raw({}))
    with pytest.raises(msgspec.ValidationError):
        merge_object(to_raw({}), Raw(wrong))


@pytest.mark.parametrize("number", [9007199254740993, 2**64, -7108510333361982070, 10**4299])
def test_integers_come_back_in_full(number: int) -> None:
    assert decode_json(encode({"n": [number]})) == {"n": [number]}
