"""The context list is a value, however much of its store it shares."""

import pytest

from perdure.records.context_list import EMPTY_CONTEXT, ContextList, has_legal_shape
from perdure.records.seqs import Seq


def ids(*numbers: int) -> list[Seq]:
    return [Seq(number) for number in numbers]


def test_a_shorter_list_never_sees_a_later_append() -> None:
    short = ContextList(ids(1, 2))
    walk = iter(short)
    long = short.append(ids(3))
    other = short.append(ids(4))
    assert list(walk) == ids(1, 2)
    assert (list(short), list(long), list(other)) == (ids(1, 2), ids(1, 2, 3), ids(1, 2, 4))
    assert list(long.append(ids(5))) == ids(1, 2, 3, 5)
    assert list(long) == ids(1, 2, 3)
    assert (len(short), short[-1], Seq(3) in short) == (2, 2, False)
    assert short == ContextList(ids(1, 2))
    assert hash(short) == hash(ContextList(ids(1, 2)))
    assert short != long
    assert short != ids(1, 2)
    assert list(reversed(short)) == ids(2, 1)


def test_the_givers_list_is_copied() -> None:
    given = ids(1)
    kept = ContextList(given)
    given.append(Seq(2))
    assert list(kept) == ids(1)
    assert list(EMPTY_CONTEXT.append(ids(1))) == ids(1)
    assert list(EMPTY_CONTEXT) == []


def test_a_list_may_be_appended_to_itself() -> None:
    one = ContextList(ids(1, 2))
    assert list(one.append(one)) == ids(1, 2, 1, 2)
    assert list(one) == ids(1, 2)


def test_appending_to_the_longest_list_copies_nothing() -> None:
    # The promise is the cost: 50,000 appends to a list of 50,000 would copy 2.5e9 ids.
    grown = ContextList(map(Seq, range(1, 50_001)))
    for number in range(50_001, 100_001):
        grown = grown.append((Seq(number),))
    assert (len(grown), grown[0], grown[-1]) == (100_000, 1, 100_000)


def test_indexes_and_slices_stay_within_the_list() -> None:
    short = ContextList(ids(1, 2, 3))
    short.append(ids(4))
    assert (short[0], short[-3]) == (1, 1)
    for index in (3, -4):
        with pytest.raises(IndexError):
            short[index]
    assert list(short[1:]) == ids(2, 3)
    assert list(short[::-1]) == ids(3, 2, 1)
    assert list(short[1:].append(ids(9))) == ids(2, 3, 9)
    assert repr(short) == "ContextList([1, 2, 3])"


def test_replace_puts_the_head_before_what_follows_through() -> None:
    before = ContextList(ids(9, 2, 4, 6))
    longer = before.append(ids(7))
    assert list(before.replace(through=Seq(4), head=Seq(10))) == ids(10, 6)
    assert list(before.replace(through=Seq(6), head=Seq(10))) == ids(10)
    assert list(longer) == ids(9, 2, 4, 6, 7)
    with pytest.raises(ValueError, match="7"):
        before.replace(through=Seq(7), head=Seq(10))


@pytest.mark.parametrize(
    ("numbers", "legal"),
    [
        ((), True),
        ((5,), True),
        ((9, 2, 4), True),
        ((1, 2, 4), True),
        ((9, 4, 2), False),
        ((9, 2, 2), False),
        ((2, 2), False),
        ((4, 2, 4), False),
    ],
)
def test_a_list_is_an_optional_head_and_ascending_ids(
    numbers: tuple[int, ...], legal: bool
) -> None:
    assert has_legal_shape(ids(*numbers)) is legal
