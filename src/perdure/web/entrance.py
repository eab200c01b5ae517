"""What every request passes, and every answer leaves through: doors, refusals, the access log.

A door refuses before anything has an effect; whatever a route raises becomes an answer of one
shape. A defect is told to the host with its traceback, and to the caller by its id (WB-06).
"""

import secrets
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Router
from starlette.types import Message, Receive, Scope, Send

from perdure.errors import PerdureError
from perdure.records.codec import encode
from perdure.web.auth import Doors
from perdure.web.refusals import ErrorBody, Refusal, refusal_of
from perdure.web.wire import plain

CORS: Final = (
    (b"access-control-allow-methods", b"GET, POST, PATCH, DELETE"),
    (b"access-control-allow-headers", b"Authorization, Content-Type, Last-Event-ID"),
    (b"access-control-max-age", b"600"),
)

POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a page from here may load: its own files and stored images, nothing inline (WB-23)."""

SAFE: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", POLICY),
)
"""Headers of every answer (WB-23)."""

REQUEST_ID_BYTES: Final = 6
"""Random bytes of the id that an answer and its line of the access log share."""

SUBJECT: Final = "perdure.subject"
"""Where the scope of a request holds whose it is."""


class Access(Struct, frozen=True, kw_only=True):
    """One line of the access log: no query value, body, token or name (WB-22)."""

    method: str
    route: str
    status: int
    bytes: int
    ms: int
    request_id: str


class Hooks(Struct, frozen=True, kw_only=True):
    """Where a server says what it did: each answer, and the traceback of each defect."""

    access: Callable[[Access], None] | None = None
    defect: Callable[[str, str], None] | None = None


NO_HOOKS: Final = Hooks()


class Entrance:
    """The program that a server runs for each request."""

    def __init__(
        self, router: Router, doors: Doors, hooks: Hooks, open_paths: frozenset[str]
    ) -> None:
        """Stand before a router; `open_paths` need no token."""
        self._router = router
        self._doors = doors
        self._hooks = hooks
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        answer = _Answer(scope, send)
        try:
            await self._answer(scope, receive, answer)
        finally:
            if self._hooks.access is not None:
                self._hooks.access(answer.line())

    async def _answer(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        try:
            await self._enter(scope, receive, answer)
        except Refusal as refusal:
            await answer.refuse(refusal)
        except HTTPException as error:
            await answer.refuse(_unrouted(error))
        except PerdureError as error:
            await answer.refuse(refusal_of(error))
        except Exception as error:
            if answer.is_begun:
                raise
            await answer.refuse(self._defect(error, answer.request_id))

    async def _enter(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        headers = Request(scope).headers
        self._doors.check_host(headers)
        origin = self._doors.check_origin(headers)
        if origin is not None:
            answer.allow(origin)
            if scope["method"] == "OPTIONS":
                await answer.preflight()
                return
        if scope["path"] not in self._open_paths:
            scope[SUBJECT] = self._doors.subject(headers)
        scope["app"] = self  # so that the router raises what it does not find
        await self._router(scope, receive, answer.send)

    def _defect(self, error: Exception, report: str) -> Refusal:
        if self._hooks.defect is not None:
            self._hooks.defect(report, "".join(traceback.format_exception(error)))
        return Refusal(
            "defect", "perdure has a defect; the server has a report of it", {"report": report}
        )


class _Answer:
    """One answer on its way out: headers of every answer, and what the log says of it."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.request_id = secrets.token_hex(REQUEST_ID_BYTES)
        self.is_begun = False
        self._scope = scope
        self._send = send
        self._status = 0
        self._bytes = 0
        self._began = time.monotonic()
        self._more: list[tuple[bytes, bytes]] = [
            (b"x-request-id", self.request_id.encode()),
            *SAFE,
        ]

    def allow(self, origin: str) -> None:
        """Let a page of an allowed origin read the answer."""
        self._more += [
            (b"access-control-allow-origin", origin.encode()),
            (b"vary", b"Origin"),
        ]

    async def send(self, message: Message) -> None:
        """Pass a message on, with the headers of every answer."""
        if message["type"] == "http.response.start":
            self.is_begun = True
            self._status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self._more]}
        else:
            self._bytes += len(message.get("body", b""))
        await self._send(message)

    async def preflight(self) -> None:
        """Say what a page of an allowed origin may ask."""
        self._more += CORS
        await self._whole(204, b"", {})

    async def refuse(self, refusal: Refusal) -> None:
        """Answer a refusal; an answer that has begun can only end."""
        if self.is_begun:
            return
        body = encode(plain(ErrorBody(error=refusal.problem)))
        await self._whole(
            refusal.status,
            body,
            {
                "content-type": "application/json",
                "cache-control": "no-store",
                **refusal.headers,
            },
        )

    async def _whole(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        given = [(name.lower().encode(), text.encode()) for name, text in headers.items()]
        given.append((b"content-length", str(len(body)).encode()))
        await self.send({"type": "http.response.start", "status": status, "headers": given})
        await self.send({"type": "http.response.body", "body": body})

    def line(self) -> Access:
        """Answer the line of the access log: the route's pattern, never the path itself."""
        route = self._scope.get("route")
        return Access(
            method=self._scope["method"],
            route="-" if route is None else route.path,
            status=self._status,
            bytes=self._bytes,
            ms=round((time.monotonic() - self._began) * 1000),
            request_id=self.request_id,
        )


def _unrouted(error: HTTPException) -> Refusal:
    """Word what the router did not find."""
    if error.status_code == 405:
        return Refusal(
            "method_not_allowed", "this path has other methods", headers=dict(error.headers or {})
        )
    return Refusal("not_found", "there is no such route; see /openapi.json")
