"""HTTP over a socket: one connection a request (CM-16).

Loaded by name when somebody connects, so that importing perdure loads no h11.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final, cast

import h11

from perdure.client.asking import Answer, Asked
from perdure.client.places import Place
from perdure.client.sse import SseEvent, SseParser
from perdure.client.wire import error_of
from perdure.errors import Unreachable

BLOCK_BYTES: Final = 1 << 16


class _Connection:
    """One connection, for one request."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: Place
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._place = place
        self._http = h11.Connection(h11.CLIENT)

    async def begin(self, asked: Asked, token: str) -> h11.Response:
        """Send a request and answer the head of what comes back."""
        fields = {"Host": self._place.name, "Authorization": f"Bearer {token}", **asked.headers}
        if asked.body:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(asked.body))}
        request = h11.Request(method=asked.method, target=asked.path, headers=list(fields.items()))
        try:
            for event in (request, h11.Data(data=asked.body), h11.EndOfMessage()):
                self._writer.write(self._http.send(event) or b"")
            await self._writer.drain()
        except OSError as error:
            raise self._lost(error) from None
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event

    async def block(self) -> bytes | None:
        """Answer the body's next block, None at its end; a wait that is cancelled loses nothing."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                return None

    async def rest(self) -> bytes:
        """Answer the rest of the body."""
        blocks: list[bytes] = []
        while (block := await self.block()) is not None:
            blocks.append(block)
        return b"".join(blocks)

    def close(self) -> None:
        """Hang up, while there is a loop to do it in."""
        self._writer.close()

    async def _next(self) -> h11.Event:
        while True:
            try:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(BLOCK_BYTES))
                    continue
            except (h11.RemoteProtocolError, OSError) as error:
                raise self._lost(error) from None
            if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise self._lost("it was closed")
            return cast("h11.Event", event)

    def _lost(self, why: object) -> Unreachable:
        return Unreachable(
            f"the connection to {self._place} ended before the answer did: {why}", was_sent=True
        )


class HttpStream:
    """One event stream that is open."""

    def __init__(self, connection: _Connection) -> None:
        """Take a connection whose head was read."""
        self._connection = connection
        self._parser = SseParser()
        self._ready: deque[SseEvent] = deque()
        self._loop = asyncio.get_running_loop()

    async def next(self) -> SseEvent | None:
        """Wait for the next event, None at the end; raises Unreachable when it was cut."""
        while not self._ready:
            block = await self._connection.block()
            if block is None:
                return None
            self._ready.extend(self._parser.feed(block))
        return self._ready.popleft()

    def close(self) -> None:
        """Hang up."""
        if not self._loop.is_closed():
            self._connection.close()


class HttpTransport:
    """Asks the server of one place."""

    def __init__(self, place: Place, token: str) -> None:
        """Take the address; nothing is sent yet."""
        self._place = place
        self._token = token

    async def call(self, asked: Asked) -> Answer:
        """Send one request and answer what came back, errors too; raises Unreachable."""
        connection = await self._connected()
        try:
            head = await connection.begin(asked, self._token)
            data = await connection.rest()
        finally:
            connection.close()
        return Answer(status=head.status_code, headers=_headers(head), body=data)

    async def stream(self, asked: Asked) -> HttpStream:
        """Open a stream; raises Unreachable, and what the server answers."""
        connection = await self._connected()
        try:
            head = await connection.begin(asked, self._token)
            if head.status_code >= 400:
                raise error_of(head.status_code, await connection.rest())
        except BaseException:
            connection.close()
            raise
        return HttpStream(connection)

    async def _connected(self) -> _Connection:
        place = self._place
        try:
            if place.path:
                reader, writer = await asyncio.open_unix_connection(place.path)
            else:
                reader, writer = await asyncio.open_connection(place.host, place.port)
        except OSError as error:
            raise Unreachable(f"no server answers at {place}: {error}", was_sent=False) from None
        return _Connection(reader, writer, place)


def _headers(head: h11.Response) -> Mapping[str, str]:
    return {name.decode("latin-1"): text.decode("latin-1") for name, text in head.headers}
