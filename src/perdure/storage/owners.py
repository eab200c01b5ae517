"""Who has a session open, worded for the refusal of a second writer."""

from datetime import UTC, datetime

from msgspec import structs

from perdure.errors import StorageBusy
from perdure.records.sessions import Owner


def busy(what: str, owner: Owner | None) -> StorageBusy:
    """Word the refusal of a second writer, naming the first."""
    if owner is None:
        return StorageBusy(f"{what} is open in another process")
    since = instant(owner.since)
    message = f"{what} is open by process {owner.pid} on host {owner.host} since {since}"
    facts = {name: value for name, value in structs.asdict(owner).items() if value is not None}
    return StorageBusy(message, facts)


def instant(ms: int) -> str:
    """Write wall milliseconds as UTC time (ISO 8601); a number that is no time stays a number.

    The number may be read from a lock file, which anybody can have written.
    """
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
