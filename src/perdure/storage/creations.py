"""What a request to make a session is refused for; the same words on every backend (WB-08)."""

from perdure.errors import Rejected


def unknown_id(session_id: str) -> Rejected:
    """Word the refusal of an id that no session has."""
    return Rejected("not_found", f"there is no session of the id {session_id!r}")


def check_creation(name: str, first: str) -> None:
    """Refuse a request id that has made a session of another name.

    Raises:
        Rejected: `request_conflict`.
    """
    if name != first:
        raise Rejected(
            "request_conflict",
            f"this request id has made another session than {name!r}; use another request id",
            {"differs": "content"},
        )


def gone(name: str) -> Rejected:
    """Word the answer to a repeat whose session was deleted since."""
    return Rejected("deleted", f"the session {name!r} that this request made was deleted")
