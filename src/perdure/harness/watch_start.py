"""What a watch begins with: the base, or the batches since a commit it already has (WB-16)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from msgspec import UNSET, Raw, Struct

from perdure.drive.kind import Reduces
from perdure.errors import Rejected
from perdure.harness.transcript import read_transcript
from perdure.line.line import Line
from perdure.ports import Storage
from perdure.records.addresses import (
    SEALED_NAMESPACES,
    Address,
    ConversationValue,
    SessionValue,
)
from perdure.records.batches import batch, selected, weight, widened
from perdure.records.codec import to_raw
from perdure.records.conversations import ConversationState
from perdure.records.seqs import NO_SEQ, Seq
from perdure.records.sessions import EntryScan
from perdure.records.tasks import Task
from perdure.records.watch import (
    SnapshotReason,
    SnapshotRequired,
    WatchBase,
    WatchDelta,
    WatchEvent,
    WatchInput,
    WatchValue,
    queued_input,
)
from perdure.records.writes import (
    Commit,
    InsertConversation,
    InsertEntry,
    PatchTask,
    SettleTask,
)

MISSED_COMMITS_MAX: Final = 1_000
"""Most commits that a returning watch is given one by one (WB-16)."""

MISSED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes of them (WB-16)."""

JOURNAL_PAGE: Final = 100

NULL: Final = Raw(b"null")


Watched: TypeAlias = frozenset[Seq] | None
"""The conversations of a watch, None for all of the session."""

Value: TypeAlias = ConversationValue[Any] | SessionValue[Any]


class Asked(Struct, frozen=True, kw_only=True):
    """What a watch was asked for: `conv_id` is the base's conversation; `whole`: all of them."""

    conv_id: Seq
    whole: bool = False
    owned: bool = False
    limit: int = 50
    values: tuple[Value, ...] = ()
    after: Seq | None = None


class Missed(Struct, kw_only=True):
    """Commits since the one a watch has, as far as they were read; or why they are of no use."""

    after: Seq
    reason: SnapshotReason | None = None
    commits: list[Commit] = []
    bytes: int = 0

    def take(self, page: Sequence[Commit]) -> None:
        """Add commits, unless they become too many."""
        self.commits += page
        self.bytes += sum(weight(one.writes) for one in page)
        if len(self.commits) > MISSED_COMMITS_MAX:
            self._refuse("too_many_commits")
        elif self.bytes > MISSED_BYTES_MAX:
            self._refuse("too_many_bytes")

    def _refuse(self, reason: SnapshotReason) -> None:
        self.reason = reason
        self.commits = []


class Reading:
    """Reads what watches begin with."""

    def __init__(self, line: Line, storage: Storage, reducers: Mapping[str, Reduces]) -> None:
        """Take the line; `reducers` are the task kinds that have something to show."""
        self._line = line
        self._storage = storage
        self._reducers = reducers

    async def ahead(self, conv_id: Seq, after: Seq | None) -> Missed | None:
        """Read most of what a returning watch missed, beside the running session."""
        if after is None:
            return None
        missed = Missed(after=after, reason=await self._why_not(conv_id, after))
        await self._catch_up(missed)
        return missed

    async def first(
        self, asked: Asked, watched: Watched, missed: Missed | None
    ) -> list[WatchEvent]:
        """Answer what a watch begins with; called on the line, where nothing is committed."""
        state = await self._line.residency.load(self._storage, asked.conv_id)
        if state is None:
            raise Rejected("unknown_target", f"there is no conversation {asked.conv_id}")
        if state.deleted:
            raise Rejected("deleted", f"conversation {asked.conv_id} was deleted")
        if missed is None:
            return [await self._base(asked, watched, state)]
        await self._catch_up(missed)
        if missed.reason is not None:
            base = await self._base(asked, watched, state)
            return [SnapshotRequired(reason=missed.reason), base]
        batches = await self._batches(asked, watched, missed.commits)
        return [*batches, *await self._resets(watched)]

    # The base.

    async def _base(self, asked: Asked, watched: Watched, state: ConversationState) -> WatchBase:
        tasks = self._live(watched)
        scan = EntryScan(order="desc", limit=asked.limit)
        newest = await read_transcript(self._storage, state, scan, lineage=self._line.lineage)
        return WatchBase(
            as_of=await self._line.boundary(),
            conversation=state,
            entries=tuple(reversed(newest)),
            tasks=tasks,
            scratch={
                task.id: reduced
                for task in tasks
                if (reduced := await self._reduced(task)) is not None
            },
            inbox=await self._inbox(state),
            values=tuple([await self._value(asked.conv_id, one) for one in asked.values]),
        )

    def _live(self, watched: Watched) -> tuple[Task, ...]:
        tasks = self._line.residency.live_tasks()
        return tuple(task for task in tasks if watched is None or task.conv_id in watched)

    async def _reduced(self, task: Task) -> Raw | None:
        reducer = self._reducers.get(task.kind)
        reduced = None if reducer is None else await reducer.reduce(task, self._line)
        return None if reduced is None else to_raw(reduced)

    async def _inbox(self, state: ConversationState) -> tuple[WatchInput, ...]:
        entries = await self._storage.entries([item.entry for item in state.inbox])
        return tuple(
            queued_input(item, entries[item.entry]) for item in state.inbox if item.entry in entries
        )

    async def _value(self, conv_id: Seq, token: Value) -> WatchValue:
        address = bound(conv_id, token)
        raw = await self._line.value(address)
        return WatchValue(
            namespace=address.namespace,
            key=address.key,
            conv_id=address.conv_id,
            value_json=UNSET if raw is None else raw,
        )

    # Going on.

    async def _why_not(self, conv_id: Seq, after: Seq) -> SnapshotReason | None:
        """Say why a seq is no main boundary one could go on from."""
        if after > await self._line.boundary():
            return "future"
        if after <= NO_SEQ:
            return "unknown"
        try:
            await self._storage.conversations([conv_id], as_of=after)
        except Rejected:
            later = await self._storage.commits(after=after, limit=1)
            return "inside_commit" if later and later[0].first_seq <= after else "unknown"
        return None

    async def _catch_up(self, missed: Missed) -> None:
        while missed.reason is None:
            after = missed.commits[-1].last_seq if missed.commits else missed.after
            page = await self._storage.commits(after=after, limit=JOURNAL_PAGE)
            missed.take(page)
            if len(page) < JOURNAL_PAGE:
                return

    async def _batches(
        self, asked: Asked, watched: Watched, commits: Sequence[Commit]
    ) -> list[WatchEvent]:
        """Answer the batches of missed commits, as they were delivered then."""
        homes = await self._homes(commits)
        payloads = await self._placed(commits)
        found: list[WatchEvent] = []
        for commit in commits:
            if asked.owned and watched is not None:
                watched = widened(watched, commit, homes.get)
            writes = selected(commit, watched, homes.get)
            if writes:
                found.append(batch(commit, writes, payloads))
        return found

    async def _homes(self, commits: Sequence[Commit]) -> dict[Seq, Seq]:
        ids: dict[Seq, None] = {}
        for commit in commits:
            for write in commit.writes:
                if isinstance(write, PatchTask | SettleTask):
                    ids[write.task_id] = None
                elif isinstance(write, InsertConversation) and write.owner is not UNSET:
                    ids[write.owner] = None
        tasks = await self._storage.tasks(list(ids))
        return {task.id: task.conv_id for task in tasks.values()}

    async def _placed(self, commits: Sequence[Commit]) -> dict[Seq, Raw]:
        ids = [
            write.seq
            for commit in commits
            for write in commit.writes
            if isinstance(write, InsertEntry) and write.ref is not UNSET
        ]
        entries = await self._storage.entries(ids)
        return {
            entry.id: entry.payload_json
            for entry in entries.values()
            if entry.payload_json is not UNSET
        }

    async def _resets(self, watched: Watched) -> list[WatchEvent]:
        """Answer what live tasks show now: the deltas of the meantime are stored nowhere else."""
        found: list[WatchEvent] = []
        for task in self._live(watched):
            if task.kind in self._reducers:
                reduced = await self._reduced(task)
                found.append(
                    WatchDelta(
                        task_id=task.id,
                        kind="reset",
                        payload_json=NULL if reduced is None else reduced,
                    )
                )
        return found


def bound(conv_id: Seq, token: object) -> Address:
    """Answer the address of a value to show.

    Raises:
        Rejected: `invariant`, for what is no value, and for a sealed address (VL-31).
    """
    if isinstance(token, ConversationValue):
        address = cast("ConversationValue[Any]", token).bind(conv_id)
    elif isinstance(token, SessionValue):
        address = cast("SessionValue[Any]", token).address()
    else:
        raise Rejected("invariant", f"{token!r} is no value of a conversation or the session")
    if address.namespace in SEALED_NAMESPACES:
        raise Rejected("invariant", f"{address.namespace!r} is sealed; no watch shows it")
    return address
