"""`perdure serve` in a process of its own: asked, killed, and started again on the same store."""

import http.client
import json
import re
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from tests.surfaces.desk import WAIT_S, Desk, Running

T = TypeVar("T")

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/(?:#([\w-]{43}))?\s")

NAME = "served"
"""A host name that each start answers to, so that the bytes of a request fit any port."""


class Answer(NamedTuple):
    """Status and body of an answer, byte for byte."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """Parse the body."""
        return json.loads(self.body)


class Event(NamedTuple):
    """One server-sent event; commits and bases have an id."""

    name: str
    id: int | None
    data: bytes

    @property
    def json(self) -> Any:
        """Parse what it tells."""
        return json.loads(self.data)


class Server:
    """One `perdure serve` on a free port; a start after a kill serves the same store."""

    def __init__(self, desk: Desk, *words: str, token: str | None = None) -> None:
        self._desk = desk
        self._words = words
        self.token = token or ""
        self.running: Running
        self.address = ""

    def start(self) -> None:
        """Start, and wait until it listens."""
        self.running = self._desk.start("serve", "--port", "0", *self._words)
        self.running.until("http://")
        self.running.until("\n")
        found = ADDRESS.search(self.running.said())
        assert found, self.running.said()
        self.address = f"127.0.0.1:{found[1]}"
        self.token = found[2] or self.token

    def kill(self) -> None:
        """End it as nothing but SIGKILL does."""
        self.running.tell(signal.SIGKILL)
        assert self.running.end().code == -signal.SIGKILL

    def restart(self) -> None:
        """Kill it, and start the next one."""
        self.kill()
        self.start()

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Ask one thing on a connection of its own."""
        return ask(self.address, method, path, self.token, body)

    def get(self, path: str) -> Any:
        """Read one thing that is there."""
        status, found = self.ask("GET", path)
        assert status == 200, found
        return found

    def bytes_of(self, path: str, body: object) -> bytes:
        """Write a POST as it goes over any connection to any start of this server."""
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {NAME}\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data

    def lose(self, request: bytes, *, answered: bool) -> None:
        """Send a request and hang up unread: once its answer is there, or at once."""
        with self.connect() as connection:
            connection.sendall(request)
            if answered:
                assert select.select([connection], [], [], WAIT_S)[0], "no answer came"

    def send(self, request: bytes, times: int = 1) -> list[Answer]:
        """Send the same bytes some times over one connection, and read each answer."""
        found: list[Answer] = []
        with self.connect() as connection:
            for _ in range(times):
                connection.sendall(request)
                answer = http.client.HTTPResponse(connection)
                answer.begin()
                found.append(Answer(answer.status, answer.read()))
                answer.close()
        return found

    @contextmanager
    def watching(self, path: str) -> Iterator[Iterator[Event]]:
        """Read an event stream; it is hung up at the end of the body."""
        connection = http.client.HTTPConnection(self.address, timeout=WAIT_S)
        connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
        answer = connection.getresponse()
        try:
            yield events_of(answer)
        finally:
            answer.close()
            connection.close()

    def connect(self) -> socket.socket:
        """Open a connection."""
        host, _, port = self.address.partition(":")
        return socket.create_connection((host, int(port)), WAIT_S)


@contextmanager
def serving(desk: Desk, *words: str, token: str | None = None) -> Iterator[Server]:
    """Serve for as long as the body runs; what still runs then is killed."""
    server = Server(desk, *words, token=token)
    server.start()
    try:
        yield server
    finally:
        if server.running.process.poll() is None:
            server.running.process.kill()
            server.running.end()


@contextmanager
def serving_again(desk: Desk, *words: str, subject: str = "ada") -> Iterator[Server]:
    """Serve so that every start takes the same bytes: one token, one host name."""
    token = "k" * 43
    file = desk.home / "tokens"
    file.write_text(f"{subject} {token}\n")
    with serving(
        desk, "--token-file", str(file), "--allow-host", NAME, *words, token=token
    ) as server:
        yield server


def ask(
    address: str, method: str, path: str, token: str | None, body: object = None
) -> tuple[int, Any]:
    """Ask a server one thing without any of perdure's own client."""
    connection = http.client.HTTPConnection(address, timeout=WAIT_S)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    data = None if body is None else json.dumps(body)
    connection.request(method, path, body=data, headers=headers)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


def events_of(lines: Iterable[bytes]) -> Iterator[Event]:
    """Parse the lines of a stream; an event that is not whole is none, and comments are passed."""
    fields: dict[bytes, bytes] = {}
    for line in lines:
        name, _, value = line.rstrip(b"\n").partition(b": ")
        if name:
            fields[name] = value
        elif line:
            if b"event" in fields:
                number = int(fields[b"id"]) if b"id" in fields else None
                yield Event(fields[b"event"].decode(), number, fields[b"data"])
            fields = {}


def at_once(*calls: Callable[[], T]) -> list[T]:
    """Run calls on threads that begin together; answers what each answered, in order."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        barrier.wait(WAIT_S)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))
