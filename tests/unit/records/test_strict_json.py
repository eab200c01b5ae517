"""The two doors of strict JSON: a program's value is refused, everybody else's is repaired."""

import datetime
import decimal
import enum
import json
import math
from collections import OrderedDict
from typing import Any

import pytest

from perdure.errors import InvalidArguments, Rejected
from perdure.records import strict_json
from perdure.records.strict_json import (
    Repairs,
    check,
    parse_object,
    parse_repaired,
    repair,
    repair_text,
)

BIG = (9007199254740993, 2**64, -7108510333361982070, 10**4299)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def cycle() -> Any:
    value: list[Any] = []
    value += [value, value]
    return value


# ------------------------------------------------------------------------------ refusing


@pytest.mark.spec("VD-17")
@pytest.mark.parametrize(
    ("value", "path", "what"),
    [
        ({"rows": [{}, {}, {}, {"when": datetime.date(2026, 1, 2)}]}, "$.rows[3].when", "date"),
        ({"a": [1.5, -math.inf]}, "$.a[1]", "-inf"),
        (math.nan, "$", "nan"),
        ({"a": b"x"}, "$.a", "bytes"),
        ({"a": {1: 2}}, "$.a", "int"),
        ({"a": {"b\x00": 2}}, "$.a", "NUL"),
        ({"a\ud800": 2}, "$", "surrogate"),
        (["ok", "\udfff"], "$[1]", "surrogate"),
        (["ok", ("a\x00b",)], "$[1][0]", "NUL"),
        ({"a": 10**4300}, "$.a", "4300 digits"),
        ([-(10**4300)], "$[0]", "4300 digits"),
        ({"a": {1, 2}}, "$.a", "set"),
        (OrderedDict(a=1), "$", "OrderedDict"),
        (enum.IntEnum("Colour", {"RED": 1})["RED"], "$", "Colour"),
        (object(), "$", "object"),
        (nested(101), "$" + "[0]" * 100, "deeper than 100"),
        (cycle(), "$" + "[0]" * 100, "cycle"),
    ],
)
def test_a_programs_value_is_refused_with_path_and_type(value: Any, path: str, what: str) -> None:
    with pytest.raises(Rejected) as refusal:
        check(value)
    assert refusal.value.code == "invariant"
    assert refusal.value.details["path"] == path
    assert path in refusal.value.message
    assert what in refusal.value.message


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        "",
        "é \U0001f600 \\u0000",
        -0.0,
        *BIG,
        -(10**4300 - 1),
        nested(100),
        {"": {"a": (1, [None])}},
    ],
)
def test_strict_json_is_accepted(value: Any) -> None:
    check(value)


def test_a_refusal_names_the_path_it_was_given() -> None:
    with pytest.raises(Rejected, match=r"at \$meta\.a:"):
        check({"a": math.inf}, "$meta")


# ------------------------------------------------------------------------------ repairing


@pytest.mark.spec("VD-16")
@pytest.mark.parametrize(
    ("text", "fixed", "repairs"),
    [
        ("plain", "plain", Repairs()),
        ("é\U0001f600", "é\U0001f600", Repairs()),
        ("ok \ud83d", "ok \ufffd", Repairs(surrogates=1)),
        ("\udc00 ok", "\ufffd ok", Repairs(surrogates=1)),
        ("a\x00b\x00", "a\u2400b\u2400", Repairs(nul=2)),
        ("é\x00\ud800\udc00", "é\u2400\ufffd\ufffd", Repairs(surrogates=2, nul=1)),
        (r"literal \u0000 and \\u0000", r"literal \u0000 and \\u0000", Repairs()),
    ],
)
def test_text_is_repaired_and_counted(text: str, fixed: str, repairs: Repairs) -> None:
    assert repair_text(text) == (fixed, repairs)


@pytest.mark.spec("VD-16")
def test_keys_are_repaired_too_and_collisions_are_numbered() -> None:
    keys = ("a\x00", "a\u2400", "a\u2400~2", "b\ud800", "b\udfff", "b\ufffd")
    value = {key: number for number, key in enumerate(keys, 1)}
    assert repair(value) == (
        {"a\u2400": 1, "a\u2400~2": 2, "a\u2400~2~2": 3, "b\ufffd": 4, "b\ufffd~2": 5,
         "b\ufffd~3": 6},
        Repairs(surrogates=2, nul=1),
    )  # fmt: skip


@pytest.mark.spec("VD-16")
def test_numbers_that_are_not_finite_become_words_and_keep_the_structure() -> None:
    value = {"mean": math.nan, "hi": math.inf, "rows": [1.5, -math.inf]}
    assert repair(value)[0] == {"mean": "NaN", "hi": "Infinity", "rows": [1.5, "-Infinity"]}


def test_what_is_no_json_becomes_a_text() -> None:
    class Socket:
        pass

    utc = datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC)
    value = {
        "bytes": b"\x00\xff",
        "decimal": decimal.Decimal("1.10"),
        "day": datetime.date(2026, 1, 2),
        "time": utc,
        "span": datetime.timedelta(seconds=61),
        "object": Socket(),
        "class": Socket,
        "long": 10**4300,
        "set": frozenset({1}),
        "bits": b"x" * 1000,
    }
    fixed, repairs = repair(value)
    assert repairs == Repairs()
    assert fixed == {
        "bytes": r"b'\x00\xff'",
        "decimal": "1.10",
        "day": "2026-01-02",
        "time": "2026-01-02T03:00:00+00:00",
        "span": "0:01:01",
        "object": "<Socket>",
        "class": "<type>",
        "long": "integer of more than 4300 digits",
        "set": [1],
        "bits": repr(b"x" * 1000)[:200],
    }


def test_keys_that_are_no_text_read_as_json_would_write_them() -> None:
    value = {1: "a", None: "b", 1.5: "c", False: "d", (1, 2): "e", math.nan: "f"}
    assert list(repair(value)[0]) == ["1", "null", "1.5", "false", "<tuple>", "NaN"]  # type: ignore[arg-type]


class Hostile(type):
    """A class whose every question about itself raises."""

    def __hash__(cls) -> int:
        raise RuntimeError

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError


class Bomb(metaclass=Hostile):
    def __repr__(self) -> str:
        raise SystemExit

    __str__ = __hash__ = __len__ = __iter__ = __eq__ = __repr__  # type: ignore[assignment]

    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError


class BombList(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError

    __len__ = __reduce__ = __iter__


class BombDict(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError

    __iter__ = keys = values = copy = __len__ = items


class BombText(str):
    def __str__(self) -> str:
        raise RuntimeError

    isascii = encode = replace = count = __contains__ = __str__  # type: ignore[assignment]


class BombNumber(int):
    def __int__(self) -> int:
        raise RuntimeError

    bit_length = __abs__ = __index__ = __ge__ = __int__  # type: ignore[assignment]


class BombZone(datetime.tzinfo):
    def utcoffset(self, dt: datetime.datetime | None) -> datetime.timedelta:
        raise RuntimeError


@pytest.mark.spec("VD-16")
def test_repair_runs_no_code_of_the_value() -> None:
    zoned = datetime.datetime(2026, 1, 1, tzinfo=BombZone())
    value = [Bomb(), BombList([1, 2]), BombDict(a=1), BombText("b\x00"), BombNumber(3), zoned]
    assert repair(value) == (
        ["<Bomb>", [1, 2], {"a": 1}, "b\u2400", 3, "<datetime>"],
        Repairs(nul=1),
    )


def test_a_value_that_holds_itself_ends() -> None:
    assert repair(cycle())[0] == ["<list>", "<list>"]
    fixed, _ = repair(nested(150))
    check(fixed)
    assert json.dumps(fixed).count("[") == 100


def test_a_value_that_unfolds_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "REPAIR_VALUES_MAX", 1_000)
    value: list[Any] = []
    for _ in range(90):
        value = [value, value]
    fixed, _ = repair(value)
    assert json.dumps(fixed).count("<list>") < 2_000


def test_many_colliding_keys_cost_their_number() -> None:
    highs = [chr(0xD800 + n) for n in range(200)]
    value = {a + b: 1 for a in highs for b in highs}
    fixed, repairs = repair(value)
    assert isinstance(fixed, dict)
    assert len(fixed) == 40_000
    assert repairs.surrogates == 80_000


def test_a_repaired_value_shares_nothing_with_the_given_one() -> None:
    given: dict[str, Any] = {"a": [1]}
    fixed, _ = repair(given)
    given["a"].append(2)
    assert fixed == {"a": [1]}


# ------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"a":1,}', "not valid JSON"),
        ('{"a":1}{"a":2}', "not valid JSON"),
        ('{"path":"a.txt","text":"line 1\nline', "not valid JSON"),
        ('{"a":"x', "not valid JSON"),
        ("", "not valid JSON"),
        ("[1,2]", "the top level is a list"),
        ("null", "the top level is null"),
        ('"text"', "the top level is a text"),
        ("1", "the top level is a number"),
        ("true", "the top level is a boolean"),
        ('{"x":NaN}', "NaN is not JSON"),
        ("NaN", "NaN is not JSON"),
        ('{"x":-Infinity}', "-Infinity is not JSON"),
        ('{"x":1e999}', "out of range"),
        ("1e999", "out of range"),
        ('{"x":{"a":1,"a":2}}', "the key 'a' stands twice"),
        ('{"x":' + "[" * 100 + "]" * 100 + "}", "deeper than 100"),
        ("[" * 100_000, "deeper than 100"),
        ('{"x":1' + "0" * 4300 + "}", "more than 4300 digits"),
    ],
)
def test_arguments_that_are_not_one_strict_object_are_refused(text: str, fault: str) -> None:
    with pytest.raises(InvalidArguments, match=fault) as refusal:
        parse_object(text)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("number", BIG)
def test_arguments_keep_every_digit(number: int) -> None:
    assert parse_object(f'{{"id":{number},"in":[{-abs(number)}]}}') == {
        "id": number,
        "in": [-abs(number)],
    }


@pytest.mark.spec("VD-16")
def test_arguments_with_unclean_text_are_repaired_and_counted() -> None:
    raw = '{"a\\u0000":"\\ud83d","b":"\x00\ud800","ok":"\\ud83d\\ude00 \\\\u0000"}'
    assert parse_repaired(raw) == (
        {"a\u2400": "\ufffd", "b": "\u2400\ufffd", "ok": "\U0001f600 \\u0000"},
        Repairs(surrogates=2, nul=2),
    )
    assert parse_object('{"a":1.5,"b":[null,true]}') == {"a": 1.5, "b": [None, True]}
