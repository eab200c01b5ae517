"""The control address: the application of `perdure serve` over one open session (CM-16).

Loaded by `opening` when somebody connects to the owner's socket for the first time.
"""

import asyncio
import socket
from typing import Final

from uvicorn.server import ServerState

from perdure.harness.harness import Harness
from perdure.hosts.folders import user_name
from perdure.ports import Sessions, Threads
from perdure.web.app import make_app
from perdure.web.auth import Doors
from perdure.web.house import House
from perdure.web.serving import Protocol, config_of

LAST_ANSWERS_S: Final = 1.0
"""How long the end waits for answers that are being written."""

TURNS_TO_BEGIN: Final = 3
"""After how many turns of the loop a connection that it took stands in the server's list.

The loop takes it in one turn, makes its transport in a task, and tells the protocol in a third:
nothing says from outside that one is on its way.
"""


class ControlServer:
    """What answers on one control address."""

    def __init__(
        self, listener: socket.socket, server: asyncio.Server, state: ServerState, house: House
    ) -> None:
        self._listener = listener
        self._server = server
        self._state = state
        self._house = house

    async def close(self) -> None:
        """Take no more connections, let streams end, and cut what is left after a moment."""
        self._house.stop()
        # A server closed at once would lose, still open, what it took and has no transport yet.
        asyncio.get_running_loop().remove_reader(self._listener)
        for _ in range(TURNS_TO_BEGIN):
            await asyncio.sleep(0)
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        answers = list(self._state.tasks)
        if answers:
            await asyncio.wait(answers, timeout=LAST_ANSWERS_S)
        for connection in list(self._state.connections):
            connection.transport.abort()
        left = [task for task in answers if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=LAST_ANSWERS_S)
        await self._house.close(grace=0)
        await asyncio.sleep(0)  # what was cut is closed in the loop's next turn


async def answer(
    harness: Harness, sessions: Sessions, threads: Threads, listener: socket.socket, token: str
) -> ControlServer:
    """Answer on a listening socket, for whoever knows the token; the session stays its owner's."""
    house = House.of(harness, sessions)
    # Who knows the token is this user: nobody else can read it.
    doors = Doors(tokens={token: user_name()}, by="cli")
    app = make_app(house, doors, threads, has_page=False)
    config = config_of(app)
    config.load()
    state = ServerState()

    def protocol() -> Protocol:
        return Protocol(config=config, server_state=state, app_state={})

    server = await asyncio.get_running_loop().create_unix_server(
        protocol, sock=listener, start_serving=False
    )
    answering = ControlServer(listener, server, state, house)
    try:
        await server.start_serving()  # takes connections before it comes back
    except asyncio.CancelledError:
        await answering.close()
        raise
    return answering
