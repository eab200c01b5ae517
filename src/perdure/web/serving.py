"""Transport: sockets, the server loop, and an orderly end (WB-01, WB-18, WB-20).

The server knows an ASGI program and nothing of what it does. It is told to end by an event, stops
accepting, lets started requests end, and answers.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from perdure.web.entrance import Entrance

HEAD_S: Final = 10.0
"""How long the head of a request may take (WB-18)."""

HEAD_BYTES_MAX: Final = 64 << 10
"""Longest head of a request."""

BACKLOG: Final = 512

END_S: Final = 30
"""How long started requests are waited for at the end."""


class PortTaken(Exception):
    """An address that cannot be listened on, and why."""

    def __init__(self, host: str, port: int, why: str) -> None:
        super().__init__(f"port {port} of {host} cannot be listened on: {why}")


def listen(host: str, port: int) -> socket.socket:
    """Answer a listening socket of one address; port 0 takes a free one.

    Raises:
        PortTaken: naming the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without it a restart on the same port waits for connections that ended (WB-20).
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortTaken(host, port, error.strerror or str(error)) from None
    listener.settimeout(0)
    return listener


class Protocol(H11Protocol):
    """The server's own protocol, with a limit on how slowly a head may arrive."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the head."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_S, self._too_slow)

    def data_received(self, data: bytes) -> None:
        """Take bytes, and stop waiting once a head is whole."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._in_time()
        elif self._head_timer is None and self.conn.trailing_data[0]:
            self._head_timer = self.loop.call_later(HEAD_S, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._in_time()
        super().connection_lost(exc)

    def _in_time(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """A server whose signals are its host's, and that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def serving(app: Entrance, sockets: Sequence[socket.socket]) -> AsyncGenerator[None]:
    """Serve a program on sockets for as long as the body runs, then end in order.

    The body's end stops accepting and waits for started requests; whoever streams or waits has to
    be told to end by then (`House.stop`).
    """
    server = _Server(config_of(app))
    task = asyncio.create_task(server.serve(sockets=list(sockets)))
    try:
        await server.listens.wait()
        yield
    finally:
        server.should_exit = True
        await task
        for one in sockets:
            one.close()


def config_of(app: Entrance) -> uvicorn.Config:
    """Answer the server's settings: no log, no name of its own, no second protocol."""
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        access_log=False,
        log_config=None,
        log_level="critical",
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        timeout_graceful_shutdown=END_S,
    )
