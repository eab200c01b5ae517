"""Ask about one approval at a time, in id order, while other work goes on (AQ-07, AQ-11)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, TypeAlias

from perdure.cli.asking.typed import TypedLines
from perdure.cli.asking.words import HELP, KEYS, decided_words, question
from perdure.cli.terminal import Terminal
from perdure.harness.harness import Harness
from perdure.kinds.approval import approval_state
from perdure.line.line import Delivery
from perdure.ports import Clock
from perdure.records.approvals import ApprovalView, Decision, Verdict
from perdure.records.seqs import Seq
from perdure.records.tasks import Task

Views: TypeAlias = Callable[[], Awaitable[Sequence[ApprovalView]]]
"""Reads the approvals of the session that wait."""

CLOSED: Final = "closed"
"""What stands for a line when the question was decided elsewhere."""

Line: TypeAlias = tuple[Literal["typed"], str] | tuple[Literal["end", "closed"], None]


class Asker:
    """Asks on the terminal for as long as `run` runs."""

    def __init__(
        self, terminal: Terminal, harness: Harness, views: Views, *, clock: Clock, by: str
    ) -> None:
        """Take the session; `by` is whose answers these are."""
        self.decisions = 0
        """How many approvals have ended since the asker began."""
        self._terminal = terminal
        self._harness = harness
        self._views = views
        self._clock = clock
        self._by = by
        self._lines = TypedLines()
        self._ended: dict[Seq, Task] = {}
        self._is_over = False
        self._news = asyncio.Event()

    def on_commit(self, delivery: Delivery) -> None:
        """Take note of approvals that begin to wait, or end."""
        for task in delivery.tasks:
            if task.kind == "approval":
                if task.status not in ("pending", "waiting"):
                    self._ended[task.id] = task
                    self.decisions += 1
                self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def another(self, since: int) -> bool:
        """Wait until more than `since` approvals have ended; False when nobody is asked any more.

        Nobody is when none waits, or after the end of input.
        """
        while self.decisions <= since:
            news = self._news
            if self._is_over or not await self._next():
                return False
            await news.wait()
        return True

    async def run(self) -> None:
        """Ask until the input ends."""
        while not self._is_over:
            news = self._news
            view = await self._next()
            if view is None:
                await news.wait()
            else:
                await self._ask(view)

    async def _next(self) -> ApprovalView | None:
        """Answer the first approval that waits for a person; a budget is raised elsewhere."""
        for view in await self._views():
            is_open = view.status == "waiting" and not view.is_marked and view.budget is None
            if is_open and view.id not in self._ended:
                return view
        return None

    async def _ask(self, view: ApprovalView) -> None:
        self._lines.forget()
        self._say(question(view, now_ms=self._clock.now_ms()))
        while True:
            self._say(KEYS)
            what, text = await self._line(view)
            if what == "closed":
                return self._say_what_stands(view)
            if what == "end":
                self._is_over = True
                self._wake()
                return None
            assert text is not None
            match text.strip().lower():
                case "y" | "yes":
                    return await self._decide(view, "grant")
                case "n" | "no":
                    return await self._decide(view, "deny")
                case "d":
                    return await self._deny_with_reason(view)
                case "?":
                    self._say(HELP)
                case _:
                    continue

    async def _deny_with_reason(self, view: ApprovalView) -> None:
        self._say("why not? (the model reads it)")
        what, text = await self._line(view)
        if what == "typed" and text and text.strip():
            await self._decide(view, "deny", details=text.strip())
        elif what == "end":
            self._is_over = True
            self._wake()
        # Nothing said, or decided elsewhere: the approval is looked at again.

    async def _decide(
        self, view: ApprovalView, verdict: Verdict, *, details: object = None
    ) -> None:
        outcome = await self._harness.decide_approval(
            view.id, verdict, details=details, by=self._by
        )
        if not outcome.applied:
            self._say(_late(view, outcome.status, outcome.decision))

    async def _line(self, view: ApprovalView) -> Line:
        """Answer what is typed, unless the approval is decided elsewhere before."""
        typing = asyncio.create_task(self._lines.next())
        try:
            while view.id not in self._ended:
                news = asyncio.create_task(self._news.wait())
                await asyncio.wait({typing, news}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if typing.done():
                    line = typing.result()
                    return ("end", None) if line is None else ("typed", line)
            return ("closed", None)
        finally:
            typing.cancel()

    def _say_what_stands(self, view: ApprovalView) -> None:
        task = self._ended[view.id]
        decision = approval_state(task).decision
        known = decision if isinstance(decision, Decision) else None
        self._say(f"[approval {view.id}] is closed: {decided_words(task.status, known)}")

    def _say(self, text: str) -> None:
        for line in text.splitlines():
            self._terminal.complain(line)


def _late(view: ApprovalView, status: str, decision: Decision | None) -> str:
    return f"[approval {view.id}] was decided before: {decided_words(status, decision)}"
