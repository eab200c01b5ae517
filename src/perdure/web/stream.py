"""The event stream of one session: what its watch delivers, as server-sent events (WB-15 to WB-18).

The id of an event is the last seq of a main commit, so that a reader that comes back with it is
given everything since, once. Nothing is kept for a reader here but the event that is being sent:
the watch's own queue is bounded, and ends with `overflow` when it is not read.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Final

from msgspec import Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.errors import Rejected
from perdure.harness.watching import Watch
from perdure.records.seqs import Seq
from perdure.records.watch import (
    LAST_SIGNALS,
    SnapshotRequired,
    WatchBase,
    WatchCommit,
    WatchDelta,
    WatchEvent,
    wire,
)
from perdure.web.calls import Call, Reply
from perdure.web.house import House
from perdure.web.refusals import RETRY_AFTER_S, Refusal
from perdure.web.wire import exact

PING_S: Final = 15.0
"""A comment is sent when nothing was for this long (WB-15)."""

STUCK_S: Final = 30.0
"""A reader that takes nothing for this long is let go."""

STREAMS_MAX: Final = 256
"""Most streams of one server (WB-18)."""

PING: Final = b": ping\n\n"
CLOSED: Final = b'event: signal\ndata: {"type":"closed"}\n\n'


class EventsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to watch: a conversation, with those it owns, or without one the whole session.

    `limit` entries are in the base. `last_event_id` stands for the header of that name, where a
    reader cannot send it.
    """

    conversation: int | None = None
    owned: bool = False
    limit: int = 50
    last_event_id: str | None = None


async def stream_events(call: Call) -> Reply:
    """Watch a session: a base, then every commit once, deltas and signals."""
    query: EventsQuery = call.query
    after = _last_seen(call.request.headers.get("last-event-id") or query.last_event_id)
    if call.house.streams >= STREAMS_MAX:
        raise Refusal(
            "overloaded",
            f"{STREAMS_MAX} streams are open; try again",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )
    async with AsyncExitStack() as stack:
        harness = await stack.enter_async_context(call.house.using(call.session))
        if query.conversation is None:
            watch = harness.watch(limit=query.limit, after=after)
        else:
            conversation = await harness.conversation(Seq(query.conversation))
            if conversation is None:
                raise Rejected("unknown_target", f"there is no conversation {query.conversation}")
            watch = conversation.watch(limit=query.limit, owned=query.owned, after=after)
        await stack.enter_async_context(watch)
        return Reply(content=EventStream(call.house, watch, stack.pop_all()))


def _last_seen(text: str | None) -> Seq | None:
    """Read the id of the last event seen; raises Refusal `invariant` for what is no seq."""
    if text is None or not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise Refusal("invariant", f"the last event id {text[:40]!r} is no seq")
    return Seq(int(text))


class EventStream(Response):
    """The answer that goes on until its reader, its session or its server ends."""

    media_type = "text/event-stream"

    def __init__(self, house: House, watch: Watch, held: AsyncExitStack) -> None:
        """Send what `watch` delivers; `held` is given back at the end."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._house = house
        self._watch = watch
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send; whatever ends it, the watch is closed and the session released."""
        self._house.streams += 1
        ends = [
            asyncio.ensure_future(_gone(receive)),
            asyncio.ensure_future(self._house.stopping.wait()),
        ]
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait([sending, *ends], return_when=asyncio.FIRST_COMPLETED)
            if ends[1].done() and not (sending.done() or ends[0].done()):
                sending.cancel()
                await asyncio.wait([sending])
                async with asyncio.timeout(STUCK_S):
                    await send(_body(CLOSED, more=True))
                    await send(_body(b"", more=False))
        finally:
            self._house.streams -= 1
            tasks: set[asyncio.Future[Any]] = {*ends, sending}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._held.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        waiting = asyncio.ensure_future(anext(self._watch, None))
        try:
            while True:
                done, _ = await asyncio.wait([waiting], timeout=PING_S)
                event = waiting.result() if done else None
                if done and event is None:
                    break
                async with asyncio.timeout(STUCK_S):
                    await send(_body(PING if event is None else event_bytes(event), more=True))
                if event is None:
                    continue
                if isinstance(event, LAST_SIGNALS):
                    break
                waiting = asyncio.ensure_future(anext(self._watch, None))
        finally:
            waiting.cancel()
        await send(_body(b"", more=False))


async def _gone(receive: Receive) -> None:
    """Wait until the reader hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _body(data: bytes, *, more: bool) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def event_bytes(event: WatchEvent) -> bytes:
    """Answer an event as it is sent: its name, the id of a base or commit, and its record."""
    seen = b""
    match event:
        case WatchBase(as_of=seq):
            name, seen = b"base", b"id: %d\n" % seq
        case WatchCommit(last_seq=seq):
            name, seen = b"commit", b"id: %d\n" % seq
        case WatchDelta():
            name = b"delta"
        case SnapshotRequired():
            name = b"snapshot_required"
        case _:
            name = b"signal"
    return b"event: %s\n%sdata: %s\n\n" % (name, seen, exact(wire(event)))
