"""The laws of a session, read from its journal by a model of their own.

`Journal` folds main commits one at a time and checks at every boundary what must hold there: an
outcome with all that follows from it in one commit (TK-10), terminal tasks never written again
(IV-07), the holder rule of input records (D01), one join an exchange and one successor a join
(IV-20). `outcome_faults` compares results with the counter outside (FM-07), `usage_faults` the
usage list with what providers reported (IV-22), `end_faults` what must hold once nothing is live.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec import UNSET, Struct

from perdure.records.codec import decode, decode_json
from perdure.records.entries import EntryMeta
from perdure.records.seqs import Seq
from perdure.records.writes import (
    AppendList,
    Commit,
    InsertEntry,
    InsertTask,
    PatchConversation,
    PatchTask,
    RetireScope,
    SettleTask,
    SetValue,
    Write,
)

TERMINAL: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "generation": frozenset({"done", "failed", "aborted"}),
        "tool": frozenset({"done", "aborted"}),
        "post_tools": frozenset({"done", "aborted"}),
        "approval": frozenset({"granted", "denied", "cancelled"}),
    }
)

FINAL: Final = frozenset({"answered", "stopped", "failed", "aborted", "withdrawn", "placed"})

MOVES: Final[Mapping[str | None, frozenset[str]]] = MappingProxyType(
    {
        None: frozenset({"queued", "open", "placed"}),
        "queued": frozenset({"open", "withdrawn", "placed"}),
        "open": frozenset({"answered", "stopped", "failed", "aborted"}),
    }
)
"""What an input's state may become (D01); a write of an idle conversation is placed at once."""


class TaskRow(Struct, kw_only=True):
    """One task as the journal tells it."""

    id: Seq
    kind: str
    status: str
    state: dict[str, Any]
    at_entry: Seq | None = None
    statuses: list[str]
    marked: bool = False

    @property
    def is_live(self) -> bool:
        """Say whether it is unfinished."""
        return self.status not in TERMINAL[self.kind]


class ResultRow(Struct, frozen=True, kw_only=True):
    """One tool result: whose, for which call, with which outcome."""

    id: Seq
    answers: Seq
    call_index: int
    outcome: str
    written_by: Seq


class Journal:
    """A session folded from its main commits; `faults` names every law that did not hold."""

    def __init__(self) -> None:
        self.tasks: dict[Seq, TaskRow] = {}
        self.inputs: dict[Seq, dict[str, Any]] = {}
        self.requests: dict[str, Seq] = {}
        self.inboxes: dict[Seq, list[Seq]] = {}
        self.calls: dict[Seq, int] = {}
        self.results: list[ResultRow] = []
        self.usage: list[tuple[Seq, int]] = []
        self.attempts: dict[tuple[Seq, int], str] = {}
        self.retired: Counter[str] = Counter()
        self.faults: list[str] = []
        self.last_seq = Seq(0)
        self.commits = 0

    def fold(self, commits: Iterable[Commit]) -> "Journal":
        """Apply commits in order and check each boundary."""
        for commit in commits:
            self._apply(commit)
        return self

    def fault(self, commit: Commit, text: str) -> None:
        """Note a broken law."""
        self.faults.append(f"commit {commit.first_seq}-{commit.last_seq}: {text}")

    def _apply(self, commit: Commit) -> None:
        self.commits += 1
        if commit.first_seq <= self.last_seq:
            self.fault(commit, f"overlaps the commit that ends at {self.last_seq}")
        self.last_seq = commit.last_seq
        settled: list[TaskRow] = []
        for write in commit.writes:
            self._write(commit, write, settled)
        for task in settled:
            self._check_settlement(commit, task)
        self._check_births(commit, has_settled=bool(settled))
        self._check_holders(commit)

    # Writes.

    def _write(self, commit: Commit, write: Write, settled: list[TaskRow]) -> None:
        match write:
            case InsertTask():
                self.tasks[write.seq] = TaskRow(
                    id=write.seq,
                    kind=write.kind,
                    status=write.status,
                    state=decode_json(write.state_json),
                    at_entry=None if write.at_entry is UNSET else write.at_entry,
                    statuses=[write.status],
                )
            case PatchTask() | SettleTask():
                task = self._change(commit, write)
                if task is not None and isinstance(write, SettleTask):
                    settled.append(task)
            case InsertEntry():
                self._entry(write)
            case PatchConversation() if write.inbox is not UNSET:
                self.inboxes[write.conv_id] = [item.id for item in write.inbox]
            case SetValue():
                self._value(commit, write)
            case AppendList() if write.namespace == "perdure.usage":
                element = decode_json(write.value_json)
                self.usage.append((Seq(element["task"]), element["attempt"]))
            case RetireScope():
                self.retired[write.working_scope] += 1
            case _:
                pass

    def _change(self, commit: Commit, write: PatchTask | SettleTask) -> TaskRow | None:
        task = self.tasks.get(write.task_id)
        if task is None or not task.is_live:
            self.fault(commit, f"writes to the finished or unknown task {write.task_id}")
            return None
        attempt = task.state.get("attempt", 1)
        if write.state_json is not UNSET:
            task.state.update(decode_json(write.state_json))
        for name in write.unset:
            task.state.pop(name, None)
        if isinstance(write, PatchTask):
            task.marked = task.marked or write.abort_requested is not UNSET
            if write.status is UNSET:
                return task
        assert write.status is not UNSET
        task.status = write.status
        task.statuses.append(write.status)
        if task.kind == "generation" and task.status in ("retry_wait", "done", "failed", "aborted"):
            why = task.state.get("error", task.status) if task.status != "done" else "done"
            self.attempts[(task.id, attempt)] = why
        return task

    def _entry(self, write: InsertEntry) -> None:
        meta = decode(write.meta_json, EntryMeta)
        if write.kind == "assistant" and write.payload_json is not UNSET:
            parts = decode_json(write.payload_json)["message"]["content"]
            self.calls[write.seq] = sum(part["type"] == "toolCall" for part in parts)
        elif write.kind == "tool_result":
            assert meta.answers is not UNSET
            self.results.append(
                ResultRow(
                    id=write.seq,
                    answers=meta.answers,
                    call_index=0 if write.call_index is UNSET else write.call_index,
                    outcome="" if meta.outcome is UNSET else meta.outcome,
                    written_by=Seq(0) if write.written_by is UNSET else write.written_by,
                )
            )

    def _value(self, commit: Commit, write: SetValue) -> None:
        if write.namespace == "perdure.request-input":
            self.requests[write.key] = Seq(decode(write.value_json, int))
        if write.namespace != "perdure.input":
            return
        input_id = Seq(int(write.key))
        record = decode_json(write.value_json)
        before = self.inputs.get(input_id, {}).get("state")
        if record["state"] not in MOVES.get(before, frozenset[str]()):
            self.fault(commit, f"input {input_id} moves from {before!r} to {record['state']!r}")
        self.inputs[input_id] = record

    # What one commit must hold together.

    def _check_settlement(self, commit: Commit, task: TaskRow) -> None:
        scopes = [w.working_scope for w in commit.writes if isinstance(w, RetireScope)]
        if scopes.count(str(task.id)) != 1:
            self.fault(commit, f"{task.kind} {task.id} settles without retiring its scope")
        entries = [w for w in commit.writes if isinstance(w, InsertEntry)]
        mine = [entry for entry in entries if entry.written_by == task.id]
        born = Counter(w.kind for w in commit.writes if isinstance(w, InsertTask))
        if task.kind == "tool" and [entry.kind for entry in mine] != ["tool_result"]:
            self.fault(commit, f"tool {task.id} settles with {[e.kind for e in mine]}")
        if task.kind == "generation" and task.status == "done":
            self._check_answer(commit, task, mine, born)
        if task.kind == "post_tools" and born["generation"] not in self._successors(task):
            self.fault(commit, f"join {task.id} settles with {born['generation']} successors")

    def _check_answer(
        self, commit: Commit, task: TaskRow, mine: Sequence[InsertEntry], born: Counter[str]
    ) -> None:
        if [entry.kind for entry in mine] != ["assistant"]:
            self.fault(commit, f"generation {task.id} is done with {[e.kind for e in mine]}")
            return
        calls = self.calls[mine[0].seq]
        if born["tool"] != calls or born["post_tools"] != bool(calls):
            self.fault(commit, f"generation {task.id} with {calls} calls creates {dict(born)}")
        if calls and born["generation"]:
            self.fault(commit, f"generation {task.id} goes on before its tools")

    def _successors(self, join: TaskRow) -> tuple[int, ...]:
        """Say how many generations a join may create: one, unless its inputs end here (IV-20).

        The last settlement of a cancellation starts what was accepted after it (D38).
        """
        ended = [self.inputs[Seq(one)]["state"] for one in join.state.get("inputs", ())]
        if join.status == "aborted" or "aborted" in ended:
            return (0, 1)
        return (0,) if ended and all(state in FINAL for state in ended) else (1,)

    def _check_births(self, commit: Commit, *, has_settled: bool) -> None:
        """A generation comes from an acceptance or a settlement, never by itself (IV-19)."""
        opened = {
            int(write.key)
            for write in commit.writes
            if isinstance(write, SetValue) and write.namespace == "perdure.input"
        }
        for write in commit.writes:
            if isinstance(write, InsertTask) and write.kind == "generation":
                owes = set(self.tasks[write.seq].state.get("inputs", ()))
                if not has_settled and not owes & opened:
                    self.fault(commit, f"generation {write.seq} comes from nowhere")

    def _check_holders(self, commit: Commit) -> None:
        held: list[int] = []
        for task in self.tasks.values():
            if task.is_live:
                held.extend(task.state.get("inputs", ()))
        is_open = sorted(key for key, one in self.inputs.items() if one["state"] == "open")
        if sorted(held) != is_open:
            self.fault(commit, f"inputs {is_open} are open, live tasks hold {sorted(held)}")
        queued = sorted(key for key, one in self.inputs.items() if one["state"] == "queued")
        waiting = sorted(one for inbox in self.inboxes.values() for one in inbox)
        if waiting != queued:
            self.fault(commit, f"inputs {queued} are queued, inboxes hold {waiting}")


def end_faults(journal: Journal) -> list[str]:
    """Say what must hold once nothing is live: every call answered, every input final."""
    faults = list(journal.faults)
    live = [task.id for task in journal.tasks.values() if task.is_live]
    if live:
        faults.append(f"tasks {live} are live at the end")
    answered = Counter((row.answers, row.call_index) for row in journal.results)
    expected = {(entry, at) for entry, calls in journal.calls.items() for at in range(calls)}
    if set(answered) != expected or any(count != 1 for count in answered.values()):
        faults.append(f"calls {sorted(expected)} are answered as {sorted(answered.items())}")
    joins = Counter(
        task.state["generation"] for task in journal.tasks.values() if task.kind == "post_tools"
    )
    asked = [
        task.id
        for task in journal.tasks.values()
        if task.kind == "generation" and task.state.get("calls")
    ]
    if joins != Counter(asked):
        faults.append(f"exchanges of generations {asked} have joins {dict(joins)}")
    unfinished = {key: one["state"] for key, one in journal.inputs.items()}
    unfinished = {key: state for key, state in unfinished.items() if state not in FINAL}
    if unfinished:
        faults.append(f"inputs {unfinished} are not final at the end")
    twice = [scope for scope, count in journal.retired.items() if count > 1]
    if twice:
        faults.append(f"scopes {twice} are retired twice")
    return faults


def outcome_faults(
    journal: Journal, count_of: Callable[[TaskRow], int], *, safe: frozenset[str]
) -> list[str]:
    """Compare every call's outcome with the counter outside the store (FM-07)."""
    faults: list[str] = []
    for row in journal.results:
        task = journal.tasks.get(row.written_by)
        if task is None or task.kind != "tool":
            if row.outcome != "notStarted":
                faults.append(f"result {row.id} of no tool says {row.outcome!r}")
            continue
        count = count_of(task)
        if not _agrees(row.outcome, count, is_safe=task.state["name"] in safe):
            faults.append(
                f"call {task.state['name']!r} (task {task.id}) says {row.outcome!r}, "
                f"the counter says {count}"
            )
        if row.outcome in ("finished", "interrupted") and "running" not in task.statuses:
            faults.append(f"call {task.id} acted without a committed intent")
    return faults


def _agrees(outcome: str, count: int, *, is_safe: bool) -> bool:
    match outcome:
        case "finished":
            return count >= 1 if is_safe else count == 1
        case "denied" | "notStarted":
            return count == 0
        case "interrupted":
            return is_safe or count <= 1
        case _:
            return False


def usage_faults(journal: Journal, reported: Iterable[tuple[int, int]]) -> list[str]:
    """Compare the usage list with what providers said: once each, with its attempt's outcome.

    A report that was lost belongs to an attempt that was interrupted or aborted, or to a poll that
    was and is made again.
    """
    said = set(reported)
    stored = Counter((int(task), attempt) for task, attempt in journal.usage)
    faults = [
        f"usage of attempt {key} is stored {count} times"
        for key, count in stored.items()
        if count > 1
    ]
    faults += [f"usage of attempt {key} was never reported" for key in stored if key not in said]
    for task, attempt in said - set(stored):
        why = journal.attempts.get((Seq(task), attempt))
        was_deferred = "deferred" in journal.tasks[Seq(task)].statuses
        if why not in ("interrupted", "aborted", None) and not was_deferred:
            faults.append(f"usage of attempt {(task, attempt)}, which ended {why!r}, is missing")
    for (task, attempt), why in journal.attempts.items():
        if why == "interrupted" and (task, attempt) in stored:
            faults.append(f"interrupted attempt {(task, attempt)} has usage")
    return faults
