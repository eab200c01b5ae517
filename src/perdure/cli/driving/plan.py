"""What `run` and `resume` are to do, and what every way of doing it shares (CM-08, CM-20)."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import Struct

from perdure.cli.continuing import resume_line, run_line
from perdure.cli.endings import Outcome
from perdure.cli.stopping import Stop
from perdure.opening import OpenSession
from perdure.records.budgets import Budget
from perdure.records.inputs import InputMode, InputState

T = TypeVar("T")

OUTCOMES: Mapping[InputState, Outcome] = MappingProxyType(
    {
        "answered": "answered",
        "stopped": "done",
        "placed": "done",
        "failed": "failed",
        "aborted": "aborted",
        "withdrawn": "aborted",
        "queued": "suspended",
        "open": "suspended",
    }
)
"""How a command ends by the state of its own input (CM-20)."""


class Plan(Struct, frozen=True, kw_only=True):
    """What to drive; `session` is None while it has no name, `text` when nothing is accepted.

    `url` is the store's, `mode` how the text is given; with `asks` a person may be asked.

    `budget` comes with the text; `raises` are new limits for the budgets that are waited for.

    `continuing` are the flags of the line that goes on with what is live, `again` those of the
    line that gives a prompt, `places` those of a line that decides something.
    """

    opening: OpenSession
    url: str
    session: str | None
    continuing: Sequence[str]
    again: Sequence[str]
    places: Sequence[str] = ()
    text: str | None = None
    request_id: str | None = None
    conversation: int | None = None
    folder: str | None = None
    output: Path | None = None
    poll: bool = False
    is_kept: bool = True
    says_name: bool = False
    mode: InputMode = "prompt"
    asks: bool = True
    budget: Budget | None = None
    raises: Mapping[str, Any] = MappingProxyType({})


def line_before_opening(plan: Plan) -> str | None:
    """Answer the line that continues a session which was named but not opened.

    Its prompt was not accepted, so it is given again, under the same request id.
    """
    if not plan.is_kept or plan.session is None:
        return None
    if plan.text is not None:
        request = [] if plan.request_id is None else ["--request-id", plan.request_id]
        return run_line([*plan.again, *request], plan.session, plan.text)
    return resume_line(plan.continuing, plan.session)


async def unless_told(stop: Stop, work: Coroutine[Any, Any, T]) -> T | None:
    """Run until it is done, or until the command is told to end; then cancel it, answer None."""
    task = asyncio.create_task(work)
    told = asyncio.create_task(stop.told.wait())
    try:
        await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        return None
    finally:
        told.cancel()
