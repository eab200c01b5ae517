"""Watching a session: one listener on the line, and a queue for each watch (seed 9.1, D26).

A watch begins in one step on the line: the base is read and the queue registered with no commit in
between, so every later commit arrives once (WT-01). What belongs to a commit, its deltas included,
is handed over in the commit's own step. Nobody waits for a watcher: a queue is bounded, and who
lets it fill is dropped, and holds nothing afterwards (WT-16).

While nobody watches, nothing listens.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import UNSET

from perdure.drive.foreground import is_busy, tree_of
from perdure.harness.watch_start import Asked, Reading
from perdure.line.line import Delivery, Line, Preview
from perdure.records.batches import batch, selected, weight, widened
from perdure.records.codec import to_raw
from perdure.records.seqs import Seq
from perdure.records.watch import (
    ClosedSignal,
    FaultSignal,
    HandlerError,
    Overflow,
    Quiescent,
    WatchDelta,
    WatchEvent,
)
from perdure.records.writes import DeleteConversation

QUEUE_BATCHES_MAX: Final = 256
"""Most events that wait for a watcher; with one more it is dropped (D26)."""

QUEUE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes that wait for a watcher; one event may be larger when nothing else waits (WB-18)."""

_Sized: TypeAlias = tuple[WatchEvent, int]
"""An event and the bytes it counts for; one for all queues that get it."""

PULSE_S: Final = 0.005
"""How long an event may wait for a reader that sleeps, so that it finds the next ones too."""

Report: TypeAlias = Callable[[BaseException, Seq | None], None]


class _Pulse:
    """Wakes the readers of a session together, so that one who reads all wakes seldom.

    Waking costs a reader more than reading: woken for each event, forty of them take as much of
    the loop as the turn that they watch.
    """

    def __init__(self) -> None:
        self._asleep: list[asyncio.Future[None]] = []

    def wake(self, reader: "asyncio.Future[None]") -> None:
        """Wake a reader within `PULSE_S`."""
        if not self._asleep:
            asyncio.get_running_loop().call_later(PULSE_S, self._beat)
        self._asleep.append(reader)

    def _beat(self) -> None:
        woken, self._asleep = self._asleep, []
        for reader in woken:
            if not reader.done():
                reader.set_result(None)


class _Queue:
    """What waits for one watcher."""

    __slots__ = (
        "_bytes", "_first", "_on_end", "_pulse", "_waiting", "_waits", "conv_id", "ended", "name",
        "owned", "watched",
    )  # fmt: skip

    def __init__(
        self, name: str, asked: Asked, watched: frozenset[Seq] | None, pulse: "_Pulse"
    ) -> None:
        self.name = name
        self._pulse = pulse
        self.conv_id = asked.conv_id
        self.owned = asked.owned
        self.watched = watched
        self.ended = False
        self._first: deque[WatchEvent] = deque()
        self._waiting: deque[_Sized] = deque()
        self._bytes = 0
        self._waits: asyncio.Future[None] | None = None
        self._on_end: Callable[[_Queue], None] | None = None

    @property
    def held(self) -> int:
        """Count what waits."""
        return len(self._first) + len(self._waiting)

    def begin(self, first: Iterable[WatchEvent], on_end: "Callable[[_Queue], None]") -> None:
        self._first.extend(first)
        self._on_end = on_end

    def put(self, sized: _Sized) -> bool:
        """Add an event; says False, and drops everything, when there is no room for it."""
        waiting = self._waiting
        waiting.append(sized)
        self._bytes += sized[1]
        held = len(waiting)
        if held > QUEUE_BATCHES_MAX or (self._bytes > QUEUE_BYTES_MAX and held > 1):
            self._first.clear()
            waiting.clear()
            self.end(Overflow())
            return False
        if self._waits is not None:
            self._wake()
        return True

    def end(self, last: WatchEvent | None = None) -> None:
        """Take nothing more; `last` is delivered after what waits."""
        if self.ended:
            return
        self.ended = True
        if last is not None:
            self._waiting.append((last, 0))
        if self._on_end is not None:
            self._on_end(self)
            self._on_end = None
        self._wake()

    def close(self) -> None:
        """End at once: what waits is dropped."""
        self._first.clear()
        self._waiting.clear()
        self.end()

    def take(self) -> WatchEvent | None:
        """Answer the next event that is there, None when none is."""
        if self._first:
            return self._first.popleft()
        if self._waiting:
            event, size = self._waiting.popleft()
            self._bytes -= size
            return event
        return None

    async def next(self) -> WatchEvent | None:
        """Wait for the next event; None after the last one."""
        while (event := self.take()) is None and not self.ended:
            self._waits = asyncio.get_running_loop().create_future()
            await self._waits
        return event

    def _wake(self) -> None:
        if self._waits is not None:
            self._pulse.wake(self._waits)
            self._waits = None

    def sees(self, conv_id: Seq | None) -> bool:
        return self.watched is None or (conv_id is not None and conv_id in self.watched)


class Watch:
    """One watch: iterate over its events; leaving it, or `close`, ends it (WT-15).

    The first event is the base. A watch that was asked to go on after a commit begins with the
    batches after it instead, or with `SnapshotRequired` and a base.
    """

    def __init__(self, watches: "Watches", asked: Asked) -> None:
        """Say what to watch; nothing is read before the first event is asked for."""
        self._watches = watches
        self._asked = asked
        self._queue: _Queue | None = None
        self._closed = False

    async def __aenter__(self) -> "Watch":
        """Begin now: every commit from here on is delivered.

        Raises:
            Rejected: `unknown_target`, `deleted`; `invariant` for a limit or address that cannot
                be; `nested_command` inside a command or listener.
            Faulted, Closed: the session has stopped.
        """
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    def __aiter__(self) -> "Watch":
        """Answer itself."""
        return self

    async def __anext__(self) -> WatchEvent:
        """Wait for the next event; ends after the last one (WT-07, WT-09)."""
        if self._closed:
            raise StopAsyncIteration
        queue = self._queue or await self._begin()
        event = queue.take() or await queue.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def close(self) -> None:
        """Stop delivery; what waits is dropped. A second call does nothing."""
        self._closed = True
        if self._queue is not None:
            self._queue.close()

    async def _begin(self) -> _Queue:
        if self._queue is None:
            self._queue = await self._watches.begin(self._asked)
            weakref.finalize(self, self._queue.close)
        return self._queue


class Watches:
    """The watches of one open session."""

    def __init__(
        self, line: Line, reading: Reading, *, report: Report, hide: Callable[[str], str]
    ) -> None:
        """Take the line; `report` hears who was dropped, `hide` replaces secrets in messages."""
        self._line = line
        self._reading = reading
        self._report = report
        self._hide = hide
        self._queues: list[_Queue] = []
        self._stops: list[Callable[[], None]] = []
        self._busy: set[Seq] = set()
        self._made = 0
        self._pulse = _Pulse()
        line.listen_faults(self._on_fault)

    def __len__(self) -> int:
        """Count the watches that are open."""
        return len(self._queues)

    async def begin(self, asked: Asked) -> _Queue:
        """Read what the watch begins with and register it, in one step on the line (WT-01)."""
        missed = await self._reading.ahead(asked.conv_id, asked.after)
        made: list[_Queue] = []

        async def step() -> None:
            watched = self._watched(asked)
            first = await self._reading.first(asked, watched, missed)
            self._made += 1
            queue = _Queue(
                f"watch {self._made} of conversation {asked.conv_id}", asked, watched, self._pulse
            )
            queue.begin(first, self._remove)
            self._add(queue)
            made.append(queue)

        await self._line.snapshot(step)
        return made[0]

    def close(self) -> None:
        """End every watch with `closed` (D08)."""
        self._end_all(ClosedSignal())

    def _watched(self, asked: Asked) -> frozenset[Seq] | None:
        if asked.whole:
            return None
        if asked.owned:
            return frozenset(tree_of(asked.conv_id, self._line.residency))
        return frozenset((asked.conv_id,))

    def _add(self, queue: _Queue) -> None:
        if not self._queues:
            self._stops = [
                self._line.listen(self._on_commit),
                self._line.listen_previews(self._on_preview),
            ]
            held = self._line.residency
            conversations = {task.conv_id for task in held.live_tasks()}
            self._busy = {one for one in conversations if is_busy(one, self._line.kinds, held)}
        self._queues.append(queue)
        self._line.residency.attach(queue.conv_id)

    def _remove(self, queue: _Queue) -> None:
        if queue not in self._queues:
            return
        self._queues.remove(queue)
        self._line.residency.detach(queue.conv_id)
        if not self._queues:
            for stop in self._stops:
                stop()
            self._stops = []
            self._busy.clear()

    def _end_all(self, last: WatchEvent) -> None:
        for queue in tuple(self._queues):
            queue.end(last)

    def _put(self, queue: _Queue, sized: _Sized) -> None:
        if not queue.put(sized):
            self._report(
                RuntimeWarning(f"{queue.name} was dropped: its watcher does not read"), None
            )

    # What happens.

    def _on_commit(self, delivery: Delivery) -> None:
        if delivery.scope is not None:
            return
        telemetry = self._line.telemetry
        if not telemetry.is_on:
            self._deliver(delivery)
            return
        watches, last_seq = len(self._queues), delivery.commit.last_seq
        with telemetry.span("watch.deliver", watches=watches, last_seq=last_seq) as span:
            self._deliver(delivery)
            span.set(dropped=watches - len(self._queues))

    def _deliver(self, delivery: Delivery) -> None:
        homes = {task.id: task.conv_id for task in delivery.tasks}

        def home(task_id: Seq) -> Seq | None:
            return homes.get(task_id) or self._home(task_id)

        payloads = {
            entry.id: entry.payload_json
            for entry in delivery.entries
            if entry.ref is not UNSET and entry.payload_json is not UNSET
        }
        made: dict[frozenset[Seq] | None, _Sized | None] = {}
        for queue in tuple(self._queues):
            watched = queue.watched
            if queue.owned and watched is not None:
                watched = queue.watched = widened(watched, delivery.commit, home)
            if watched in made:
                shown = made[watched]
            else:
                writes = selected(delivery.commit, watched, home)
                shown = (
                    (batch(delivery.commit, writes, payloads), weight(writes)) if writes else None
                )
                made[watched] = shown
            if shown is not None:
                self._put(queue, shown)
        self._settle_down(delivery)
        self._end_deleted(delivery)

    def _home(self, task_id: Seq) -> Seq | None:
        held = self._line.residency
        task = held.task(task_id) or held.settled_task(task_id)
        return None if task is None else task.conv_id

    def _settle_down(self, delivery: Delivery) -> None:
        """Tell of conversations that have no foreground work left since this commit."""
        held = self._line.residency
        for conv_id in self._touched(delivery):
            if is_busy(conv_id, self._line.kinds, held):
                self._busy.add(conv_id)
            elif conv_id in self._busy:
                self._busy.discard(conv_id)
                self._tell(Quiescent(conv_id=conv_id), conv_id)

    def _touched(self, delivery: Delivery) -> Sequence[Seq]:
        """Answer the conversations whose tasks changed, and those that own them."""
        found = dict.fromkeys(task.conv_id for task in delivery.tasks)
        pending = list(found)
        while pending:
            state = self._line.residency.conversation(pending.pop())
            if state is not None and state.owner is not UNSET:
                owner = self._home(state.owner)
                if owner is not None and owner not in found:
                    found[owner] = None
                    pending.append(owner)
        return list(found)

    def _tell(self, event: WatchEvent, conv_id: Seq | None, size: int = 128) -> None:
        sized = (event, size)
        for queue in tuple(self._queues):
            if queue.sees(conv_id):
                self._put(queue, sized)

    def _end_deleted(self, delivery: Delivery) -> None:
        for write in delivery.commit.writes:
            if isinstance(write, DeleteConversation):
                for queue in tuple(self._queues):
                    if queue.conv_id == write.conv_id:
                        queue.end()

    def _on_preview(self, preview: Preview) -> None:
        payload = to_raw(preview.payload)
        delta = WatchDelta(task_id=preview.task_id, kind=preview.kind, payload_json=payload)
        self._tell(delta, self._home(preview.task_id), 128 + len(payload))

    def on_report(self, error: BaseException, task_id: int | None) -> None:
        """Tell watches of an error that belongs to no caller (ER-06); a warning is none."""
        if isinstance(error, Warning) or not self._queues:
            return
        message = self._hide(f"{type(error).__name__}: {error}")
        if task_id is None:
            sized = (HandlerError(message=message), 128 + len(message))
            for queue in tuple(self._queues):
                self._put(queue, sized)
            return
        event = HandlerError(task_id=Seq(task_id), message=message)
        self._tell(event, self._home(Seq(task_id)), 128 + len(message))

    def _on_fault(self) -> None:
        self._end_all(FaultSignal(message=self._hide(str(self._line.fault))))
