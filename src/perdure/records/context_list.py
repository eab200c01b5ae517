"""The context list: which entries the model reads, in which order (CX-04 to CX-08).

A list is an optional head (a summary, handoff or note) followed by selected entries ascending by
id. It is a value: operations answer a new list. Appending shares the backing store with the list
it grew from, so a long list costs O(1) an append; only the longest list of a store may extend it,
any other one copies first. A list never looks past its own length, so a later append to the
shared store is invisible to it, even while it is being walked.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, overload

from perdure.records.seqs import Seq


class _Store(list[Seq]):
    """Ids that several lists share; it only ever grows."""

    __slots__ = ()


class ContextList(Sequence[Seq]):
    """An immutable sequence of entry ids that appends in O(1)."""

    __slots__ = ("_ids", "_length")

    def __init__(self, ids: Iterable[Seq] = ()) -> None:
        """Take the ids in list order; the first may be a head, the rest ascend.

        A `_Store` is shared as it stands; anything else is copied.
        """
        self._ids = ids if type(ids) is _Store else _Store(ids)
        self._length = len(self._ids)

    @overload
    def __getitem__(self, index: int) -> Seq: ...
    @overload
    def __getitem__(self, index: slice) -> "ContextList": ...
    def __getitem__(self, index: int | slice) -> "Seq | ContextList":
        """Answer one id, or a list of its own for a slice."""
        if isinstance(index, slice):
            return ContextList(self._own()[index])
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._ids[index if index >= 0 else self._length + index]

    def __len__(self) -> int:
        """Count the ids."""
        return self._length

    def __iter__(self) -> Iterator[Seq]:
        """Walk the ids in list order."""
        return itertools.islice(self._ids, self._length)

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        if not isinstance(other, ContextList):
            return NotImplemented
        return self._length == other._length and (
            self._ids is other._ids or self._own() == other._own()
        )

    def __hash__(self) -> int:
        """Hash by content."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Show the ids."""
        return f"ContextList({list(self)!r})"

    def append(self, ids: Iterable[Seq]) -> "ContextList":
        """Answer the list with `ids` after its last id."""
        longest = len(self._ids) == self._length
        store = self._ids if longest else _Store(self._own())
        store.extend(ids)
        return ContextList(store)

    def replace(self, through: Seq, head: Seq) -> "ContextList":
        """Answer the list with its prefix through `through` replaced by `head` (CX-04).

        Raises:
            ValueError: when `through` is not on the list.
        """
        ids = self._own()
        return ContextList([head, *ids[ids.index(through) + 1 :]])

    def _own(self) -> list[Seq]:
        return self._ids[: self._length]


EMPTY_CONTEXT: Final = ContextList(())


def has_legal_shape(ids: Sequence[Seq]) -> bool:
    """Say whether ids after an optional head ascend and none stands twice (CX-06)."""
    rest = list(ids[1:])
    ascending = all(low < high for low, high in itertools.pairwise(rest))
    return ascending and len(set(ids)) == len(ids)
