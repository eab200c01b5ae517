"""A provider on this machine: one loopback server that speaks the three provider wires.

    async with WireServer(WireReply(...), WireError(status=429)) as server:
        … point an adapter at `server.base_url` (OpenAI wires) or `server.root_url` (Anthropic)

    POST /v1/chat/completions           OpenAI chat completions
    POST /v1/responses                  OpenAI responses; with `background`, work to be polled
    GET  /v1/responses/{id}             one poll
    POST /v1/responses/{id}/cancel      cancel it
    POST /v1/messages                   Anthropic messages
    GET  /v1/models                     what the server lists

Replies are taken from a script, in order; every request is recorded with its raw body, counted,
and held against the strict rules of its wire (`wire_rules`): one that breaks a rule is answered
with status 400 and kept in `faults`. With `strict=False` the rules are not applied.
"""

import asyncio
import json
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from msgspec import Struct

from perdure.testing.wire_replies import (
    NO_HEADERS,
    Event,
    Rendered,
    Script,
    Wire,
    WireError,
    WireReply,
    chat_usage,
    error_body,
    error_event,
    finished_response,
    render,
    response_object,
)
from perdure.testing.wire_rules import WireFault, check_body, decoded

LINE_BYTES_MAX: Final = 67_108_864
"""Longest request body or header line the server reads: 64 MiB."""

PATHS: Final[Mapping[str, Wire]] = MappingProxyType(
    {
        "/v1/chat/completions": "chat",
        "/v1/responses": "responses",
        "/v1/messages": "anthropic",
    }
)


class WireRequest(Struct, frozen=True, kw_only=True):
    """A request as it arrived; `body` is its decoded JSON, empty when it did not decode."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Mapping[str, Any]


class _Job:
    """Background work on the responses wire."""

    def __init__(self, reply: WireReply | WireError, model: str) -> None:
        self.reply = reply
        self.model = model
        self.polls = 0
        self.cancelled = False


class _Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def event(self, event: Event) -> None:
        """Send one server-sent event as one chunk."""
        name, value = event
        text = value if isinstance(value, str) else json.dumps(value)
        block = (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
        encoded = block.encode()
        self.writer.write(f"{len(encoded):x}\r\n".encode() + encoded + b"\r\n")
        await self.writer.drain()

    async def end(self) -> None:
        """End a chunked body politely."""
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def plain(self, status: int, value: object, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Answer JSON."""
        encoded = json.dumps(value).encode()
        extra = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
        self.writer.write(
            f"HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\n{extra}"
            f"content-length: {len(encoded)}\r\n\r\n".encode()
            + encoded
        )


class _Stopped(Exception):
    """The connection is over; nothing more is written to it."""


class WireServer:
    """Serve a script on a port of 127.0.0.1; an async context manager."""

    def __init__(
        self,
        *replies: WireReply | WireError,
        repeat: bool = False,
        strict: bool = True,
        models: Mapping[str, Any] | None = None,
    ) -> None:
        """Take the script; `models` is the JSON that `GET /v1/models` answers."""
        self.script = Script(*replies, repeat=repeat)
        self.requests: list[WireRequest] = []
        self.faults: list[str] = []
        self.hung_up = asyncio.Event()
        self.holding = asyncio.Event()
        self._strict = strict
        self._models: Mapping[str, Any] = models or {"object": "list", "data": []}
        self._jobs: dict[str, _Job] = {}
        self._server: asyncio.Server | None = None
        self._lines: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._count = 0

    async def __aenter__(self) -> Self:
        """Start to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=LINE_BYTES_MAX)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop to listen, and end what is held."""
        assert self._server is not None
        self._server.close()
        self.release()
        for writer in self._lines.values():
            writer.close()
        if self._lines:
            await asyncio.wait(tuple(self._lines))
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        """Answer the port."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def root_url(self) -> str:
        """Answer the base URL of the Anthropic wire."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """Answer the base URL of the two OpenAI wires."""
        return f"{self.root_url}/v1"

    @property
    def posts(self) -> list[WireRequest]:
        """Answer the requests that started work: no polls, cancels or listings."""
        return [request for request in self.requests if request.path in PATHS]

    def release(self) -> None:
        """Let every held reply go on."""
        self.script.release.set()

    # ------------------------------------------------------------------------ connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines[task] = writer
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                await self._answer(request, _Line(reader, writer))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up.set()
        except _Stopped:
            pass
        finally:
            del self._lines[task]
            writer.close()

    async def _answer(self, request: WireRequest, line: _Line) -> None:
        path = request.path.partition("?")[0]
        if path == "/v1/models":
            line.plain(200, self._models)
        elif path.startswith("/v1/responses/"):
            self._answer_job(path.removeprefix("/v1/responses/"), line)
        elif path in PATHS:
            await self._answer_work(PATHS[path], request, line)
        else:
            lost = WireError(type="not_found_error", message=f"no such path {path}")
            line.plain(404, error_body("chat", lost))

    async def _answer_work(self, wire: Wire, request: WireRequest, line: _Line) -> None:
        fault = _fault(wire, request) if self._strict else None
        if fault is not None:
            self.faults.append(fault)
            bad = WireError(type="invalid_request_error", message=f"strict wire: {fault}")
            line.plain(400, error_body(wire, bad))
            return
        reply = self.script.take()
        body = request.body
        model = str(body.get("model", ""))
        self._count += 1
        reply_id = f"{wire}_{self._count}"
        if body.get("background"):
            self._jobs[reply_id] = _Job(reply, model)
            line.plain(200, response_object(reply_id, model, "queued", background=True))
        elif isinstance(reply, WireError):
            line.plain(reply.status, error_body(wire, reply), reply.headers)
        elif body.get("stream"):
            options: Mapping[str, Any] | None = body.get("stream_options")
            usage = options is not None and bool(options.get("include_usage"))
            rendered = render(wire, reply, reply_id=reply_id, model=model, usage=usage)
            await self._stream(wire, reply, rendered, line)
        else:
            line.plain(200, _whole(wire, reply, reply_id, model))

    # ---------------------------------------------------------------------------- streams

    async def _stream(self, wire: Wire, reply: WireReply, rendered: Rendered, line: _Line) -> None:
        line.writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        events = rendered.body + rendered.final
        broken = reply.hold or reply.end != "whole"
        at = len(events) if not broken else len(rendered.body) if reply.after < 0 else reply.after
        for event in events[:at]:
            await line.event(event)
        if broken:
            await self._break(wire, reply, line)
        for event in events[at:]:
            await line.event(event)
        await line.end()

    async def _break(self, wire: Wire, reply: WireReply, line: _Line) -> None:
        if reply.hold:
            self.holding.set()
            await self._held(line)
        match reply.end:
            case "whole":
                return
            case "cut":
                line.writer.transport.abort()
            case "stop":
                await line.end()
            case WireError() as error:
                await line.event(error_event(wire, error))
                await line.end()
        raise _Stopped

    async def _held(self, line: _Line) -> None:
        """Wait for `release`, or for the client to hang up; it sends nothing while it waits."""
        released = asyncio.ensure_future(self.script.release.wait())
        silence = asyncio.ensure_future(line.reader.read(1))
        await asyncio.wait({released, silence}, return_when=asyncio.FIRST_COMPLETED)
        gone = silence.done()
        released.cancel()
        silence.cancel()
        await asyncio.gather(released, silence, return_exceptions=True)
        if gone:
            self.hung_up.set()
            raise _Stopped

    # --------------------------------------------------------------------- background work

    def _answer_job(self, rest: str, line: _Line) -> None:
        reply_id, _, verb = rest.partition("/")
        job = self._jobs.get(reply_id)
        if job is None:
            lost = WireError(type="invalid_request_error", message=f"no response {reply_id}")
            line.plain(404, error_body("responses", lost))
            return
        if verb == "cancel":
            if not self._finished(job):
                job.cancelled = True
            status = 400 if self._finished(job) and not job.cancelled else 200
        else:
            job.polls += 1
            status = 200
        if status == 400:
            late = WireError(type="invalid_request_error", message="the response is completed")
            line.plain(400, error_body("responses", late))
            return
        line.plain(200, self._job_object(job, reply_id))

    def _finished(self, job: _Job) -> bool:
        pending = job.reply.pending if isinstance(job.reply, WireReply) else 0
        return job.polls > pending

    def _job_object(self, job: _Job, reply_id: str) -> dict[str, Any]:
        background = {"background": True}
        if job.cancelled:
            return response_object(reply_id, job.model, "cancelled", **background)
        if not self._finished(job):
            return response_object(reply_id, job.model, "in_progress", **background)
        if isinstance(job.reply, WireError):
            error = {"code": job.reply.code or "server_error", "message": job.reply.message}
            return response_object(reply_id, job.model, "failed", error=error, **background)
        return {**finished_response(job.reply, reply_id, job.model), **background}


def _fault(wire: Wire, request: WireRequest) -> str | None:
    try:
        check_body(wire, decoded(request.raw))
    except WireFault as fault:
        return str(fault)
    return None


async def _read_request(reader: asyncio.StreamReader) -> WireRequest | None:
    line = await reader.readline()
    if not line.strip():
        return None
    method, path, _ = line.decode().split(" ", 2)
    headers: dict[str, str] = {}
    while (header := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = header.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    try:
        body: Any = json.loads(raw) if raw else {}
    except ValueError:
        body = {}
    return WireRequest(method=method, path=path, headers=headers, raw=raw, body=body)


def _whole(wire: Wire, reply: WireReply, reply_id: str, model: str) -> object:
    """Spell a reply that was not asked to stream; only the responses wire needs all of it."""
    if wire == "responses":
        return finished_response(reply, reply_id, model)
    text = "".join(part.whole for part in reply.parts)
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = None if reply.usage is None else chat_usage(reply.usage)
    return {
        "id": reply_id,
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [choice],
        "usage": usage,
    }
