"""A served house in the test's hands: requests go straight to the program, without a socket.

Every answer is held against `/openapi.json`: its route, its method and its status stand there.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from perdure.harness.harness import Harness
from perdure.hosts.threads import DaemonThreads
from perdure.records.entries import ModelId
from perdure.records.sessions import SessionInfo
from perdure.web.app import make_app
from perdure.web.auth import Doors, tcp_doors
from perdure.web.entrance import Access, Hooks
from perdure.web.house import House
from perdure.web.openapi import document
from tests.engine import Engine

HOST = "127.0.0.1"
PORT = 7470
TOKEN = "t" * 43
OTHER_TOKEN = "u" * 43
DOCUMENT = document()


class Answer(NamedTuple):
    """One whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Answer the error's code."""
        return self.json["error"]["code"]


class Site:
    """One house over an engine's container, behind doors."""

    def __init__(self, engine: Engine, script: Any = (), **options: Any) -> None:
        self.engine = engine
        self.script = script
        self.options = options
        self.opened: list[str] = []
        self.lines: list[Access] = []
        self.defects: list[tuple[str, str]] = []
        self.house = House(engine.sessions, self._open, idle_s=60)
        self.app = self.serve()

    def serve(self, doors: Doors | None = None, **options: Any) -> Any:
        """Make the program anew, behind other doors."""
        self.app = make_app(
            self.house,
            doors or tcp_doors({TOKEN: "local", OTHER_TOKEN: "ada"}, HOST, PORT),
            DaemonThreads(),
            hooks=Hooks(access=self.lines.append, defect=self._defect),
            has_page=False,
            **options,
        )
        return self.app

    def _defect(self, report: str, text: str) -> None:
        self.defects.append((report, text))

    @asynccontextmanager
    async def _open(self, info: SessionInfo, model: ModelId | None) -> AsyncGenerator[Harness]:
        self.opened.append(info.name)
        yield await self.engine.open(self.script, session=info.name, **self.options)

    async def restart(self, script: Any = ()) -> None:
        """End the server and start another one over the same container."""
        await self.house.close(grace=0)
        self.script = script or self.script
        self.house = House(self.engine.sessions, self._open, idle_s=60)
        self.serve()

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Answer:
        """Send one request; a header of None is left out."""
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        given: dict[str, str | None] = {
            "host": f"{HOST}:{PORT}",
            "authorization": f"Bearer {TOKEN}",
        }
        if data:
            given |= {"content-type": "application/json", "content-length": str(len(data))}
        given |= headers or {}
        answer = await self.send(method, path, data, given)
        if path.startswith("/v1") and method != "OPTIONS" and answer.status not in (401, 403, 421):
            check(method, path.partition("?")[0], answer)
        return answer

    async def send(
        self, method: str, path: str, data: bytes, headers: Mapping[str, str | None]
    ) -> Answer:
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not sent or sent[-1].get("more_body", True):
                return {"type": "http.request", "body": data, "more_body": False}
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self.app(scope_of(method, path, headers), receive, send)
        status = sent[0]["status"]
        answered = {name.decode(): text.decode() for name, text in sent[0]["headers"]}
        return Answer(status, answered, b"".join(one.get("body", b"") for one in sent[1:]))

    async def session(self, name: str = "paris", **fields: object) -> str:
        """Make a session and answer the path below which it stands."""
        made = await self.ask("POST", "/v1/sessions", {"name": name, **fields})
        assert made.status in (200, 201), made.body
        return f"/v1/sessions/{made.json['id']}"

    async def settled(self, path: str, input_id: int) -> Any:
        """Wait for the end of an input and answer its result."""
        answer = await self.ask("GET", f"{path}/inputs/{input_id}?wait=20")
        assert answer.json["final"], answer.body
        return answer.json

    async def seq(self, path: str) -> int:
        """Answer the newest boundary of a session."""
        return (await self.ask("GET", f"{path}/commits?limit=1000")).json["asOf"]


def scope_of(method: str, path: str, headers: Mapping[str, str | None]) -> dict[str, Any]:
    """Answer the scope of a request."""
    place, _, query = path.partition("?")
    return {
        "type": "http",
        "method": method,
        "path": place,
        "raw_path": place.encode(),
        "query_string": query.encode(),
        "headers": [
            (name.encode(), text.encode("latin-1"))
            for name, text in headers.items()
            if text is not None
        ],
        "http_version": "1.1",
        "scheme": "http",
        "server": (HOST, PORT),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }


def check(method: str, path: str, answer: Answer) -> None:
    """Hold an answer against the document."""
    operations = next((ops for one, ops in DOCUMENT["paths"].items() if matches(one, path)), None)
    if operations is None or method.lower() not in operations:
        assert answer.status in (404, 405), (method, path, answer)
        return
    if answer.status < 400:
        known = operations[method.lower()]["responses"]
        assert str(answer.status) in known, (method, path, answer.status)
    else:
        assert set(answer.json["error"]) == {"code", "message", "details", "retry"}
    assert answer.headers["cache-control"] == "no-store"


def matches(pattern: str, path: str) -> bool:
    """Say whether a path is one of a pattern."""
    return re.fullmatch(re.sub(r"{\w+}", "[^/]+", pattern), path) is not None


async def gathered(*asks: Any) -> Sequence[Answer]:
    """Send requests at once."""
    return await asyncio.gather(*asks)
