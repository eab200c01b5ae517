"""The control address ends with its session: whoever came, and whenever, is let go."""

import asyncio
import socket
from functools import partial

import pytest

from perdure.hosts.control_socket import ControlSocket
from perdure.hosts.threads import DaemonThreads
from perdure.web.control import answer
from tests.engine import Engine

ASKS = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def until_let_go(client: socket.socket) -> None:
    with client:
        client.settimeout(5)
        try:
            while client.recv(4096):
                pass
        except ConnectionResetError:
            pass


@pytest.mark.spec("CM-16")
@pytest.mark.parametrize("turns", range(12))
async def test_who_came_while_it_ended_is_let_go(memory_engine: Engine, turns: int) -> None:
    harness = await memory_engine.open()
    control = await asyncio.to_thread(ControlSocket.make)
    begin = partial(answer, harness, memory_engine.sessions, DaemonThreads())
    control.listen(begin, failed=lambda error: pytest.fail(str(error)))
    clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
    for client in clients:
        client.connect(control.address)  # the kernel takes it at once
        client.sendall(ASKS)
    for _ in range(turns):
        await asyncio.sleep(0)
    await control.close()
    for client in clients:
        await asyncio.to_thread(until_let_go, client)
    await asyncio.to_thread(control.remove)
