"""`perdure watch`: show what happens in a session that another process drives (CM-26)."""

import asyncio
from typing import Final

import click

import perdure
from perdure.cli.commands.inspect import as_document, as_words
from perdure.cli.display import Display
from perdure.cli.driving.plan import unless_told
from perdure.cli.endings import Ending
from perdure.cli.events import BaseEvent, CommitEvent, SignalEvent
from perdure.cli.forwarding.change import named
from perdure.cli.forwarding.following import Follower
from perdure.cli.forwarding.reach import ANSWER_S, TRY_AGAIN_S, answering, unanswered
from perdure.cli.forwarding.there import There
from perdure.cli.reading import reading
from perdure.cli.stopping import Stop
from perdure.cli.surface import Surface, surfaced
from perdure.errors import Closed
from perdure.harness.overview import Overview, overview
from perdure.records.seqs import Seq
from perdure.records.sessions import EntryScan, Owner, TaskScan
from perdure.records.watch import WatchCommit, WatchEvent
from perdure.storage.owners import busy

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
        self._follower = Follower(Display(surface))
        self._base: Overview | None = None

    async def run(self) -> None:
        """Follow until nobody has the session open.

        Raises:
            StorageBusy: its owner does not answer.
        """
        await self._show_base()
        silent_s = 0.0
        while (owner := await self._owner()) is not None:
            there = await answering(owner, self._name, ANSWER_S - silent_s)
            if there is not None and await self._follow(there):
                silent_s = 0.0
                continue
            if silent_s >= ANSWER_S:
                error = busy(f"the session {self._name!r}", owner)
                raise unanswered(error, f"it did not answer in {ANSWER_S:.0f} s")
            await asyncio.sleep(TRY_AGAIN_S)
            silent_s += TRY_AGAIN_S
        await self._catch_up()

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
        self._follower.last_id = str(base.boundary)
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
            events = there.events(conv_id=self._conv_id, limit=1, after=follower.last_id)
            async for event in events:
                self._told(follower.take(event))
                has_told = True
                if follower.is_over:
                    break
        except (OSError, Closed):
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

    async def _owner(self) -> Owner | None:
        async with reading(self._url, self._name) as storage:
            return storage.info.owner

    async def _catch_up(self) -> None:
        """Show what was committed after the last event: an owner that was killed tells no more."""
        async with reading(self._url, self._name) as storage:
            while page := await storage.commits(
                after=Seq(int(self._follower.last_id)), limit=COMMITS_PAGE
            ):
                for commit in page:
                    self._follower.commit(commit)
                    self._follower.last_id = str(commit.last_seq)
                    self._say_commit(commit.first_seq, commit.last_seq, commit.time_ms)

    def ending(self, stop: Stop) -> Ending:
        """Say how the watch ended."""
        base = self._base
        return Ending(
            outcome=stop.outcome or "done",
            session=self._name,
            conversation=None if base is None else base.conversation,
            data=None if base is None else as_document(base),
            text=None if self._surface.flags.machine != "document" else "",
        )
