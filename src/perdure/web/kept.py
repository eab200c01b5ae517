"""What a server remembers of what it has read, so that asking again is cheap.

Nothing here is a record: each is read again when its session has a new commit.
"""

from array import array
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias

from perdure.errors import PerdureError
from perdure.harness.approvals import list_approvals
from perdure.ports import Storage
from perdure.records.approvals import ApprovalView
from perdure.records.seqs import Seq
from perdure.records.sessions import COMMITS_LIMIT_MAX, SessionInfo

Reading: TypeAlias = Callable[[str], AbstractAsyncContextManager[Storage]]
"""How a session is opened for reading, by its id."""


class Timeline:
    """First seq, last seq and time of each main commit, as far as somebody has asked."""

    def __init__(self) -> None:
        """Know none yet."""
        self.firsts = array("q")
        self.lasts = array("q")
        self.times = array("q")

    async def extend(self, storage: Storage) -> None:
        """Read on from the last one known."""
        while True:
            after = Seq(self.lasts[-1] if self.lasts else 0)
            page = await storage.commits(after=after, limit=COMMITS_LIMIT_MAX)
            for commit in page:
                # Two requests may read on at once; what one has added the other leaves out.
                if not self.lasts or commit.last_seq > self.lasts[-1]:
                    self.firsts.append(commit.first_seq)
                    self.lasts.append(commit.last_seq)
                    self.times.append(commit.time_ms)
            if len(page) < COMMITS_LIMIT_MAX:
                return

    def record(self, number: int) -> dict[str, Any]:
        """Answer a commit without its writes; `number` counts from 0."""
        return {
            "type": "commit",
            "firstSeq": self.firsts[number],
            "lastSeq": self.lasts[number],
            "timestamp": self.times[number],
            "number": number + 1,
        }


TIMELINES_MAX: Final = 8
"""Sessions whose timelines are kept: three numbers a commit."""


class Timelines:
    """The timelines of the sessions that were asked about last."""

    def __init__(self) -> None:
        """Know none yet."""
        self._kept: dict[str, Timeline] = {}

    async def of(self, session_id: str, storage: Storage) -> Timeline:
        """Answer a session's timeline up to its newest commit."""
        timeline = self._kept.pop(session_id, None) or Timeline()
        self._kept[session_id] = timeline
        while len(self._kept) > TIMELINES_MAX:
            del self._kept[next(iter(self._kept))]
        await timeline.extend(storage)
        return timeline


class Questions:
    """What waits in each session, kept for as long as the session has no new commit."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._kept: dict[str, tuple[int, tuple[ApprovalView, ...]]] = {}

    async def of(self, info: SessionInfo, reading: Reading) -> tuple[ApprovalView, ...]:
        """Answer a session's waiting approvals; one that cannot be read has none."""
        kept = self._kept.get(info.id)
        if kept is None or kept[0] != info.last_seq:
            try:
                async with reading(info.id) as storage:
                    found = tuple(await list_approvals(storage))
            except PerdureError:
                return ()
            kept = self._kept[info.id] = (info.last_seq, found)
        return kept[1]

    def keep(self, ids: set[str]) -> None:
        """Forget sessions that are gone."""
        for session_id in self._kept.keys() - ids:
            del self._kept[session_id]
