"""The sessions a server has at hand: opened when they are needed, given back when idle.

Reading opens nothing for writing. Acting opens the session through `perdure.opening` and owns it
for as long as a request, a stream or a drive uses it, and `idle_s` longer. A session that faulted
is named with its reason until the server ends, and the others go on (WB-19).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import MappingProxyType
from typing import Final, TypeAlias

from perdure.drive.outcomes import DriveResult
from perdure.errors import Closed, Faulted, PerdureError, Rejected
from perdure.harness.harness import Harness
from perdure.harness.overview import stored_model
from perdure.ports import Sessions, Storage
from perdure.records.entries import ModelId
from perdure.records.sessions import Created, SessionInfo
from perdure.web.kept import Questions, Timelines

Opener: TypeAlias = Callable[[SessionInfo, ModelId | None], AbstractAsyncContextManager[Harness]]
"""How a session is opened: its facts, and the model it has stored."""

IDLE_S: Final = 30.0
"""How long a session stays open after its last use."""

CLOSE_GRACE_S: Final = 30.0
"""How long running handlers are waited for at the end (WB-20)."""

LOOK_AGAIN_S: Final = 0.25
"""How often a wait looks at a session that another process has open."""


class Held:
    """One session that is open here, or being opened."""

    def __init__(self, session_id: str) -> None:
        """Begin with nobody using it."""
        self.id = session_id
        self.uses = 0
        self.harness: Harness | None = None
        self.opening: asyncio.Task[Harness] | None = None
        self.context: AbstractAsyncContextManager[Harness] | None = None
        self.driving: asyncio.Task[None] | None = None
        self.again: bool = False
        self.outcome: DriveResult | None = None
        self.changed = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None

    def news(self, *_: object) -> None:
        """Wake whoever waits for a change."""
        self.changed.set()
        self.changed = asyncio.Event()


class House:
    """Sessions of one container, as a server needs them."""

    def __init__(
        self,
        sessions: Sessions,
        opener: Opener | None,
        *,
        idle_s: float = IDLE_S,
        removed: Callable[[SessionInfo], Awaitable[None]] | None = None,
    ) -> None:
        """Take an open container, which stays open, and the way a session of it is opened.

        `removed` is told of a deleted session, whose launch folders go too (SN-08).
        """
        self.sessions = sessions
        self.stopping = asyncio.Event()
        self.timelines = Timelines()
        self.questions = Questions()
        self.streams = 0
        """How many event streams are open."""
        self._opener = opener
        self._idle_s = idle_s
        self._removed = removed
        self._held: dict[str, Held] = {}
        self._faults: dict[str, Faulted] = {}
        self._only: str | None = None
        self._ends: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, harness: Harness, sessions: Sessions) -> "House":
        """Answer a house of one session that is open already and that its owner closes."""
        house = cls(sessions, None)
        held = house._held[harness.info.id] = Held(harness.info.id)
        held.harness = harness
        held.uses = 1
        house._only = harness.info.id
        harness.on_commit(held.news)
        return house

    # Looking.

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Answer the loop, whose clock measures waits."""
        return asyncio.get_running_loop()

    @property
    def faults(self) -> Mapping[str, Faulted]:
        """Answer the sessions that stopped here, with the reasons."""
        return MappingProxyType(self._faults)

    async def page(self, *, after: str | None, limit: int) -> Sequence[SessionInfo]:
        """Answer sessions by name bytes."""
        if self._only is not None:
            info = await self.find(self._only)
            return [info] if after is None or info.name > after else []
        return await self.sessions.page(after=after, limit=limit)

    async def find(self, session_id: str) -> SessionInfo:
        """Answer a session by id; raises Rejected `not_found`, or Faulted when it stopped here."""
        if session_id in self._faults:
            raise self._faults[session_id]
        return await self.look(session_id)

    async def look(self, session_id: str) -> SessionInfo:
        """Answer a session by id, also one that stopped here."""
        if self._only not in (None, session_id):
            raise Rejected("not_found", f"there is no session of the id {session_id!r} here")
        return await self.sessions.find(session_id)

    async def create(self, name: str, request_id: str | None) -> Created:
        """Make a session, once for each request id."""
        if self._only is not None:
            raise Rejected("invariant", "this address serves one session")
        return await self.sessions.create(name, request_id=request_id)

    async def delete(self, info: SessionInfo) -> None:
        """Delete a session for good, and give it up here first.

        Raises:
            Rejected: `busy`, while something here uses it.
            StorageBusy: another live process owns it.
        """
        if self._only is not None:
            await self._give_up(info)
            return
        held = self._held.get(info.id)
        if held is not None and held.uses > 0:
            raise Rejected("busy", f"the session {info.name!r} is in use here; end that first")
        await self.give_back(info.id)
        await self.sessions.delete(info.name)
        if self._removed is not None:
            await self._removed(info)

    async def _give_up(self, info: SessionInfo) -> None:
        """Cancel all work of the one session here, close it for its owner, and delete it."""
        harness = self._held[info.id].harness
        assert harness is not None
        with suppress(Closed, TimeoutError):
            async with asyncio.timeout(CLOSE_GRACE_S):
                await (await harness.root()).shutdown()
        await harness.close(grace=CLOSE_GRACE_S)
        await self.sessions.delete(info.name)

    @asynccontextmanager
    async def reading(self, session_id: str) -> AsyncGenerator[Storage]:
        """Open a session for reading; owns nothing and starts nothing (WB-09)."""
        info = await self.find(session_id)
        storage = await self.sessions.open(info.name, create=False, read_only=True)
        try:
            yield storage
        finally:
            await storage.close()

    def is_here(self, session_id: str) -> bool:
        """Say whether the session is open in this house."""
        held = self._held.get(session_id)
        return held is not None and held.harness is not None

    def is_driven(self, session_id: str) -> bool:
        """Say whether the session is being driven."""
        held = self._held.get(session_id)
        return held is not None and held.driving is not None

    def news(self, session_id: str) -> asyncio.Event | None:
        """Answer what the next commit of an open session sets; taken before reading, none is lost.

        None for a session that is not open here: whoever waits for its commits looks again.
        """
        held = self._held.get(session_id)
        return None if held is None or held.harness is None else held.changed

    async def until(self, news: asyncio.Event | None, timeout_s: float) -> None:
        """Wait for news, the end of the server, or the time."""
        if news is None:
            await self.pause(min(timeout_s, LOOK_AGAIN_S))
        else:
            await self.pause(timeout_s, news)

    async def pause(self, timeout_s: float, *others: asyncio.Event) -> None:
        """Wait for one of some events, the end of the server, or the time."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self.stopping, *others)]
        try:
            await asyncio.wait(
                waits, timeout=max(timeout_s, 0), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for wait in waits:
                wait.cancel()

    # Owning.

    @asynccontextmanager
    async def using(self, session_id: str) -> AsyncGenerator[Harness]:
        """Have a session open for as long as the body runs.

        Raises:
            StorageBusy: another live process owns it.
            Faulted: it stopped here, now or before.
        """
        held = await self._hold(session_id)
        try:
            yield await self._opened(held)
        except Faulted as fault:
            self._fault(held, fault)
            raise
        finally:
            self._release(held)

    async def _hold(self, session_id: str) -> Held:
        await self.find(session_id)
        if self.stopping.is_set():
            raise Closed("the server is ending")
        held = self._held.get(session_id)
        if held is None:
            held = self._held[session_id] = Held(session_id)
        held.uses += 1
        if held.timer is not None:
            held.timer.cancel()
            held.timer = None
        return held

    async def _opened(self, held: Held) -> Harness:
        if held.harness is not None:
            return held.harness
        if held.opening is None or (held.opening.done() and held.harness is None):
            held.opening = asyncio.create_task(self._open(held))
        return await asyncio.shield(held.opening)

    async def _open(self, held: Held) -> Harness:
        if self._opener is None:
            raise Rejected("not_found", "this address serves one session")
        async with self.reading(held.id) as storage:
            info, model = storage.info, await stored_model(storage)
        context = self._opener(info, model)
        harness = await context.__aenter__()
        held.context, held.harness = context, harness
        harness.on_commit(held.news)
        return harness

    def _release(self, held: Held) -> None:
        held.uses -= 1
        if held.uses == 0 and not self.stopping.is_set():
            loop = asyncio.get_running_loop()
            held.timer = loop.call_later(self._idle_s, self._expire, held)

    def _expire(self, held: Held) -> None:
        if held.uses == 0 and self._held.get(held.id) is held:
            del self._held[held.id]
            self._later(self._close(held))

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def give_back(self, session_id: str) -> None:
        """Close a session that nobody uses, now: somebody else wants to own it."""
        held = self._held.get(session_id)
        if held is not None and held.uses == 0:
            del self._held[session_id]
            await self._close(held)

    def _fault(self, held: Held, fault: Faulted) -> None:
        """Keep the reason, and give up what the stopped session holds."""
        if self._held.get(held.id) is held:
            self._faults[held.id] = fault
            del self._held[held.id]
            held.news()
            self._later(self._close(held))

    async def _close(self, held: Held, grace: float | None = CLOSE_GRACE_S) -> None:
        if held.opening is not None and held.harness is None:
            await asyncio.wait([held.opening])
        if held.context is None or held.harness is None:
            return
        try:
            await held.harness.close(grace=grace)
            await held.context.__aexit__(None, None, None)
        except PerdureError as error:
            # A session that stopped may say so again while it is given up.
            if not isinstance(error, Faulted | Closed):
                raise

    # Driving.

    async def drive(self, session_id: str, *, poll_deferred: bool = False) -> None:
        """Let a session's work run until it is idle or suspended; answers at once."""
        held = await self._hold(session_id)
        try:
            harness = await self._opened(held)
        except BaseException:
            self._release(held)
            raise
        if held.driving is not None:
            held.again = True
            self._release(held)
            return
        held.outcome = None
        held.driving = asyncio.create_task(self._drive(held, harness, poll_deferred))

    async def _drive(self, held: Held, harness: Harness, poll_deferred: bool) -> None:  # noqa: FBT001 - of one caller
        try:
            while True:
                held.again = False
                held.outcome = await harness.drive(poll_deferred=poll_deferred)
                if not held.again or self.stopping.is_set():
                    break
        except Faulted as fault:
            self._fault(held, fault)
        except Closed:
            held.outcome = None
        finally:
            held.driving = None
            held.news()
            self._release(held)

    async def driven(self, session_id: str, timeout_s: float) -> DriveResult | None:
        """Wait until a session's drive ended; None when it still runs at the time limit."""
        held = self._held.get(session_id)
        task = None if held is None else held.driving
        if held is None:
            return None
        if task is not None:
            stop = asyncio.ensure_future(self.stopping.wait())
            await asyncio.wait([task, stop], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
        if session_id in self._faults:
            raise self._faults[session_id]
        return held.outcome

    # The end.

    def stop(self) -> None:
        """Say that the server ends: streams and waits end by themselves (WB-20)."""
        self.stopping.set()

    async def close(self, *, grace: float = CLOSE_GRACE_S) -> None:
        """Close every session opened here, all at once."""
        self.stop()
        held = list(self._held.values())
        self._held.clear()
        for one in held:
            if one.timer is not None:
                one.timer.cancel()
        await asyncio.gather(*(self._close(one, grace) for one in held))
        if self._ends:
            await asyncio.gather(*self._ends)
        drives = [one.driving for one in held if one.driving is not None]
        if drives and self._only is None:
            await asyncio.wait(drives)
