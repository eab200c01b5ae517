"""What a suspended session waits for, in words, in the document, and as an exit code (AQ-08)."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from perdure.cli.asking.words import Waiting as WaitingApproval
from perdure.cli.asking.words import age_words, waiting
from perdure.cli.driving.plan import OUTCOMES, Plan
from perdure.cli.endings import Outcome, Waiting
from perdure.cli.terminal import Terminal
from perdure.cli.visible import one_line
from perdure.drive.outcomes import Wait
from perdure.opening import system_ports
from perdure.records.approvals import ApprovalView
from perdure.records.inputs import InputMode, InputState


class Stands(Struct, frozen=True, kw_only=True):
    """How things stand when a drive ended; `waiting_for` is None when nothing waits."""

    waiting_for: Sequence[Waiting] | None = None
    approvals: Sequence[WaitingApproval] = ()
    only_budgets: bool = False

    def outcome_of(self, state: InputState, mode: InputMode = "prompt") -> Outcome:
        """Answer how a command ends whose input is in this state (CM-20).

        A text for a later boundary may wait for it in the queue: it was given as asked.
        """
        if state == "queued" and mode in ("steer", "nextRun") and self.waiting_for is None:
            return "done"
        outcome = OUTCOMES[state]
        return "limit" if outcome == "suspended" and self.only_budgets else outcome

    @property
    def document(self) -> Mapping[str, Any] | None:
        """Answer the approvals for the envelope, None when there are none."""
        return {"approvals": self.approvals} if self.approvals else None


def stands_of(
    waits: Sequence[Wait], views: Sequence[ApprovalView], plan: Plan, session: str
) -> Stands:
    """Put together what waits; `views` are the approvals of the session that wait."""
    now_ms = system_ports().clock.now_ms()
    open_views = [view for view in views if not view.is_marked]
    budgets = {view.id for view in open_views if view.budget is not None}
    return Stands(
        waiting_for=[
            Waiting(kind=wait.kind, task=wait.task, conversation=wait.conv, until=wait.until)
            for wait in waits
        ],
        approvals=[
            waiting(view, now_ms=now_ms, words=plan.places, session=session) for view in open_views
        ],
        only_budgets=bool(budgets) and all(wait.task in budgets for wait in waits),
    )


def say_what_waits(terminal: Terminal, stands: Stands) -> None:
    """List what waits for a person, each with the command that decides it."""
    for one in stands.approvals:
        what = one.prompt if one.tool is None else f"{one.tool} {one.arguments}"
        age = age_words(one.age_ms)
        terminal.complain(f"[approval {one.id}] waits for {age}: {one_line(what)}")
        terminal.complain(f"  {one.command}")
