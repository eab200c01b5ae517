"""Budgets at work: what may start, how much of it, and what happens at a limit (BG-05 to BG-09).

Asked inside the command that commits the inflight status, so of two that race for the last unit
one starts.
"""

import asyncio
from decimal import Decimal, localcontext
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from perdure.drive.context import TaskContext
from perdure.errors import Rejected
from perdure.kinds.approval import hold_for
from perdure.kinds.ledger import Ledger, Limit
from perdure.kinds.request import fixed_tokens, offered_tools
from perdure.kinds.services import Services
from perdure.line.command import Command
from perdure.line.residency import Residency
from perdure.records.budgets import MONEY_DIGITS, Reached, Reservation, Spent, reached_by
from perdure.records.codec import decode_json
from perdure.records.conversations import ConversationState
from perdure.records.models import ModelInfo, TokenPrice
from perdure.records.settings import GenerationSettings
from perdure.records.tasks import Task

OUTPUT_MIN: Final = 256
"""Least output limit a request is sent with; when less fits, the limit is reached (BG-05)."""

OUTPUT_ASSUMED: Final = 4_096
"""Output tokens reserved when neither the settings nor the model name a limit."""

MILLION: Final = Decimal(1_000_000)


class Estimate(Struct, frozen=True, kw_only=True):
    """What one request may use at most: tokens in, tokens out, and their price."""

    input: int
    output: int
    price: TokenPrice | None

    def spent(self, output: int) -> Spent:
        """Answer it as a sum, with that much output."""
        costs: dict[str, Decimal] = {}
        if self.price is not None:
            with localcontext(prec=MONEY_DIGITS):
                costs[self.price.currency] = (
                    Decimal(self.price.input_price) * self.input
                    + Decimal(self.price.output_price) * output
                ) / MILLION
        return Spent(costs=costs, tokens=self.input + output, turns=1)

    def reservation(self, output: int) -> Reservation:
        """Answer what is stored while the request is in flight."""
        spent = self.spent(output)
        if self.price is None:
            return Reservation(tokens=spent.tokens)
        currency = self.price.currency
        return Reservation(
            tokens=spent.tokens, cost=f"{spent.costs[currency]:f}", currency=currency
        )

    def room(self, limit: Limit) -> int:
        """Answer how much output fits under a budget beside what is spent and reserved."""
        budget, used = limit.budget, limit.spent + limit.reserved
        rooms = [self.output]
        if budget.tokens is not None:
            rooms.append(budget.tokens - used.tokens - self.input)
        price = self.price
        if budget.cost is not None and price is not None and price.currency == budget.currency:
            with localcontext(prec=MONEY_DIGITS):
                left = Decimal(budget.cost) - used.of("cost", budget.currency)
                left -= Decimal(price.input_price) * self.input / MILLION
                each = Decimal(price.output_price) / MILLION
                if each > 0:
                    rooms.append(int(left // each))
        return min(rooms)


class TimeLimit(Struct, frozen=True, kw_only=True):
    """How long what starts now may run, and what ends it then (BG-09)."""

    ms: int
    reached: Reached


class Allowance(Struct, frozen=True, kw_only=True):
    """What may start: with what reserved, which lowered output limit, and for how long."""

    reservation: Reservation | None = None
    output_limit: int | None = None
    time_limit: TimeLimit | None = None


FREE: Final = Allowance()
"""What may start where no budget holds."""


async def weigh(ledger: Ledger, task: Task, estimate: Estimate | None) -> Allowance | Reached:
    """Say whether work may start now; only on the line.

    `estimate` is a model request's; without one, spent must be below every limit (BG-05).
    """
    limits = await ledger.limits(task)
    if not limits:
        return FREE
    output = 0
    if estimate is not None:
        room = min(estimate.room(limit) for limit in limits)
        output = max(room, min(OUTPUT_MIN, estimate.output))
    for limit in limits:
        wanted = None if estimate is None else estimate.spent(output)
        reached = reached_by(
            limit.budget, limit.spent, limit.reserved, wanted, input_id=limit.input_id
        )
        if reached is not None:
            return reached
    time_limit = _time_limit(limits)
    if estimate is None:
        return Allowance(time_limit=time_limit)
    return Allowance(
        reservation=estimate.reservation(output),
        output_limit=output if output < estimate.output else None,
        time_limit=time_limit,
    )


def _time_limit(limits: list[Limit]) -> TimeLimit | None:
    found: list[TimeLimit] = []
    for limit in limits:
        budget = limit.budget
        if budget.seconds is not None and budget.on_limit == "fail":
            reached = Reached(
                input_id=limit.input_id,
                field="seconds",
                limit=str(budget.seconds),
                spent=str(budget.seconds),
                currency=budget.currency,
                on_limit="fail",
            )
            left = budget.seconds * 1_000 - limit.spent.worked_ms
            found.append(TimeLimit(ms=max(0, left), reached=reached))
    return min(found, key=lambda one: one.ms, default=None)


# What a request may use.


async def described(
    ctx: TaskContext, services: Services, settings: GenerationSettings
) -> ModelInfo | None:
    """Describe the model of a request that a budget holds for; None when none does.

    A model that cannot be described has no price and no limit: its request will say why.
    """
    if not await services.ledger.budgets(await ctx.task()):
        return None
    try:
        return await ctx.outside(services.models.describe(settings.model))
    except Rejected:
        return ModelInfo(model=settings.model)


def estimate_of(
    services: Services,
    held: Residency,
    settings: GenerationSettings,
    conversation: ConversationState,
    info: ModelInfo,
) -> Estimate:
    """Estimate a request: what the context holds, and as much output as it may bring."""
    system = services.system_prompt if isinstance(services.system_prompt, str) else None
    fixed = fixed_tokens(system, offered_tools(settings, services))
    options: dict[str, Any] = decode_json(settings.stream_options)
    chosen = options.get("max_tokens")
    output = chosen if isinstance(chosen, int) and chosen > 0 else info.output_limit
    return Estimate(
        input=services.ledger.context_tokens(conversation, held, fixed=fixed),
        output=output or OUTPUT_ASSUMED,
        price=info.price,
    )


# Starting.


async def afford(
    tx: Command, services: Services, task: Task, estimate: Estimate | None
) -> Allowance | Reached | None:
    """Say what a task may spend that starts in this command.

    A limit that fails is answered; behind one that suspends the task waits, and None is.
    """
    found = await weigh(services.ledger, task, estimate)
    if not isinstance(found, Reached) or found.on_limit == "fail":
        return found
    if found.input_id is None and await _is_denied(tx, services, task):
        return found
    approval = services.ledger.question(found.input_id, task.conv_id)
    if approval is None:
        approval = hold_for(
            tx,
            task.conv_id,
            prompt=f"May it go on? {found.sentence}",
            now_ms=services.clock.now_ms(),
            spawned_by=task.id if task.kind == "generation" else task.spawned_by,
            budget=msgspec.to_builtins(found),
        )
    tx.patch(task, after=(*task.after, approval))
    return None


async def _is_denied(tx: Command, services: Services, task: Task) -> bool:
    """Say whether a person refused what this task, or another of its chain, waited for."""
    if services.ledger.was_denied(task):
        return True
    for target in task.after:
        other = await tx.task(target)
        if other.kind == "approval" and other.status == "denied":
            return True
    return False


async def start(
    ctx: TaskContext, services: Services, *, barrier: bool, **facts: Any
) -> Allowance | Reached | None:
    """Commit a task's `running`, unless it was marked, waits, or a limit is reached (BG-05)."""
    found: list[Allowance | Reached] = []

    async def build(tx: Command) -> None:
        task = await tx.task(ctx.task_id)
        if task.abort_requested is not UNSET:
            return
        allowance = await afford(tx, services, task, None)
        if allowance is not None:
            found.append(allowance)
        if isinstance(allowance, Allowance):
            tx.patch(task, status="running", **facts)

    await ctx.commit(build, barrier=barrier)
    return found[0] if found else None


# Running work.


class Watch:
    """End an outside call when its time is up (BG-09)."""

    def __init__(self, limit: TimeLimit | None) -> None:
        """Take the limit; without one the call runs as long as it likes."""
        self._limit = limit
        self.fired: Reached | None = None

    def over(self, ctx: TaskContext, call: "asyncio.Task[Any]") -> None:
        """Cancel the call at the limit; the watch itself ends with the invocation."""
        if self._limit is not None:
            timer = ctx.start(self._wait(ctx, call, self._limit))
            call.add_done_callback(lambda _: timer.cancel())

    async def _wait(self, ctx: TaskContext, call: "asyncio.Task[Any]", limit: TimeLimit) -> None:
        await ctx.clock.sleep(limit.ms)
        if not call.done():
            self.fired = limit.reached
            call.cancel()
