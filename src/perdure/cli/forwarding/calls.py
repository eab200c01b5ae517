"""One request over a control address: a Unix socket, one connection a request, JSON (CM-16)."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import h11
import msgspec

from perdure.cli.forwarding.there import SseEvent
from perdure.errors import Closed, Faulted, PerdureError, Rejected, StorageBusy

BLOCK_BYTES: Final = 1 << 16

REJECTIONS: Final = frozenset(
    {
        "invariant",
        "not_found",
        "unknown_target",
        "busy",
        "version_mismatch",
        "request_conflict",
        "nothing_to_do",
        "nested_command",
        "deleted",
    }
)
"""Codes that are a rule's; every other one is the server's."""


class Connection:
    """One connection, for one request."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._token = token
        self._http = h11.Connection(h11.CLIENT)

    async def begin(self, method: str, path: str, body: object, headers: Mapping[str, str]) -> int:
        """Send a request and answer the status of what comes back."""
        data = b"" if body is None else msgspec.json.encode(body)
        fields = {"Host": "control", "Authorization": f"Bearer {self._token}", **headers}
        if body is not None:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
        request = h11.Request(method=method, target=path, headers=list(fields.items()))
        for event in (request, h11.Data(data=data), h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event.status_code

    async def blocks(self) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return

    async def _next(self) -> h11.Event:
        while True:
            try:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(BLOCK_BYTES))
                    continue
            except h11.RemoteProtocolError as error:
                raise ConnectionResetError(str(error)) from None
            if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise ConnectionResetError("the owner closed the connection")
            return cast("h11.Event", event)


@asynccontextmanager
async def connected(address: str, token: str) -> AsyncGenerator[Connection]:
    """Connect to a control address; raises OSError when nobody listens."""
    reader, writer = await asyncio.open_unix_connection(address)
    try:
        yield Connection(reader, writer, token)
    finally:
        writer.close()


async def call(
    address: str, token: str, method: str, path: str, body: object = None
) -> dict[str, Any]:
    """Make one request and answer its JSON.

    Raises:
        OSError: the connection ended before the answer did.
        Rejected, Closed, Faulted, StorageBusy: as the owner says.
    """
    async with connected(address, token) as connection:
        status = await connection.begin(method, path, body, {})
        data = b"".join([block async for block in connection.blocks()])
    answer: Any = msgspec.json.decode(data)
    if status >= 400:
        raise error_of(answer)
    return cast("dict[str, Any]", answer)


async def events(
    address: str, token: str, path: str, *, after: str = ""
) -> AsyncGenerator[SseEvent]:
    """Yield a stream's events; raises as `call` does."""
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
    async with connected(address, token) as connection:
        status = await connection.begin("GET", path, None, headers)
        if status >= 400:
            data = b"".join([block async for block in connection.blocks()])
            raise error_of(msgspec.json.decode(data))
        rest = b""
        async for block in connection.blocks():
            *whole, rest = (rest + block.replace(b"\r\n", b"\n")).split(b"\n\n")
            for text in whole:
                event = _parsed(text)
                if event is not None:
                    yield event


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


def error_of(answer: Any) -> PerdureError:
    """Answer what the owner refused with, as the error that it was there."""
    error = answer["error"]
    code, message = error["code"], error["message"]
    if code in REJECTIONS:
        return Rejected(code, message, error.get("details") or {})
    if code == "closed":
        return Closed(message)
    if code == "storage_busy":
        return StorageBusy(message, error.get("details") or {})
    return Faulted(message, code="storage" if code == "faulted" else "defect")
