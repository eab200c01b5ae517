"""Carry out what `run` and `resume` ask: open the session, else have its owner do it (CM-15)."""

import secrets
from typing import Final, cast

from msgspec import structs

from perdure.cli.driving.opened import drive_here
from perdure.cli.driving.plan import Plan, line_before_opening, unless_told
from perdure.cli.driving.raising import raise_there
from perdure.cli.endings import Ending, ending_of
from perdure.cli.forwarding.here import Here
from perdure.cli.forwarding.reach import reach
from perdure.cli.main import load
from perdure.cli.stopping import Stop
from perdure.cli.surface import Surface
from perdure.errors import Faulted, StorageBusy, StorageDamaged

REQUEST_BYTES: Final = 12
"""Random bytes of a request id that the person did not give."""


async def drive(surface: Surface, plan: Plan) -> Ending:
    """Carry out a plan; whatever stops it, the session is closed cleanly.

    Raises:
        Rejected: as opening, accepting and driving say.
        Faulted: `defect`; any other fault is an ending that says how to go on.
    """
    stop = Stop(surface.terminal)
    with stop.listening(surface.flags.timeout):
        try:
            return await _drive(surface, plan, stop)
        except (StorageBusy, StorageDamaged, Faulted) as error:
            ending = ending_of(error)
            if ending is None:
                raise
            resume = line_before_opening(plan)
            return structs.replace(ending, session=plan.session, resume=resume)


async def _drive(surface: Surface, plan: Plan, stop: Stop) -> Ending:
    while True:
        session = await unless_told(stop, reach(plan.opening, plan.session))
        if session is None:
            return Ending(outcome=stop.outcome or "interrupt", resume=line_before_opening(plan))
        if isinstance(session, Here):
            return await drive_here(surface, plan, session.harness, stop)
        if plan.raises:
            plan = await raise_there(plan, session)
        forwarded = load("perdure.cli.driving.forwarded")
        if plan.request_id is None:
            # Given again, should the owner end, it is still one input.
            plan = structs.replace(plan, request_id=f"cli-{secrets.token_hex(REQUEST_BYTES)}")
        ending = await forwarded.follow(surface, plan, session, stop)
        if ending is not None:
            return cast("Ending", ending)
        # The owner ended before the input did: whoever opens next goes on with it.
