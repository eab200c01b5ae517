"""Residency: what memory holds, and nothing else (RS-01, RS-02, RS-09).

Resident are the states of live conversations, the entries on their context lists, every live
task, and each live conversation's newest generation. A conversation is live while it has live
tasks, while its owner task lives, or while a handle or watch is attached to it. A small bounded
cache of current values stands beside them (RS-05).

Invariants: objects are immutable values; `adopt` is the only place that changes what is resident
after open, and runs without an await.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import UNSET, Raw

from perdure.line.facts import KindTable
from perdure.ports import Storage
from perdure.records.addresses import Address
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry
from perdure.records.seqs import Seq
from perdure.records.sessions import SCAN_LIMIT_MAX, TaskScan
from perdure.records.tasks import Task

VALUES_CACHED_MAX: Final = 2_000
"""Most current values kept (D30)."""

VALUE_CACHED_BYTES_MAX: Final = 32_768
"""Largest value kept: so the cache holds at most 64 MiB (D30)."""


SETTLED_CACHED_MAX: Final = 512
"""Most settled tasks kept for those that wait on them (SC-17)."""


class Residency:
    """Hold what execution needs in memory."""

    def __init__(self, kinds: KindTable) -> None:
        """Start empty."""
        self._kinds = kinds
        self._conversations: dict[Seq, ConversationState] = {}
        self._tasks: dict[Seq, Task] = {}
        self._live: dict[Seq, dict[Seq, Task]] = {}
        self._newest: dict[Seq, Seq] = {}
        self._entries: dict[Seq, Entry] = {}
        self._attached: dict[Seq, int] = {}
        self._kept: Sequence[Seq] = ()
        self._values: OrderedDict[Address, Raw | None] = OrderedDict()
        self._settled: OrderedDict[Seq, Task] = OrderedDict()
        self._on_drop: list[Callable[[Seq], None]] = []

    # Reads: synchronous, of what is resident.

    def conversation(self, conv_id: Seq) -> ConversationState | None:
        """Answer a resident conversation."""
        return self._conversations.get(conv_id)

    def task(self, task_id: Seq) -> Task | None:
        """Answer a resident task: live, or a newest generation."""
        return self._tasks.get(task_id)

    def entry(self, entry_id: Seq) -> Entry | None:
        """Answer a resident entry."""
        return self._entries.get(entry_id)

    def is_live(self, task: Task) -> bool:
        """Say whether a task's status is not terminal."""
        return self._kinds.is_live(task)

    def live_tasks(self, conv_id: Seq | None = None) -> tuple[Task, ...]:
        """Answer live tasks in id order: of one conversation, or of the session."""
        if conv_id is not None:
            held = self._live.get(conv_id)
            return tuple(held.values()) if held else ()
        tasks = (task for held in self._live.values() for task in held.values())
        return tuple(sorted(tasks, key=_by_id))

    def settled_task(self, task_id: Seq) -> Task | None:
        """Answer a task that settled lately, from a bounded cache beside residency (SC-17)."""
        return self._settled.get(task_id)

    def counts(self) -> tuple[int, int, int]:
        """Count resident conversations, tasks and entries (RS-01, RS-02)."""
        return len(self._conversations), len(self._tasks), len(self._entries)

    # The value cache.

    def cached_value(self, address: Address) -> Raw | bool | None:
        """Answer a cached current value: bytes, None for absent, False for not cached."""
        if address not in self._values:
            return False
        self._values.move_to_end(address)
        return self._values[address]

    def cache_value(self, address: Address, value: Raw | None) -> None:
        """Keep a current value, least recently used first out."""
        if value is not None and len(value) > VALUE_CACHED_BYTES_MAX:
            self._values.pop(address, None)
            return
        self._values[address] = value
        self._values.move_to_end(address)
        if len(self._values) > VALUES_CACHED_MAX:
            self._values.popitem(last=False)

    # Loading.

    async def hydrate(self, storage: Storage) -> None:
        """Load live tasks, their conversations and what those need; nothing else (OP-17)."""
        after: Seq | None = None
        while True:
            page = await storage.scan_tasks(TaskScan(after=after, limit=SCAN_LIMIT_MAX, live=True))
            for task in page:
                self._tasks[task.id] = task
                self._live.setdefault(task.conv_id, {})[task.id] = task
            if len(page) < SCAN_LIMIT_MAX:
                break
            after = page[-1].id
        owned = [task.owns for task in self._tasks.values() if task.owns is not UNSET]
        for conv_id in (*self._live, *owned):
            await self.load(storage, conv_id)

    async def load(self, storage: Storage, conv_id: Seq) -> ConversationState | None:
        """Make a conversation, its newest generation and its context entries resident."""
        state = self._conversations.get(conv_id)
        if state is not None:
            return state
        state = (await storage.conversations([conv_id])).get(conv_id)
        if state is None:
            return None
        newest: list[Task] = []
        for kind in self._kinds.exchange_roots():
            scan = TaskScan(conv_id=conv_id, kind=kind, order="desc", limit=1)
            newest.extend(await storage.scan_tasks(scan))
        context = list(state.context)
        found: dict[Seq, Entry] = {}
        for start in range(0, len(context), SCAN_LIMIT_MAX):
            found.update(await storage.entries(context[start : start + SCAN_LIMIT_MAX]))
        held = self._conversations.get(conv_id)
        if held is not None:
            # Somebody was quicker, and commits may have followed: what was read here is older.
            return held
        for task in newest:
            self._newest[conv_id] = task.id
            self._tasks.setdefault(task.id, task)
        self._entries.update(found)
        self._conversations[conv_id] = state
        return state

    def keep(self, conv_ids: Sequence[Seq]) -> None:
        """Keep what a commit targets until `release`: a handle may be dropped at any moment."""
        self._kept = conv_ids

    def release(self) -> None:
        """Let go of what the last commit targeted."""
        kept, self._kept = self._kept, ()
        self.settle_residency(kept)

    def attach(self, conv_id: Seq) -> None:
        """Count one more handle or watch that keeps a conversation resident."""
        self._attached[conv_id] = self._attached.get(conv_id, 0) + 1

    def detach(self, conv_id: Seq) -> None:
        """Count one less; drop the conversation when nothing else keeps it."""
        left = self._attached.get(conv_id, 0) - 1
        if left > 0:
            self._attached[conv_id] = left
        else:
            self._attached.pop(conv_id, None)
            self._drop_if_idle(conv_id)

    # Adopting a commit.

    def adopt_task(self, task: Task) -> bool:
        """Take a task's new version; says whether it lives."""
        conv_id = task.conv_id
        live = self._kinds.is_live(task)
        if live:
            self._tasks[task.id] = task
            self._live.setdefault(conv_id, {})[task.id] = task
        else:
            held = self._live.get(conv_id)
            if held is not None:
                held.pop(task.id, None)
                if not held:
                    del self._live[conv_id]
        facts = self._kinds.task(task.kind)
        if facts is not None and facts.exchange_root:
            self._adopt_newest(task, live=live)
        elif not live:
            self._tasks.pop(task.id, None)
            self._settled[task.id] = task
            if len(self._settled) > SETTLED_CACHED_MAX:
                self._settled.popitem(last=False)
        return live

    def _adopt_newest(self, task: Task, *, live: bool) -> None:
        newest = self._newest.get(task.conv_id)
        if newest is None or task.id > newest:
            old = self._tasks.get(newest) if newest is not None else None
            if old is not None and not self.is_live(old):
                del self._tasks[old.id]
            self._newest[task.conv_id] = task.id
            self._tasks[task.id] = task
        elif live or task.id == newest:
            self._tasks[task.id] = task
        else:
            self._tasks.pop(task.id, None)

    def adopt_conversation(self, state: ConversationState, inserted: Iterable[Entry]) -> None:
        """Take a conversation's new version and the entries this commit put on its list."""
        old = self._conversations.get(state.id)
        self._conversations[state.id] = state
        for entry in inserted:
            self._entries[entry.id] = entry
        if old is not None and old.prefix_version != state.prefix_version:
            gone = set(old.context) - set(state.context)
            self._drop_entries(gone, apart_from=state.id, inherits=state.parent is not UNSET)

    def forget_conversation(self, conv_id: Seq) -> None:
        """Drop a deleted conversation, whatever is attached."""
        self._attached.pop(conv_id, None)
        self._drop(conv_id)

    def settle_residency(self, conv_ids: Iterable[Seq]) -> None:
        """Drop those of the touched conversations that nothing keeps any more."""
        for conv_id in conv_ids:
            self._drop_if_idle(conv_id)

    def _drop_if_idle(self, conv_id: Seq) -> None:
        state = self._conversations.get(conv_id)
        if state is None or self._live.get(conv_id) or conv_id in self._attached:
            return
        if conv_id in self._kept:
            return
        owner = self._tasks.get(state.owner) if state.owner is not UNSET else None
        if owner is not None and self.is_live(owner):
            return
        self._drop(conv_id)

    def listen_drops(self, listener: Callable[[Seq], None]) -> None:
        """Call `listener` with every conversation that leaves memory."""
        self._on_drop.append(listener)

    def _drop(self, conv_id: Seq) -> None:
        state = self._conversations.pop(conv_id, None)
        for listener in self._on_drop:
            listener(conv_id)
        newest = self._newest.pop(conv_id, None)
        if newest is not None:
            task = self._tasks.get(newest)
            if task is not None and not self.is_live(task):
                del self._tasks[newest]
        if state is not None:
            self._drop_entries(
                set(state.context), apart_from=conv_id, inherits=state.parent is not UNSET
            )

    def _drop_entries(self, gone: set[Seq], *, apart_from: Seq, inherits: bool) -> None:
        # Only a conversation that inherits shares entries: with its ancestors and their forks.
        for conv_id, other in self._conversations.items():
            if conv_id != apart_from and (inherits or other.parent is not UNSET):
                gone = gone - set(other.context)
        kept = self._conversations.get(apart_from)
        if kept is not None:
            gone = gone - set(kept.context)
        for seq in gone:
            self._entries.pop(seq, None)


def _by_id(task: Task) -> Seq:
    return task.id
