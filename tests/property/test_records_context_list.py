"""The context list against plain lists, over random histories of sharing."""

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from perdure.records.context_list import ContextList
from perdure.records.seqs import Seq

IDS = st.lists(st.integers(1, 50).map(Seq), max_size=4)


class Sharing(RuleBasedStateMachine):
    """Every list ever made stays what it was, whatever grows from it."""

    lists: Bundle[Any] = Bundle("lists")

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[ContextList, list[Seq]]] = []
        self.walks: list[tuple[Any, list[Seq]]] = []

    def made(self, real: ContextList, model: list[Seq]) -> tuple[ContextList, list[Seq]]:
        self.pairs.append((real, list(model)))
        return real, list(model)

    @initialize(target=lists, ids=IDS)
    def begin(self, ids: list[Seq]) -> Any:
        return self.made(ContextList(ids), ids)

    @rule(target=lists, pair=lists, ids=IDS)
    def append(self, pair: Any, ids: list[Seq]) -> Any:
        real, model = pair
        return self.made(real.append(ids), [*model, *ids])

    @rule(target=lists, pair=lists)
    def append_itself(self, pair: Any) -> Any:
        real, model = pair
        return self.made(real.append(real), model + model)

    @rule(target=lists, pair=lists, head=st.integers(51, 60).map(Seq), data=st.data())
    def replace(self, pair: Any, head: Seq, data: st.DataObject) -> Any:
        real, model = pair
        if not model:
            return self.made(real, model)
        through = data.draw(st.sampled_from(model))
        rest = model[model.index(through) + 1 :]
        return self.made(real.replace(through, head), [head, *rest])

    @rule(target=lists, pair=lists, low=st.integers(-5, 5), high=st.integers(-5, 5))
    def cut(self, pair: Any, low: int, high: int) -> Any:
        real, model = pair
        return self.made(real[low:high], model[low:high])

    @rule(pair=lists, steps=st.integers(0, 3))
    def walk(self, pair: Any, steps: int) -> None:
        real, model = pair
        walk = iter(real)
        list(itertools.islice(walk, steps))
        self.walks.append((walk, model[steps:]))

    @invariant()
    def every_list_is_what_it_was(self) -> None:
        for real, model in self.pairs:
            assert list(real) == model
            assert len(real) == len(model)
            assert real == ContextList(model)
            assert hash(real) == hash(ContextList(model))
            assert [real[index] for index in range(-len(model), len(model))] == model + model
            assert list(reversed(real)) == model[::-1]

    def teardown(self) -> None:
        for walk, rest in self.walks:
            assert list(walk) == rest


Sharing.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


class TestSharing(Sharing.TestCase):
    pass


@pytest.mark.deep
class TestSharingManyTimes(Sharing.TestCase):
    settings = settings(max_examples=1_000, stateful_step_count=40, deadline=None)
