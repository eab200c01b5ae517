"""The line: one command queue per session, and the only place that writes the journal (LN).

A FIFO lock; the builder runs in the caller's own asyncio task, and nested use is told by a context
variable instead of a deadlock. After the builder returned, the line loads the rows its writes
target, validates them in order, commits, lets residency adopt the result, delivers to listeners,
and only then answers its caller.

Invariants: no two commands interleave (LN-01); a caller resumes after delivery (LN-11); a failure
after a command was decided faults the session and nothing is written any more (FT-01, FT-03).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from inspect import isawaitable
from typing import Final, TypeAlias, cast

from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.errors import Closed, Faulted, Rejected, text_of
from perdure.line.command import Command, WorkingCommand
from perdure.line.draft import Draft, Loaded
from perdure.line.facts import KindTable
from perdure.line.lineage import Lineage
from perdure.line.loading import load_joining, load_targets
from perdure.line.residency import Residency
from perdure.line.spans import command_span, settlement_spans
from perdure.line.validate import validate
from perdure.ports import Clock, Storage, Telemetry
from perdure.records.addresses import Address, WorkingScope
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry
from perdure.records.seqs import Seq
from perdure.records.sessions import ListElement, ListPage
from perdure.records.tasks import Task
from perdure.records.writes import (
    Commit,
    DeleteValue,
    SetValue,
    Write,
)

Build: TypeAlias = Callable[[Command], Awaitable[object] | object]
BuildWorking: TypeAlias = Callable[[WorkingCommand], Awaitable[object] | object]


class Delivery(Struct, frozen=True, gc=False, kw_only=True):
    """What a listener gets after a commit: the commit, its lifetime, and the entries it created."""

    commit: Commit
    scope: WorkingScope | None = None
    entries: tuple[Entry, ...] = ()
    tasks: tuple[Task, ...] = ()


class Preview(Struct, frozen=True, gc=False, kw_only=True):
    """Something to show that is not a record: a batch of frames, a progress note (WT-06).

    One that belongs to a commit is shown in the commit's own step, after its listeners, so that
    whoever reads on the line sees both or neither.
    """

    task_id: Seq
    kind: str
    payload: object


Listener: TypeAlias = Callable[[Delivery], None]
PreviewListener: TypeAlias = Callable[[Preview], None]


class _Visit:
    """One command's time on the line; whatever runs inside it, in any asyncio task, can tell."""

    __slots__ = ("_token", "line", "open")

    def __init__(self, line: "Line") -> None:
        self.line = line
        self.open = True
        self._token = _INSIDE.set(self)

    def leave(self) -> None:
        self.open = False
        _INSIDE.reset(self._token)


_INSIDE: Final[ContextVar[_Visit | None]] = ContextVar("perdure_line_visit", default=None)


class Line:
    """Serialize commands over one storage."""

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock,
        kinds: KindTable,
        telemetry: Telemetry,
        report: Callable[[BaseException], None],
    ) -> None:
        """Take the storage; `report` hears of listeners that throw."""
        self.kinds = kinds
        self.telemetry = telemetry
        self.residency = Residency(kinds)
        self.lineage = Lineage(storage)
        self._storage = storage
        self._clock = clock
        self._report = report
        self._lock = asyncio.Lock()
        self._visit: _Visit | None = None
        self._listeners: list[Listener] = []
        self._preview_listeners: list[PreviewListener] = []
        self._fault_listeners: list[Callable[[], None]] = []
        self._time_ms = 0
        self._boundary: Seq | None = None
        self._fault: Faulted | None = None
        self._sealed = False

    # State.

    @property
    def last_seq(self) -> Seq:
        """Answer the highest committed seq."""
        return self._storage.last_seq

    @property
    def fault(self) -> Faulted | None:
        """Answer why the session stopped, None while it runs."""
        return self._fault

    async def hydrate(self) -> None:
        """Load what execution needs and the newest commit's time."""
        await self.residency.hydrate(self._storage)
        self._time_ms = self._storage.info.last_commit_ms

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` after every commit, in commit order; answers the way out (WT-14)."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def listen_faults(self, listener: Callable[[], None]) -> None:
        """Call `listener` once, when the session stops (FT-06)."""
        self._fault_listeners.append(listener)

    def listen_previews(self, listener: PreviewListener) -> Callable[[], None]:
        """Call `listener` with every preview; answers the way out."""
        self._preview_listeners.append(listener)

        def stop() -> None:
            if listener in self._preview_listeners:
                self._preview_listeners.remove(listener)

        return stop

    def preview(self, shown: Preview) -> None:
        """Show listeners something that is not a record, after its working commit (WS-08)."""
        for listener in tuple(self._preview_listeners):
            try:
                listener(shown)
            except Exception as error:  # noqa: BLE001 - listener: its fault is its own (LN-13)
                self._report(error)

    def seal(self) -> None:
        """Refuse every later command with Closed; admitted ones finish (OP-13)."""
        self._sealed = True

    async def drained(self) -> None:
        """Wait until no admitted command is left."""
        async with self._lock:
            pass

    def stop(self, error: BaseException) -> Faulted:
        """Fault the session; later commands raise the same (FT-01)."""
        if self._fault is None:
            self._fault = (
                error
                if isinstance(error, Faulted)
                else Faulted(f"{type(error).__name__}: {text_of(error)}", code="defect")
            )
            for listener in tuple(self._fault_listeners):
                listener()
        return self._fault

    def check_usable(self) -> None:
        """Raise Faulted or Closed when no command may begin."""
        if self._fault is not None:
            raise self._fault
        if self._sealed:
            raise Closed

    # Commands.

    async def submit(
        self,
        build: Build,
        *,
        barrier: bool = False,
        host: bool = False,
        conv_id: Seq | UnsetType = UNSET,
        shows: Preview | None = None,
    ) -> bool:
        """Run one main command; answers whether it wrote anything (LN-06).

        `conv_id` is the conversation that unbound conversation tokens belong to (LN-18); `shows`
        is shown in the same step, after the commit.

        Raises:
            Rejected: by the builder or by validation; nothing was written (LN-07).
            Faulted, Closed: the session takes no more commands.
        """
        with command_span(self.telemetry, self._clock, is_main=True) as told:
            await self._enter()
            try:
                tx = Command(self, self._first(), kinds=self.kinds, host=host, conv_id=conv_id)
                try:
                    built = build(tx)
                    if built is not None and isawaitable(built):
                        await built
                finally:
                    tx.seal()
                if not tx.writes:
                    return False
                await self._commit_main(tx.writes, barrier=barrier)
                if shows is not None:
                    self.preview(shows)
                told(tx.writes)
                return True
            finally:
                self._leave()

    async def submit_working(
        self,
        scope: WorkingScope,
        build: BuildWorking,
        *,
        host: bool = False,
        shows: Preview | None = None,
    ) -> bool:
        """Run one command of a working scope, then show; answers whether it wrote anything."""
        with command_span(self.telemetry, self._clock, is_main=False) as told:
            await self._enter()
            try:
                tx = WorkingCommand(self, self._first(), scope, host=host)
                try:
                    built = build(tx)
                    if built is not None and isawaitable(built):
                        await built
                finally:
                    tx.seal()
                if not tx.writes:
                    return False
                commit = self._commit(tx.writes, time_ms=0)
                await self._persist(commit, barrier=False)
                self._deliver(Delivery(commit=commit, scope=scope))
                if shows is not None:
                    self.preview(shows)
                told(tx.writes)
                return True
            finally:
                self._leave()

    async def snapshot(self, read: Callable[[], Awaitable[object]]) -> object:
        """Run several reads on the line: they see no commit in between (LN-23)."""
        await self._enter()
        try:
            return await read()
        finally:
            self._leave()

    async def boundary(self) -> Seq:
        """Answer the newest main boundary; exact where no commit is under way."""
        if self._boundary is None:
            found = await self._storage.boundary_at(self._storage.info.last_commit_ms)
            if self._boundary is None:
                self._boundary = found
        return self._boundary

    async def _enter(self) -> None:
        self.check_usable()
        check_outside(self)
        await self._lock.acquire()
        if self._fault is not None or self._sealed:
            self._lock.release()
            self.check_usable()
        self._visit = _Visit(self)

    def _leave(self) -> None:
        assert self._visit is not None
        self._visit.leave()
        self._visit = None
        self._lock.release()

    def _first(self) -> Seq:
        return Seq(self._storage.last_seq + 1)

    def _commit(self, writes: Sequence[Write], *, time_ms: int) -> Commit:
        return Commit(
            first_seq=writes[0].seq, last_seq=writes[-1].seq, time_ms=time_ms, writes=tuple(writes)
        )

    async def _commit_main(self, writes: Sequence[Write], *, barrier: bool) -> None:
        loaded = Loaded()
        try:
            await load_targets(self.residency, self._storage, self.lineage, writes, loaded)
            draft = Draft(self.kinds, self.residency, loaded, writes[-1].seq)
            validate(draft, writes)
            self._time_ms = max(self._time_ms, self._clock.now_ms())
            commit = self._commit(writes, time_ms=self._time_ms)
            created = tuple(draft.entries.values())
            await load_joining(self.residency, self._storage, draft)
            with settlement_spans(self.telemetry, writes, draft.tasks, self.residency.task):
                await self._persist(commit, barrier=barrier)
                self._boundary = commit.last_seq
                try:
                    self._adopt(draft, commit)
                except Exception as error:
                    raise self.stop(error) from error
        finally:
            self.residency.release()
        self._deliver(Delivery(commit=commit, entries=created, tasks=tuple(draft.tasks.values())))

    async def _persist(self, commit: Commit, *, barrier: bool) -> None:
        """Commit; whatever goes wrong from here on stops the session (FT-01)."""
        try:
            await self._storage.commit(commit, barrier=barrier)
        except Rejected as error:
            fault = Faulted(f"storage refused a validated commit: {error}", code="defect")
            raise self.stop(fault) from error
        except asyncio.CancelledError:
            # Public calls are shielded; only close, after its grace, cancels a handler here, and
            # what became of the batch is known when the session is opened again (D08).
            self.stop(Faulted("a commit was cut off by the end of its handler"))
            raise
        except Exception as error:
            raise self.stop(error) from error

    def _adopt(self, draft: Draft, commit: Commit) -> None:
        held = self.residency
        touched = dict.fromkeys(draft.conversations)
        for task in draft.tasks.values():
            if not held.adopt_task(task):
                touched[task.conv_id] = None
                if task.owns is not UNSET:
                    touched[task.owns] = None
        for state in draft.conversations.values():
            if state.deleted:
                held.forget_conversation(state.id)
                continue
            held.adopt_conversation(state, self._joined(draft, state))
        held.settle_residency(touched)
        for write in commit.writes:
            kind = type(write)
            if kind is SetValue or kind is DeleteValue:
                value = write.value_json if isinstance(write, SetValue) else None
                held.cache_value(_address(cast("SetValue | DeleteValue", write)), value)

    def _joined(self, draft: Draft, state: ConversationState) -> list[Entry]:
        """Answer the entries this commit put on a conversation's list."""
        before = draft.committed_conversation(state.id)
        if before is not None and before.prefix_version == state.prefix_version:
            return [
                entry
                for entry in draft.entries.values()
                if entry.conv_id == state.id and self._selects(entry)
            ]
        listed = set(state.context)
        return [entry for entry in draft.entries.values() if entry.id in listed]

    def _selects(self, entry: Entry) -> bool:
        facts = self.kinds.content(entry.kind)
        return facts is not None and facts.selects

    def _deliver(self, delivery: Delivery) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(delivery)
            except Exception as error:  # noqa: BLE001 - listener: its fault is its own (LN-13)
                self._report(error)

    # Reads of committed state.

    async def conversation(self, conv_id: Seq) -> ConversationState | None:
        """Answer a conversation, resident or stored."""
        state = self.residency.conversation(conv_id)
        return state or (await self._storage.conversations([conv_id])).get(conv_id)

    async def task(self, task_id: Seq) -> Task | None:
        """Answer a task, resident or stored."""
        task = self.residency.task(task_id) or self.residency.settled_task(task_id)
        return task or (await self._storage.tasks([task_id])).get(task_id)

    async def entry(self, entry_id: Seq) -> Entry | None:
        """Answer an entry, resident or stored."""
        entry = self.residency.entry(entry_id)
        return entry or (await self._storage.entries([entry_id])).get(entry_id)

    async def value(self, address: Address) -> Raw | None:
        """Answer a current value's bytes, None when nothing is stored."""
        if address.working_scope is not UNSET:
            stored = await self._storage.value(address)
            return stored.value_json if stored is not None else None
        cached = self.residency.cached_value(address)
        if not isinstance(cached, bool):
            return cached
        stored = await self._storage.value(address)
        raw = stored.value_json if stored is not None else None
        self.residency.cache_value(address, raw)
        return raw

    async def elements(self, address: Address, page: ListPage) -> Sequence[ListElement]:
        """Answer a page of a list."""
        return await self._storage.elements(address, page)

    def live_tasks(self, conv_id: Seq) -> Sequence[Task]:
        """Answer a conversation's live tasks in id order."""
        return tuple(self.residency.live_tasks(conv_id))


def check_outside(line: Line) -> None:
    """Refuse what would wait for the line from inside one of its commands or listeners (LN-20)."""
    outer = _INSIDE.get()
    if outer is not None and outer.open and outer.line is line:
        raise Rejected(
            "nested_command",
            "a command cannot be opened inside a command or a listener of the same session",
        )


def _address(write: SetValue | DeleteValue) -> Address:
    return Address(
        kind="value",
        namespace=write.namespace,
        key=write.key,
        conv_id=write.conv_id,
        working_scope=write.working_scope,
    )
