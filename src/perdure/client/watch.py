"""RemoteWatch: a server's event stream as a watch, over as many connections as it takes."""

import weakref
from typing import Final

from msgspec import structs

from perdure.client.asking import Asked, Asker, Stream
from perdure.client.texts import without_texts
from perdure.errors import Closed, Unreachable
from perdure.records.seqs import Seq
from perdure.records.watch import LAST_SIGNALS, WatchEvent, read_event

ACCEPT: Final = "text/event-stream"


class RemoteWatch:
    """One watch: iterate over its events; leaving it, or `close`, ends it (WT-15).

    The first event is the base. After a lost connection every later commit comes once and then
    what live tasks show, as `reset`; or `SnapshotRequired` and a base (WB-16).
    """

    def __init__(self, asker: Asker, path: str, after: Seq | None) -> None:
        """Say what to watch; nothing is asked before the first event is."""
        self._asker = asker
        self._asked = Asked(method="GET", path=path, headers={"Accept": ACCEPT})
        self._held = _Held()
        self._closed = False
        if after is not None:
            self._seen(str(after))
        # Whoever stops iterating and lets go hangs up with that.
        weakref.finalize(self, self._held.close)

    async def __aenter__(self) -> "RemoteWatch":
        """Begin now: every commit from here on is delivered.

        Raises:
            Rejected: `unknown_target`, `deleted`; `invariant` for a limit that cannot be.
            Faulted, Closed: the session has stopped.
            Unreachable, Refused: there is no server, or it does not let this caller in.
        """
        await self._begin(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    def __aiter__(self) -> "RemoteWatch":
        """Answer itself."""
        return self

    async def __anext__(self) -> WatchEvent:
        """Wait for the next event; ends after the last one (WT-07, WT-09)."""
        tries = 0
        while not self._closed:
            stream = await self._begin(tries)
            try:
                event = None if self._closed else await stream.next()
            except Unreachable:
                self._held.close()
                if self._closed:
                    break
                tries += 1
                if tries >= self._asker.tries:
                    raise
                await self._asker.pause(tries)
                continue
            if event is None or self._closed:
                break
            if event.id:
                self._seen(event.id)
            found = read_event(without_texts(event.data))
            if isinstance(found, LAST_SIGNALS):
                await self.close()
            return found
        await self.close()
        raise StopAsyncIteration

    async def close(self) -> None:
        """Hang up. A second call does nothing."""
        self._closed = True
        self._held.close()

    def _seen(self, event_id: str) -> None:
        headers = {**self._asked.headers, "Last-Event-ID": event_id}
        self._asked = structs.replace(self._asked, headers=headers)

    async def _begin(self, tries: int) -> Stream:
        while self._held.stream is None:
            try:
                self._held.stream = await self._asker.transport.stream(self._asked)
            except (Unreachable, Closed):
                tries += 1
                if tries >= self._asker.tries:
                    raise
                await self._asker.pause(tries)
        return self._held.stream


class _Held:
    """The connection of the moment."""

    stream: Stream | None = None

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()
            self.stream = None
