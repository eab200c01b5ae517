"""Server-sent events, read from the blocks of a body as they arrive."""

from collections.abc import Sequence

from msgspec import Struct


class SseEvent(Struct, frozen=True, kw_only=True):
    """One event of a stream: its name, its id, "" when it carries none, and its data."""

    name: str
    id: str
    data: bytes


class SseParser:
    """Takes blocks, answers whole events; comments are left out."""

    def __init__(self) -> None:
        """Begin with nothing read."""
        self._rest = bytearray()

    def feed(self, block: bytes) -> Sequence[SseEvent]:
        """Take a block and answer the events that it completes."""
        found: list[SseEvent] = []
        # A large event comes in many blocks: only what is new is looked through.
        begin = max(0, len(self._rest) - 1)
        self._rest += block
        while (end := self._rest.find(b"\n\n", begin)) >= 0:
            event = _parsed(bytes(self._rest[:end]))
            del self._rest[: end + 2]
            begin = 0
            if event is not None:
                found.append(event)
        return found


def _parsed(text: bytes) -> SseEvent | None:
    fields: dict[bytes, list[bytes]] = {}
    for line in text.split(b"\n"):
        name, _, value = line.partition(b":")
        fields.setdefault(name, []).append(value.removeprefix(b" "))
    if b"data" not in fields:
        return None
    return SseEvent(
        name=b"".join(fields.get(b"event", [])).decode(),
        id=b"".join(fields.get(b"id", [])).decode(),
        data=b"\n".join(fields[b"data"]),
    )
