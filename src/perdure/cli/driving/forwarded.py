"""Have the owner of a session do what `run` or `resume` asks, and show it (CM-15, CM-19).

The request is given once, under a request id, and followed to its end; what was asked works on
when this command ends before.
"""

import asyncio
from typing import Any

from perdure.cli.continuing import resume_line
from perdure.cli.display import Display
from perdure.cli.driving.meanwhile import meanwhile
from perdure.cli.driving.plan import Plan, unless_told
from perdure.cli.driving.waiting import Stands, say_what_waits, stands_of
from perdure.cli.endings import Ending, Problem
from perdure.cli.events import AcceptedEvent, SignalEvent
from perdure.cli.forwarding.following import Follower
from perdure.cli.forwarding.there import There
from perdure.cli.places import write_whole
from perdure.cli.reading import reading
from perdure.cli.stopping import Stop
from perdure.cli.surface import Surface
from perdure.drive.outcomes import DriveOutcome, DriveResult
from perdure.errors import Closed, Unreachable
from perdure.harness.approvals import list_approvals
from perdure.records.seqs import Seq


async def follow(surface: Surface, plan: Plan, there: There, stop: Stop) -> Ending | None:
    """Give the request to the owner and follow it; None when the owner ends before it does.

    Raises:
        Rejected: as the owner says.
    """
    return await _Forwarded(surface, plan, there, stop).run()


class _Forwarded:
    """One request that another process carries out."""

    def __init__(self, surface: Surface, plan: Plan, there: There, stop: Stop) -> None:
        self._surface = surface
        self._terminal = surface.terminal
        self._plan = plan
        self._there = there
        self._stop = stop
        self._display = Display(surface)
        self._conv_id = None if plan.conversation is None else Seq(plan.conversation)
        self._input_id: Seq | None = None

    async def run(self) -> Ending | None:
        """Watch, give, wait, and say how it ended."""
        began = asyncio.Event()
        watching = asyncio.create_task(self._watch(began))
        try:
            stands = await unless_told(self._stop, self._work(began, watching))
            if self._stop.outcome is not None:
                return self._left()
            if stands is None:
                return None
            return await self._ended(stands)
        except (Unreachable, Closed):
            return None
        finally:
            watching.cancel()
            await asyncio.wait({watching})

    async def _watch(self, began: asyncio.Event) -> None:
        """Show what happens until the owner says its last word."""
        follower = Follower(self._display)
        try:
            async with self._there.watch(conv_id=self._conv_id, limit=1) as events:
                async for event in events:
                    follower.take(event)
                    began.set()
        finally:
            began.set()

    async def _work(self, began: asyncio.Event, watching: "asyncio.Task[None]") -> Stands | None:
        """Give the text and wait until nothing more happens to it; None when the owner ends."""
        await began.wait()
        await self._give()
        while not watching.done():
            driving = asyncio.create_task(self._there.driven(poll=self._plan.poll))
            await asyncio.wait({driving, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not driving.done():
                driving.cancel()
                await asyncio.wait({driving})
                break
            driven = driving.result()
            if await self._is_final():
                return Stands()
            if driven is not None:
                return None if driven.outcome is DriveOutcome.CLOSED else await self._stands(driven)
        return None

    async def _give(self) -> None:
        plan = self._plan
        if plan.text is None:
            return
        sent = await self._there.send(
            self._conv_id, plan.mode, plan.text, plan.request_id, plan.budget
        )
        self._input_id, self._conv_id = sent.input_id, sent.conversation
        name = self._there.session
        self._terminal.say(
            f"input {sent.input_id} is given to the process that has {name!r} open", "dim"
        )
        if self._surface.flags.machine == "events":
            self._terminal.document(
                AcceptedEvent(
                    session=name,
                    conversation=sent.conversation,
                    input_id=sent.input_id,
                    duplicate=sent.duplicate,
                )
            )

    async def _is_final(self) -> bool:
        if self._input_id is None:
            return False
        return (await self._there.result(self._input_id)).final

    async def _stands(self, driven: DriveResult) -> Stands:
        if driven.outcome is not DriveOutcome.SUSPENDED:
            return Stands()
        name = self._there.session
        async with reading(self._plan.url, name) as storage:
            views = await list_approvals(storage)
        stands = stands_of(driven.waiting_for, views, self._plan, name)
        say_what_waits(self._terminal, stands)
        return stands

    def _facts(self) -> dict[str, Any]:
        name = self._there.session
        return {
            "session": name,
            "conversation": self._conv_id,
            "input_id": self._input_id,
            "usage": self._display.spent(),
            "resume": resume_line(self._plan.continuing, name),
        }

    def _left(self) -> Ending:
        """End before what was asked for does; it works on (CM-19)."""
        outcome = self._stop.outcome
        assert outcome is not None
        if self._surface.flags.machine == "events":
            self._terminal.document(SignalEvent(name=outcome))
        self._terminal.say("what was asked for goes on in the other process", "dim")
        return Ending(outcome=outcome, **self._facts())

    async def _ended(self, stands: Stands) -> Ending:
        if self._input_id is None:
            found = meanwhile(self._display, stands)
            self._input_id = found.input_id
            return found.ending(stands, self._facts())
        result = await self._there.result(self._input_id)
        state, error = result.state, result.error
        problem = None
        outcome = stands.outcome_of(state, self._plan.mode)
        if error is not None:
            problem = Problem(code=error.code, message=error.message)
            outcome = "limit" if problem.code == "budget" else outcome
        answer = None if result.answer is None else result.text
        if self._plan.output is not None and answer is not None:
            write_whole(self._plan.output, answer + "\n")
        return Ending(
            outcome=outcome,
            answer=answer,
            waiting_for=stands.waiting_for,
            data=stands.document,
            error=problem,
            text=None if answer is None else self._display.left_to_print(self._input_id, answer),
            **self._facts(),
        )
