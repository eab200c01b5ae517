"""`perdure watch`: show what happens in a session that another process drives (CM-26)."""

import asyncio
from typing import Final

import click
from msgspec import structs

import perdure
from perdure.cli.commands.inspect import as_document, as_words
from perdure.cli.display import Display
from perdure.cli.driving.plan import unless_told
from perdure.cli.endings import Ending, Problem
from perdure.cli.events import BaseEvent, CommitEvent, SignalEvent
from perdure.cli.forwarding.change import named
from perdure.cli.forwarding.following import Follower
from perdure.cli.forwarding.reach import ANSWER_S, TRY_AGAIN_S, owner_there
from perdure.cli.forwarding.there import There
from perdure.cli.reading import reading
from perdure.cli.stopping import Stop
from perdure.cli.surface import Surface, surfaced
from perdure.errors import Closed, Rejected, Unreachable
from perdure.harness.overview import Overview, overview
from perdure.records.batches import selected
from perdure.records.seqs import NO_SEQ, Seq
from perdure.records.sessions import EntryScan, TaskScan
from perdure.records.watch import ClosedSignal, FaultSignal, WatchCommit, WatchEvent
from perdure.records.writes import Commit

COMMITS_PAGE: Final = 100

LIVE_MAX: Final = 10_000
"""Most live tasks that are taken note of."""

RECALLED: Final = 100
"""Entries that are looked at for the calls of live tasks."""


@click.command(
    help="""Show a session as it is, and then what happens in it, until it is closed.

    Needs no lock: the process that has the session open tells what happens. When none has it open,
    or it does not answer, the session is shown as it is.
    """
)
@surfaced("store", "session", "conversation", "timeout", "config", "json_events")
def command(surface: Surface) -> Ending:
    """Show, follow, end with the session's end."""

    async def run() -> Ending:
        url, name = await named(surface)
        stop = Stop(surface.terminal)
        with stop.listening(surface.flags.timeout):
            watch = _Watch(surface, url, name)
            await unless_told(stop, watch.run())
        if stop.outcome is not None and surface.flags.machine == "events":
            surface.terminal.document(SignalEvent(name=stop.outcome))
        return watch.ending(stop)

    return perdure.run(run())


class _Watch:
    """One watch, over as many connections as it takes."""

    def __init__(self, surface: Surface, url: str, name: str) -> None:
        self._surface = surface
        self._url = url
        self._name = name
        conv_id = surface.flags.conversation
        self._conv_id = None if conv_id is None else Seq(conv_id)
        self._follower = Follower(Display(surface, is_watch=True))
        self._base: Overview | None = None
        self._is_following = False

    async def run(self) -> None:
        """Follow until nobody has the session open.

        Raises:
            StorageBusy: its owner does not answer.
        """
        await self._show_base()
        try:
            while not self._has_ended():
                there = await self._owner()
                if there is None:
                    break
                self._is_following = True
                if not await self._follow(there):
                    await asyncio.sleep(TRY_AGAIN_S)
            await self._catch_up()
        except Rejected as error:
            if error.code != "not_found":
                raise
            self._surface.terminal.say(f"the session {self._name!r} was deleted")

    async def _owner(self) -> There | None:
        """Find who has the session open; one that was lost without a word may have a follower."""
        for _ in range(round(ANSWER_S / TRY_AGAIN_S) if self._is_following else 1):
            there = await owner_there(self._url, self._name)
            if there is not None:
                return there
            await asyncio.sleep(TRY_AGAIN_S)
        return None

    def _has_ended(self) -> bool:
        return isinstance(self._follower.last_word, ClosedSignal | FaultSignal)

    async def _show_base(self) -> None:
        """Show the session as it is; the stream goes on from there, so nothing is missed."""
        async with reading(self._url, self._name) as storage:
            self._base = base = await overview(storage, conv_id=self._conv_id)
            self._follower.begin(
                await storage.scan_tasks(TaskScan(live=True, limit=LIVE_MAX, as_of=base.boundary)),
                await storage.scan_entries(
                    EntryScan(limit=RECALLED, order="desc", as_of=base.boundary)
                ),
            )
        self._follower.last_seen = base.boundary
        machine = self._surface.flags.machine
        if machine == "no":
            self._surface.terminal.answer(as_words(base))
        elif machine == "events":
            self._surface.terminal.document(BaseEvent(as_of=base.boundary, base=as_document(base)))

    async def _follow(self, there: There) -> bool:
        """Show what one connection tells; False when it told nothing."""
        follower = self._follower
        has_told = False
        try:
            watch = there.watch(conv_id=self._conv_id, limit=1, after=follower.last_seen)
            async with watch as events:
                async for event in events:
                    follower.take(event)
                    self._told(event)
                    has_told = True
        except (Unreachable, Closed):
            pass
        return has_told

    def _told(self, event: WatchEvent) -> None:
        if isinstance(event, WatchCommit):
            self._say_commit(event.first_seq, event.last_seq, event.time_ms)

    def _say_commit(self, first_seq: Seq, last_seq: Seq, time_ms: int) -> None:
        if self._surface.flags.machine == "events":
            self._surface.terminal.document(
                CommitEvent(first_seq=first_seq, last_seq=last_seq, timestamp=time_ms)
            )

    async def _catch_up(self) -> None:
        """Show what was committed after the last event: an owner that was killed tells no more."""
        async with reading(self._url, self._name) as storage:
            while page := await storage.commits(
                after=self._follower.last_seen or NO_SEQ, limit=COMMITS_PAGE
            ):
                for commit in page:
                    self._follower.last_seen = commit.last_seq
                    self._missed(commit)

    def _missed(self, commit: Commit) -> None:
        watched = None if self._conv_id is None else {self._conv_id}
        writes = selected(commit, watched, self._follower.home_of)
        if writes:
            self._follower.commit(structs.replace(commit, writes=tuple(writes)))
            self._say_commit(commit.first_seq, commit.last_seq, commit.time_ms)

    def ending(self, stop: Stop) -> Ending:
        """Say how the watch ended."""
        base, last = self._base, self._follower.last_word
        problem = None
        if isinstance(last, FaultSignal):
            problem = Problem(code="fault", message=f"the session stopped: {last.message}")
        return Ending(
            outcome=stop.outcome or ("done" if problem is None else "storage"),
            session=self._name,
            conversation=None if base is None else base.conversation,
            data=None if base is None else as_document(base),
            error=problem,
        )
