"""How two histories differ: two commits of one conversation, or two forks of it.

What both have is known from the parent links and is never compared: only entries, values and list
elements that came after the point where the two part are read. Read from storage alone.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType, structs

from perdure.errors import Rejected
from perdure.harness.usage import UsageReader
from perdure.line.lineage import Lineage, Stretch
from perdure.ports import Storage
from perdure.records.addresses import SEALED_NAMESPACES, Address
from perdure.records.codec import decode_json
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry
from perdure.records.seqs import NO_SEQ, Seq
from perdure.records.sessions import EntryScan
from perdure.records.usage import UsageTotals
from perdure.records.writes import AppendList, Commit, DeleteValue, SetValue

PAGE: Final = 500


class Moment(Struct, frozen=True, kw_only=True):
    """One side: a conversation at a main boundary."""

    conversation: Seq
    as_of: Seq


class ChangedValue(Struct, frozen=True, kw_only=True):
    """A value that the two sides read differently; UNSET where one reads none."""

    namespace: str
    key: str
    left: Any | UnsetType = UNSET
    right: Any | UnsetType = UNSET


class ChangedList(Struct, frozen=True, kw_only=True):
    """A list, and the elements that only one side has."""

    namespace: str
    key: str
    left: Sequence[Seq]
    right: Sequence[Seq]


class Side(Struct, frozen=True, kw_only=True):
    """What only one side has: entries in order, ids on its context list, and what it used."""

    moment: Moment
    entries: Sequence[Entry]
    context: Sequence[Seq]
    usage: UsageTotals


class Difference(Struct, frozen=True, kw_only=True):
    """Two sides; `parted` is the last boundary they share, 0 when they share none."""

    parted: Seq
    left: Side
    right: Side
    values: Sequence[ChangedValue]
    lists: Sequence[ChangedList]

    @property
    def is_none(self) -> bool:
        """Say that the two sides read the same."""
        sides = (self.left, self.right)
        return not (self.values or self.lists or any(one.entries or one.context for one in sides))


class _Read(Struct, frozen=True):
    """A side with its history, cut at its boundary."""

    moment: Moment
    state: ConversationState
    history: Sequence[Stretch]

    def through(self, conv_id: Seq) -> Seq:
        """Answer how far this side's history holds a conversation, 0 for not at all."""
        return next((one.through for one in self.history if one.conv_id == conv_id), NO_SEQ)


async def difference(storage: Storage, left: Moment, right: Moment) -> Difference:
    """Compare two conversations, each at a boundary.

    Raises:
        Rejected: `unknown_target` for a conversation that is not there then; `invariant`, when a
            seq is no main boundary.
    """
    sides = await _read(storage, left), await _read(storage, right)
    parted = _parted(*sides)
    values, lists = await _changed(storage, *sides, parted)
    return Difference(
        parted=parted,
        left=await _side(storage, *sides),
        right=await _side(storage, *reversed(sides)),
        values=values,
        lists=lists,
    )


async def _read(storage: Storage, moment: Moment) -> _Read:
    found = await storage.conversations([moment.conversation], as_of=moment.as_of)
    state = found.get(moment.conversation)
    if state is None:
        raise Rejected(
            "unknown_target",
            f"there is no conversation {moment.conversation} at commit {moment.as_of}",
        )
    history = [
        structs.replace(one, through=min(one.through, moment.as_of))
        for one in await Lineage(storage).stretches(state)
    ]
    return _Read(moment, state, history)


def _parted(left: _Read, right: _Read) -> Seq:
    """Answer the boundary up to which both hold the same: where their nearest relative ends."""
    for one in left.history:
        other = right.through(one.conv_id)
        if other:
            return min(one.through, other)
    return NO_SEQ


async def _side(storage: Storage, own: _Read, other: _Read) -> Side:
    entries: list[Entry] = []
    for stretch in reversed(own.history):
        after = other.through(stretch.conv_id)
        while after < stretch.through:
            page = await storage.scan_entries(
                EntryScan(
                    conv_id=stretch.conv_id,
                    after=after,
                    before=Seq(stretch.through + 1),
                    limit=PAGE,
                )
            )
            entries += page
            if len(page) < PAGE:
                break
            after = page[-1].id
    listed = set(other.state.context)
    return Side(
        moment=own.moment,
        entries=entries,
        context=[seq for seq in own.state.context if seq not in listed],
        usage=await UsageReader(storage).totals(own.state.id, as_of=own.moment.as_of),
    )


async def _changed(
    storage: Storage, left: _Read, right: _Read, parted: Seq
) -> tuple[list[ChangedValue], list[ChangedList]]:
    values: dict[tuple[str, str], None] = {}
    lists: dict[tuple[str, str], tuple[list[Seq], list[Seq]]] = {}
    async for write in _writes(storage, parted, max(left.moment.as_of, right.moment.as_of)):
        if write.conv_id is UNSET or write.namespace in SEALED_NAMESPACES:
            continue
        place = (write.namespace, write.key)
        held = [write.seq <= side.through(write.conv_id) for side in (left, right)]
        if held[0] == held[1]:
            continue
        if isinstance(write, AppendList):
            lists.setdefault(place, ([], []))[held.index(True)].append(write.seq)
        else:
            values[place] = None
    changed = [await _value(storage, place, left, right) for place in sorted(values)]
    return [one for one in changed if one.left != one.right], [
        ChangedList(namespace=place[0], key=place[1], left=ours, right=theirs)
        for place, (ours, theirs) in sorted(lists.items())
    ]


async def _writes(
    storage: Storage, after: Seq, last: Seq
) -> AsyncGenerator[SetValue | DeleteValue | AppendList]:
    """Walk the value writes of main commits after a boundary, up to another."""
    page: Sequence[Commit] = ()
    while after < last and (page := await storage.commits(after=after, limit=PAGE)):
        for commit in page:
            if commit.last_seq > last:
                return
            for write in commit.writes:
                if isinstance(write, SetValue | DeleteValue | AppendList):
                    yield write
        after = page[-1].last_seq


async def _value(
    storage: Storage, place: tuple[str, str], left: _Read, right: _Read
) -> ChangedValue:
    found: list[Any] = []
    for side in (left, right):
        address = Address(kind="value", namespace=place[0], key=place[1], conv_id=side.state.id)
        stored = await storage.value(address, as_of=side.moment.as_of)
        found.append(UNSET if stored is None else decode_json(stored.value_json))
    return ChangedValue(namespace=place[0], key=place[1], left=found[0], right=found[1])
