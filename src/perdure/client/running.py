"""Having a session driven: a server answers within a minute, a drive may take days."""

from typing import Final

from msgspec import Raw

from perdure.client.asking import Asker, path_of
from perdure.client.wire import read
from perdure.drive.outcomes import DriveOutcome, DriveResult, Wait
from perdure.records.codec import decode_json

WAIT_S: Final = 30
"""How long one request waits for a drive to end; it is asked again then."""


async def drive(asker: Asker, session: str, *, poll_deferred: bool = False) -> DriveResult:
    """Have a session run until it is idle, suspended or closed; raises as `Asker.answer` does."""
    polls = poll_deferred
    while True:
        result = await driven(asker, session, poll_deferred=polls)
        if result is not None:
            return result
        polls = False  # what is deferred is asked for once


async def driven(asker: Asker, session: str, *, poll_deferred: bool) -> DriveResult | None:
    """Have a session run, and wait a while for how that ends; None while it still does."""
    path = path_of(f"{session}/drive", {"wait": WAIT_S})
    fields = await asker.ask("POST", path, {"poll_deferred": poll_deferred}, repeats=True)
    return None if "driving" in fields else _result(fields)


def _result(fields: dict[str, Raw]) -> DriveResult:
    return DriveResult(
        outcome=DriveOutcome(read(fields["outcome"], str)),
        waiting_for=read(fields["waitingFor"], tuple[Wait, ...]),
        next_at=decode_json(fields["nextAt"]),
    )
