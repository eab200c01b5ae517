"""A server in the test's own loop, behind a wire that the test cuts."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import perdure
from perdure.client.server import RemoteServer
from perdure.hosts.randomness import SystemRandomness
from perdure.hosts.threads import DaemonThreads
from perdure.opening import Ports
from perdure.web.auth import tcp_doors
from perdure.web.serving import listen, serving
from tests.engine import Engine
from tests.unit.web.site import HOST, TOKEN, Site


class Impatient:
    """A clock on which every pause is over at once while it goes; it remembers them."""

    def __init__(self) -> None:
        self.pauses: list[int] = []
        self.goes = asyncio.Event()
        self.goes.set()

    def now_ms(self) -> int:
        return 0

    def monotonic_ms(self) -> int:
        return 0

    async def sleep(self, ms: int) -> None:
        self.pauses.append(ms)
        await asyncio.sleep(0)
        await self.goes.wait()


class Wire:
    """Carries bytes between clients and a server, and cuts the connections it is told to.

    `cuts` says for each coming connection how many bytes of the answer arrive before it is cut;
    when it is empty, connections are whole.
    """

    def __init__(self) -> None:
        self.port = 0
        self.upstream = 0
        self.cuts: list[int] = []
        self.requests: list[bytes] = []
        self.left = asyncio.Event()
        """Set when a client has hung up."""
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator["Wire"]:
        server = await asyncio.start_server(self._carry, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.hang_up()
            await asyncio.sleep(0)

    def hang_up(self) -> None:
        """Cut every connection there is."""
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.cuts.pop(0) if self.cuts else -1
        try:
            up_reader, up_writer = await asyncio.open_connection(HOST, self.upstream)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        sending = asyncio.ensure_future(self._send(reader, up_writer))
        try:
            while data := await up_reader.read(1 << 16):
                if 0 <= left <= len(data):
                    writer.write(data[:left])
                    await writer.drain()
                    break
                left -= len(data) if left >= 0 else 0
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            sending.cancel()
            self._writers -= {writer, up_writer}
            up_writer.transport.abort()
            writer.close()

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.requests.append(data)
                writer.write(data)
            self.left.set()
            # A client that hangs up is gone for the server too.
            writer.close()
        except OSError:
            pass


class Served:
    """A site on a socket, behind a wire."""

    def __init__(self, site: Site, wire: Wire) -> None:
        self.site = site
        self.wire = wire
        self.clock = Impatient()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.wire.port}"

    @property
    def ports(self) -> Ports:
        return Ports(clock=self.clock, randomness=SystemRandomness(), threads=DaemonThreads())

    @asynccontextmanager
    async def connected(self, **options: Any) -> AsyncGenerator[RemoteServer]:
        given = {"token": TOKEN, "ports": self.ports, **options}
        async with perdure.connect(self.url, **given) as server:
            yield server

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Have the server answer for as long as the body runs."""
        listener = listen(HOST, 0)
        self.wire.upstream = listener.getsockname()[1]
        doors = tcp_doors({TOKEN: "local"}, HOST, self.wire.port)
        async with serving(self.site.serve(doors), [listener]):
            try:
                yield
            finally:
                self.site.house.stop()
                self.wire.hang_up()
        self.wire.upstream = 1  # nobody listens there
        await self.site.house.close(grace=0)


@asynccontextmanager
async def served(engine: Engine, script: Any = (), **options: Any) -> AsyncGenerator[Served]:
    """Serve an engine's container."""
    async with Wire().listening() as wire:
        made = Served(Site(engine, script, **options), wire)
        async with made.serving():
            yield made
