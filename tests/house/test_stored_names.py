"""The table of FORMAT.md and the Structs say the same (FM-17)."""

import re

import msgspec
import pytest

from tests.house.stored_names import nouns, pairs, stays_in_memory, written

CAMEL = re.compile(r"[a-z][a-zA-Z0-9]*")
TIMES = re.compile(r"(time|timestamp|.*_ms|.*_at|not_before)")


@pytest.mark.spec("FM-17")
def test_the_table_pairs_every_stored_name_with_its_python_name() -> None:
    unpaired = {"missing": pairs() - written(), "stale": written() - pairs()}
    assert unpaired == {"missing": set(), "stale": set()}, "run: python -m tests.house.stored_names"


@pytest.mark.spec("FM-17")
def test_stored_names_are_camel_case() -> None:
    assert [pair for pair in pairs() if not CAMEL.fullmatch(pair.stored)] == []
    for noun in filter(stays_in_memory, nouns()):
        renamed = [f.name for f in msgspec.structs.fields(noun) if f.encode_name != f.name]
        assert not renamed, f"{noun.__name__} is stored in part: give every field its stored name"


@pytest.mark.spec("FM-17")
def test_stored_times_are_integers() -> None:
    for noun in nouns():
        for field in msgspec.structs.fields(noun):
            if TIMES.fullmatch(field.name):
                assert "float" not in str(field.type), (noun, field.name)
                assert "datetime" not in str(field.type), (noun, field.name)


@pytest.mark.spec("FM-17")
def test_one_stored_name_means_one_field_of_a_noun() -> None:
    for noun in nouns():
        stored = [field.encode_name for field in msgspec.structs.fields(noun)]
        assert len(stored) == len(set(stored)), noun
