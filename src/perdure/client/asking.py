"""Asking a server: each request is encoded once, and sent again only where that is harmless.

What reads, and what carries a request id, may be repeated: the server answers the same bytes and
has one effect (WB-12). Anything else is sent again only when it never left.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlencode

from msgspec import Raw, Struct

from perdure.client.sse import SseEvent
from perdure.client.texts import without_texts
from perdure.client.wire import body_of, error_of, fields_of, read
from perdure.errors import Closed, Unreachable
from perdure.ports import Clock, Randomness

T = TypeVar("T")

TRIES: Final = 5
"""How often a request is sent at most."""

FIRST_PAUSE_MS: Final = 100
PAUSE_MS_MAX: Final = 2_000
"""The pause before each further try, doubled from the first one."""

REQUEST_ID_BYTES: Final = 16

REPEATED: Final = "perdure-repeated"
"""The header of an answer whose request id had been seen before (WB-12)."""

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Asked(Struct, frozen=True, kw_only=True):
    """One request, ready to be sent as often as it takes."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = NO_HEADERS


class Answer(Struct, frozen=True, kw_only=True):
    """One whole answer; the names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Stream(Protocol):
    """One event stream that is open."""

    async def next(self) -> SseEvent | None:
        """Wait for the next event, None at the end; raises Unreachable when it was cut."""
        ...

    def close(self) -> None:
        """Hang up."""


class Transport(Protocol):
    """What carries requests to one server."""

    async def call(self, asked: Asked) -> Answer:
        """Send one request and answer what came back, errors too; raises Unreachable."""
        ...

    async def stream(self, asked: Asked) -> Stream:
        """Open a stream; raises Unreachable, and what the server answers."""
        ...


class Asker:
    """Asks one server, with patience."""

    def __init__(
        self, transport: Transport, *, clock: Clock, randomness: Randomness, tries: int = TRIES
    ) -> None:
        """Take what carries requests, and how often one is sent at most."""
        self.transport = transport
        self.tries = tries
        self._clock = clock
        self._randomness = randomness

    def new_request_id(self) -> str:
        """Make the id of one request."""
        return self._randomness.token(REQUEST_ID_BYTES)

    async def pause(self, tries: int) -> None:
        """Wait before the next try; `tries` counts those that were made."""
        await self._clock.sleep(min(FIRST_PAUSE_MS << (tries - 1), PAUSE_MS_MAX))

    async def answer(
        self, method: str, path: str, body: object = None, *, repeats: bool = False
    ) -> Answer:
        """Send a request and answer what came back; `repeats` says that twice does no harm.

        Raises:
            Unreachable: no server answered any try, or the answer to what must not be repeated was
                lost: it may have had its effect.
            Rejected, Closed, Faulted, StorageBusy, Refused: as the server says.
        """
        asked = Asked(method=method, path=path, body=body_of(body))
        tries = 0
        while True:
            tries += 1
            try:
                answer = await self.transport.call(asked)
                if answer.status >= 400:
                    raise error_of(answer.status, answer.body)
                return answer
            except Unreachable as error:
                if tries >= self.tries or (error.was_sent and not repeats):
                    raise
            except Closed:
                # A server that ends may be followed by another one, at the same address.
                if tries >= self.tries or not repeats:
                    raise
            await self.pause(tries)

    async def ask(
        self, method: str, path: str, body: object = None, *, repeats: bool = False
    ) -> dict[str, Raw]:
        """Send a request and answer the fields that came back; raises as `answer` does."""
        return fields_of((await self.answer(method, path, body, repeats=repeats)).body)

    async def record(
        self, method: str, path: str, kind: type[T], body: object = None, *, repeats: bool = False
    ) -> T:
        """Send a request and answer the record that came back; raises as `answer` does."""
        answer = await self.answer(method, path, body, repeats=repeats)
        return read(without_texts(answer.body), kind)

    async def get(self, path: str, **query: Any) -> dict[str, Raw]:
        """Read; a parameter of None is left out. Raises as `answer` does."""
        return await self.ask("GET", path_of(path, query), repeats=True)


def path_of(path: str, query: Mapping[str, Any]) -> str:
    """Answer a path with its parameters; one of None is left out."""
    given = {name: _text(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
