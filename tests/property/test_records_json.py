"""What no example thought of: the doors, the canonical form and merged objects."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import InvalidArguments, Rejected
from perdure.records.codec import canonical, decode_json, encode, merge_object, to_raw
from perdure.records.strict_json import check, parse_object, repair, repair_text

CLEAN = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=8)
DIRTY = st.text(
    st.one_of(st.characters(), st.characters(categories=("Cs",)), st.just("\x00")), max_size=6
)
NUMBERS = st.integers(-(10**40), 10**40) | st.floats(allow_nan=False, allow_infinity=False)
STRICT = st.recursive(
    st.none() | st.booleans() | NUMBERS | CLEAN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(CLEAN, inner, max_size=4),
    max_leaves=12,
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | DIRTY | st.binary(max_size=4)
    | st.decimals() | st.dates() | st.datetimes() | st.complex_numbers() | st.just(object),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(DIRTY | st.integers() | st.floats() | st.binary(max_size=2), inner)
    | st.tuples(inner, inner)
    | st.frozensets(st.integers() | DIRTY, max_size=3),
    max_leaves=12,
)  # fmt: skip
MORE = settings(settings.get_profile("deep"))


def law_of_the_forgiving_door(value: Any) -> None:
    fixed, _ = repair(value)
    check(fixed)
    encode(fixed)
    assert repair(fixed)[0] == fixed


@pytest.mark.spec("VD-16")
@given(ANYTHING)
def test_a_repaired_value_passes_the_strict_door(value: Any) -> None:
    law_of_the_forgiving_door(value)


@pytest.mark.deep
@settings(MORE, max_examples=5_000)
@given(ANYTHING)
def test_a_repaired_value_passes_the_strict_door_many_times(value: Any) -> None:
    law_of_the_forgiving_door(value)


@pytest.mark.spec("VD-16")
@given(STRICT)
def test_a_strict_value_needs_no_repair(value: Any) -> None:
    check(value)
    fixed, repairs = repair(value)
    assert (fixed, repairs.surrogates, repairs.nul) == (value, 0, 0)


@pytest.mark.spec("VD-16")
@given(DIRTY)
def test_repaired_text_keeps_its_length_and_its_clean_characters(text: str) -> None:
    fixed, repairs = repair_text(text)
    bad = [char for char in text if char == "\x00" or "\ud800" <= char <= "\udfff"]
    assert len(fixed) == len(text)
    assert repairs.nul + repairs.surrogates == len(bad)
    assert all(old == new for old, new in zip(text, fixed, strict=True) if old not in bad)
    fixed.encode()


@pytest.mark.spec("VD-17")
@given(ANYTHING)
def test_the_strict_door_lets_in_exactly_what_json_keeps(value: Any) -> None:
    """A value passes exactly if a strict writer and reader bring it back with its types."""
    assert passes(value) == comes_back(value)


def passes(value: Any) -> bool:
    try:
        check(value)
    except Rejected as error:
        return not str(error.details["path"]).startswith("$")
    return True


def comes_back(value: Any) -> bool:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (ValueError, TypeError):
        return False
    holds_nul = r"\u0000" in text.replace(r"\\", "")
    return not holds_nul and json.loads(text) == as_lists(value)


def as_lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [as_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return value


@pytest.mark.spec("FM-15")
@given(STRICT)
def test_the_canonical_form_reads_back_and_depends_on_no_order(value: Any) -> None:
    text = canonical(value)
    assert decode_json(text) == value
    assert canonical(decode_json(text)) == text
    assert canonical(turned(value)) == text
    assert b" " not in text or " " in json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def turned(value: Any) -> Any:
    if isinstance(value, list):
        return [turned(item) for item in value]
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return value


@pytest.mark.spec("FM-15")
@given(st.lists(CLEAN, unique=True, max_size=8))
def test_canonical_keys_stand_in_code_point_order(keys: list[str]) -> None:
    written = list(json.loads(canonical(dict.fromkeys(keys))))
    assert written == sorted(keys, key=lambda key: [ord(char) for char in key])


OBJECTS = st.dictionaries(CLEAN, STRICT, max_size=5)


@given(OBJECTS, OBJECTS, st.lists(CLEAN, max_size=3))
def test_a_merged_object_is_what_a_dictionary_would_be(
    base: dict[str, Any], patch: dict[str, Any], unset: list[str]
) -> None:
    merged = decode_json(merge_object(to_raw(base), to_raw(patch), tuple(unset)))
    assert merged == {key: item for key, item in {**base, **patch}.items() if key not in unset}


@given(OBJECTS)
def test_written_arguments_parse_to_themselves(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value)) == value
    assert parse_object(json.dumps(value, ensure_ascii=False, indent=1)) == value


@given(OBJECTS, st.data())
def test_cut_arguments_never_parse(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(InvalidArguments):
        parse_object(text[:cut])


@given(st.text(st.sampled_from('{}[]",:0-9eE+.\\u\x00\ud800ntf '), max_size=30))
def test_parsing_raises_nothing_but_invalid_arguments(text: str) -> None:
    with contextlib.suppress(InvalidArguments):
        check(parse_object(text))
