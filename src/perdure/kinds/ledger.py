"""The ledger: what live chains have spent, what is reserved, and how long they have been at work.

It is a reading of stored facts, kept up with every commit, so that a request costs the same however
long the session is: a chain is read from the store once, at its first need, and then follows the
journal (BG-10). Reservations are those of the generations in flight; nothing else holds one, so a
kill leaves none behind (BG-05).

Time is measured on the monotonic clock of this process, once for parallel work: each task that ends
stores the milliseconds that no earlier one of its chain has stored, so stored times simply add up.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from msgspec import UNSET, Struct

from perdure.kinds.spending import Chain, Figures, figures_of, read_chain, read_session, spent_of
from perdure.kinds.states import GenerationState
from perdure.line.line import Delivery, Line
from perdure.line.residency import Residency
from perdure.ports import Clock, Storage
from perdure.records.addresses import USAGE, input_record
from perdure.records.approvals import ApprovalState
from perdure.records.budgets import NOTHING_SPENT, Budget, Reservation, Spent
from perdure.records.codec import decode
from perdure.records.conversations import ConversationState
from perdure.records.inputs import InputRecord
from perdure.records.messages import UsageElement
from perdure.records.seqs import Seq
from perdure.records.tasks import Role, Task
from perdure.records.writes import AppendList

CHAINS_KEPT_MAX: Final = 256
"""Most inputs whose sums are kept; another is read again at its next need."""

OPEN: Final = frozenset({"streaming", "deferred", "polling"})
"""Statuses of a generation whose request was made and has not ended."""


class Place(Struct, frozen=True, gc=False, kw_only=True):
    """Whose spending a task's is: the inputs of its chain, and the clock it works on."""

    inputs: tuple[Seq, ...]
    clock: Seq


class Limit(Struct, frozen=True, gc=False, kw_only=True):
    """One budget that holds for a task, with what its chain has spent and reserved."""

    input_id: Seq | None
    budget: Budget
    spent: Spent
    reserved: Spent


class _Clock:
    """Work of one chain in this process: since when it is not stored, and how many are at it."""

    __slots__ = ("running", "since_ms")

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.running: set[Seq] = set()


class Ledger:
    """Spending of one open session, in memory."""

    def __init__(self, clock: Clock, budget: Budget | None = None) -> None:
        """Take the session's budget, if it has one."""
        self.budget = budget
        self._clock = clock
        self._line: Line | None = None
        self._storage: Storage | None = None
        self._places: dict[Seq, Place] = {}
        self._clocks: dict[Seq, _Clock] = {}
        self._charged: dict[Seq, int] = {}
        self._sums: OrderedDict[Seq | None, Spent] = OrderedDict()
        self._figures: dict[Seq, Figures] = {}
        self._reserved: dict[Seq, Spent] = {}
        self._decided: dict[Seq, Budget] = {}
        self._denied: set[Seq] = set()
        self._sizes: OrderedDict[Seq, tuple[int, int, int]] = OrderedDict()

    def attach(self, line: Line, storage: Storage) -> None:
        """Follow a line's commits; called once, at open."""
        self._line = line
        self._storage = storage
        line.listen(self._on_commit)

    # Decisions about the session's budget.

    def questions(self, input_id: Seq | None) -> list[Task]:
        """Answer the live approvals that ask about a budget: one in each tree (BG-06, VD-06)."""
        assert self._line is not None
        return [
            task
            for task in self._line.residency.live_tasks()
            if task.kind == "approval"
            and task.abort_requested is UNSET
            and (asked := decode(task.state_json, ApprovalState).budget) is not UNSET
            and asked.get("input") == input_id
        ]

    def question(self, input_id: Seq | None, conv_id: Seq) -> Seq | None:
        """Answer the approval that already asks about a budget in a conversation's tree."""
        root = self._root(conv_id)
        same = (task.id for task in self.questions(input_id) if self._root(task.conv_id) == root)
        return next(same, None)

    def _root(self, conv_id: Seq) -> Seq:
        """Answer the conversation at the top of an ownership tree; all of a live one is held."""
        assert self._line is not None
        held = self._line.residency
        while True:
            state = held.conversation(conv_id)
            owner = UNSET if state is None else state.owner
            task = None if owner is UNSET else held.task(owner)
            if task is None:
                return conv_id
            conv_id = task.conv_id

    def settle_with(self, approval_ids: Iterable[Seq], budget: Budget) -> None:
        """Change the session's budget when the decision on these approvals is committed."""
        self._decided = dict.fromkeys(approval_ids, budget)

    def _decide(self, task: Task) -> None:
        budget = self._decided.pop(task.id, None)
        if budget is None or self.budget is None:
            return
        if budget.on_limit == self.budget.on_limit:
            self.budget = budget
            return
        assert self._line is not None
        for held in self._line.residency.live_tasks():
            if task.id in held.after and held.id in self._places:
                self._denied.update(self._places[held.id].inputs)

    def was_denied(self, task: Task) -> bool:
        """Say whether a person refused the session's budget to the chain of a task."""
        place = self._places.get(task.id)
        return place is not None and not self._denied.isdisjoint(place.inputs)

    # Time.

    def worked(self, task_id: Seq, stored_ms: int) -> dict[str, Any]:
        """Answer the field that a task's outcome stores; empty when it was not at work here."""
        place = self._places.get(task_id)
        clock = None if place is None else self._clocks.get(place.clock)
        if clock is None or task_id not in clock.running:
            return {}
        elapsed = self._clock.monotonic_ms() - clock.since_ms
        self._charged[task_id] = elapsed
        return {"worked_ms": stored_ms + elapsed} if elapsed else {}

    def _unstored_ms(self, input_id: Seq | None) -> int:
        """Answer the time that running work of a chain has not stored yet."""
        clocks = {
            place.clock
            for place in self._places.values()
            if input_id is None or input_id in place.inputs
        }
        now = self._clock.monotonic_ms()
        return sum(now - clock.since_ms for key in clocks if (clock := self._clocks.get(key)))

    # What holds for a task.

    async def budgets(self, task: Task) -> list[tuple[Seq | None, Budget]]:
        """Answer the budgets that hold for a task, the session's first."""
        assert self._line is not None
        place = await self._place(task)
        found: list[tuple[Seq | None, Budget]] = []
        if self.budget is not None:
            found.append((None, self.budget))
        for input_id in place.inputs:
            raw = await self._line.value(input_record(input_id).address())
            budget = UNSET if raw is None else decode(raw, InputRecord).budget
            if budget is not UNSET:
                found.append((input_id, budget))
        return found

    async def limits(self, task: Task) -> list[Limit]:
        """Answer every budget that holds for a task, with its figures; only on the line."""
        budgets = await self.budgets(task)
        found = [await self._limit(input_id, budget) for input_id, budget in budgets]
        if found:
            self._figures.setdefault(task.id, figures_of(task))
        return found

    async def _limit(self, input_id: Seq | None, budget: Budget) -> Limit:
        spent = await self._sum(input_id)
        reserved = NOTHING_SPENT
        for task_id, held in self._reserved.items():
            if input_id is None or input_id in self._places[task_id].inputs:
                reserved += held
        running = Spent(worked_ms=self._unstored_ms(input_id))
        return Limit(input_id=input_id, budget=budget, spent=spent + running, reserved=reserved)

    async def _sum(self, input_id: Seq | None) -> Spent:
        if input_id in self._sums:
            self._sums.move_to_end(input_id)
            return self._sums[input_id]
        assert self._storage is not None
        chain = await (
            read_session(self._storage) if input_id is None else read_chain(self._storage, input_id)
        )
        await self._enter(chain)
        self._sums[input_id] = chain.spent
        if len(self._sums) > CHAINS_KEPT_MAX:
            self._sums.popitem(last=False)
        return chain.spent

    async def _enter(self, chain: Chain) -> None:
        """Follow the live tasks of a chain that was read; those before this process too."""
        assert self._line is not None
        for task_id, figures in chain.figures.items():
            task = self._line.residency.task(task_id)
            if task is not None and self._line.residency.is_live(task):
                self._figures[task_id] = figures
                await self._place(task)
                if task.status in ("deferred", "polling"):
                    self._reserve(task)

    # Sizes.

    def context_tokens(self, state: ConversationState, held: Residency, *, fixed: int) -> int:
        """Estimate what a request of a conversation holds: as last reported, and what came since.

        Looks at each entry once while the context only grows. `fixed` are system prompt and tools.
        """
        known = self._sizes.get(state.id)
        if known is None or known[0] != state.prefix_version or known[1] > len(state.context):
            known = (state.prefix_version, 0, fixed)
        tokens = known[2]
        for entry_id in state.context[known[1] :]:
            entry = held.entry(entry_id)
            if entry is not None:
                meta = entry.meta
                reported = meta.context_tokens
                tokens = tokens + meta.tokens if reported is UNSET else reported
        self._sizes[state.id] = (state.prefix_version, len(state.context), tokens)
        if len(self._sizes) > CHAINS_KEPT_MAX:
            self._sizes.popitem(last=False)
        return tokens

    # Places.

    async def _place(self, task: Task) -> Place:
        """Find a task's chain: through what spawned it, and through who owns its conversation."""
        place = self._places.get(task.id)
        if place is None:
            place = self._places[task.id] = await self._found(task)
        return place

    async def _found(self, task: Task) -> Place:
        line = self._line
        assert line is not None
        inputs: list[Seq] = []
        clock = task.conv_id
        current: Task | None = task
        while current is not None:
            while current.kind != "generation" and current.spawned_by is not UNSET:
                spawner = await line.task(current.spawned_by)
                if spawner is None:
                    break
                current = spawner
            clock = current.conv_id
            if current.kind == "generation":
                owed = decode(current.state_json, GenerationState).inputs
                inputs += owed
                clock = owed[0] if owed else clock
            state = await line.conversation(current.conv_id)
            owner = UNSET if state is None else state.owner
            current = None if owner is UNSET else await line.task(owner)
        return Place(inputs=tuple(dict.fromkeys(inputs)), clock=clock)

    # Following the journal.

    def _on_commit(self, delivery: Delivery) -> None:
        if delivery.scope is not None:
            return
        if self._sums:
            self._follow(delivery)
        line = self._line
        assert line is not None
        for task in delivery.tasks:
            if task.kind == "approval":
                self._decide(task)
            place = self._places.get(task.id)
            if place is None:
                continue
            role = line.kinds.role(task.kind, task.status)
            self._time(task.id, place, at_work=role is Role.INFLIGHT)
            if task.kind == "generation":
                self._reserve(task)
            if role is Role.TERMINAL:
                del self._places[task.id]
                self._figures.pop(task.id, None)

    def _time(self, task_id: Seq, place: Place, *, at_work: bool) -> None:
        clock = self._clocks.get(place.clock)
        if at_work:
            if clock is None:
                clock = self._clocks[place.clock] = _Clock(self._clock.monotonic_ms())
            clock.running.add(task_id)
        elif clock is not None and task_id in clock.running:
            clock.since_ms += self._charged.pop(task_id, 0)
            clock.running.discard(task_id)
            if not clock.running:
                del self._clocks[place.clock]

    def _reserve(self, task: Task) -> None:
        held = UNSET
        if task.status in OPEN:
            held = decode(task.state_json, GenerationState).reserved
        if isinstance(held, Reservation):
            self._reserved[task.id] = held.spent()
        else:
            self._reserved.pop(task.id, None)

    def _follow(self, delivery: Delivery) -> None:
        """Add what a commit reports to the sums of its chain."""
        reported: dict[Seq, set[int]] = {}
        for write in delivery.commit.writes:
            if isinstance(write, AppendList) and write.namespace == USAGE.namespace:
                element = decode(write.value_json, UsageElement)
                self._add(element.task, spent_of(element))
                if element.kind == "report":
                    reported.setdefault(element.task, set()).add(element.attempt)
        for task in delivery.tasks:
            before = self._figures.get(task.id)
            if before is not None:
                after = figures_of(task, before.reported | reported.get(task.id, set()))
                self._figures[task.id] = after
                self._add(task.id, _difference(before.spent(), after.spent()))

    def _add(self, task_id: Seq, more: Spent) -> None:
        place = self._places.get(task_id)
        inputs = () if place is None else place.inputs
        for key in (None, *inputs):
            if key in self._sums:
                self._sums[key] += more


def _difference(before: Spent, after: Spent) -> Spent:
    return Spent(
        turns=after.turns - before.turns,
        worked_ms=after.worked_ms - before.worked_ms,
        unknown_attempts=after.unknown_attempts - before.unknown_attempts,
    )
