"""Show a session that another process drives, from what its watch delivers (CM-26, WT-19)."""

from collections.abc import Iterable, Iterator

from perdure.cli.display import Display
from perdure.line.line import Delivery, Preview
from perdure.records.codec import decode
from perdure.records.entries import Entry, new_entry
from perdure.records.folding import patch_task
from perdure.records.frames import FrameBatch
from perdure.records.seqs import Seq
from perdure.records.tasks import Task, new_task
from perdure.records.watch import (
    LAST_SIGNALS,
    WatchBase,
    WatchCommit,
    WatchDelta,
    WatchEvent,
)
from perdure.records.writes import Commit, InsertEntry, InsertTask, PatchTask, SettleTask


class Follower:
    """Hands on what a watch delivers as a listener of an open session hears it."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._tasks: dict[Seq, Task] = {}
        self.last_seen: Seq | None = None
        """The last commit that was told: where a lost stream goes on."""
        self.last_word: WatchEvent | None = None
        """The signal that ended the stream, None while it goes on."""

    def take(self, found: WatchEvent) -> None:
        """Show one event of the watch."""
        match found:
            case WatchBase():
                self.last_seen = found.as_of
                self.begin(found.tasks, found.entries)
            case WatchCommit():
                self.last_seen = found.last_seq
                commit = Commit(
                    first_seq=found.first_seq,
                    last_seq=found.last_seq,
                    time_ms=found.time_ms,
                    writes=tuple(write.change for write in found.writes),
                )
                self.commit(commit)
            case WatchDelta(kind="frame"):
                batch = decode(found.payload_json, FrameBatch)
                self._display.on_preview(
                    Preview(task_id=found.task_id, kind="frame", payload=batch)
                )
            case _:
                self.last_word = found if isinstance(found, LAST_SIGNALS) else None

    def begin(self, tasks: Iterable[Task], entries: Iterable[Entry]) -> None:
        """Take note of what lives, and of the calls that were made before."""
        self._tasks = {task.id: task for task in tasks}
        for entry in entries:
            if entry.kind == "assistant":
                self._display.recall(entry)
        for task in self._tasks.values():
            if task.kind == "tool":
                self._display.note_call(task)

    def home_of(self, task_id: Seq) -> Seq | None:
        """Answer the conversation of a task that lives, None for another."""
        task = self._tasks.get(task_id)
        return None if task is None else task.conv_id

    def commit(self, commit: Commit) -> None:
        """Show one main commit."""
        entries = tuple(
            new_entry(write, commit.last_seq)
            for write in commit.writes
            if isinstance(write, InsertEntry)
        )
        self._display.on_commit(
            Delivery(commit=commit, entries=entries, tasks=tuple(self._moved(commit)))
        )

    def _moved(self, commit: Commit) -> Iterator[Task]:
        moved: dict[Seq, Task] = {}
        for write in commit.writes:
            if isinstance(write, InsertTask):
                moved[write.seq] = self._tasks[write.seq] = new_task(write)
            elif isinstance(write, PatchTask | SettleTask) and write.task_id in self._tasks:
                task = patch_task(self._tasks[write.task_id], write)
                moved[task.id] = self._tasks[task.id] = task
                if isinstance(write, SettleTask):
                    del self._tasks[task.id]
        yield from moved.values()
