"""What became of inputs while a session was driven by a command that gave none (CM-21)."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from perdure.cli.display import Display
from perdure.cli.driving.plan import OUTCOMES
from perdure.cli.driving.waiting import Stands
from perdure.cli.endings import Ending, Outcome, Problem
from perdure.records.seqs import Seq


class Meanwhile(Struct, frozen=True, kw_only=True):
    """The last input that ended, and the answers of all."""

    outcome: Outcome = "done"
    problem: Problem | None = None
    input_id: Seq | None = None
    answer: str | None = None
    text: str = ""
    is_nothing: bool = False

    def ending(self, stands: Stands, facts: Mapping[str, Any]) -> Ending:
        """Answer how the command ends."""
        return Ending(
            outcome=self.outcome,
            answer=self.answer,
            waiting_for=stands.waiting_for,
            data=stands.document,
            error=self.problem,
            text=self.text,
            **facts,
        )


def meanwhile(display: Display, stands: Stands) -> Meanwhile:
    """Put together what the display saw end."""
    ended = display.ended
    outcome: Outcome = "done"
    problem = None
    if stands.waiting_for is not None:
        outcome = stands.outcome_of("open")
    elif ended:
        record = ended[-1].record
        outcome = OUTCOMES[record.state]
        if record.state == "failed" and record.error:
            problem = Problem(code=record.error.code, message=record.error.message)
    answers = [one for one in ended if one.record.state in ("answered", "stopped")]
    return Meanwhile(
        outcome=outcome,
        problem=problem,
        input_id=ended[-1].input_id if ended else None,
        answer=answers[-1].text if answers else None,
        text="".join(display.left_to_print(one.input_id, one.text) or "" for one in answers),
        is_nothing=not ended and stands.waiting_for is None,
    )
