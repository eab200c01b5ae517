"""Conversation: the handle of one conversation.

A handle keeps its conversation resident from its first use until it is closed or collected
(RS-09). Every wait is an observer: cancelling it never cancels the work (D27).
"""

import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from perdure.drive.foreground import is_busy
from perdure.drive.outcomes import DriveResult
from perdure.errors import Rejected
from perdure.harness.acceptance import Acceptance, Cancelled, Request
from perdure.harness.cancellation import AbortReport, abort, shutdown
from perdure.harness.core import Core
from perdure.harness.forks import ForkContext, ForkRequest, fork, rewind
from perdure.harness.model_check import check_setting
from perdure.harness.results import finality, read_result
from perdure.harness.transcript import read_transcript
from perdure.harness.watch_start import Asked
from perdure.harness.watching import Watch
from perdure.kinds.reader import ConversationView
from perdure.line.command import Command
from perdure.records.addresses import (
    MODEL,
    THINKING,
    Address,
    ConversationList,
    ConversationValue,
    SessionValue,
)
from perdure.records.budgets import Budget, check_budget
from perdure.records.codec import checked_raw, decode_json
from perdure.records.conversations import ConversationState, QueueMode
from perdure.records.core_values import check_core_value
from perdure.records.entries import Entry
from perdure.records.images import with_checked_images
from perdure.records.inputs import Accepted, InputMode, InputResult
from perdure.records.messages import InputContent, normalize_input
from perdure.records.seqs import Seq
from perdure.records.sessions import EntryScan, ListElement, ListPage, TaskScan
from perdure.records.tasks import Task
from perdure.records.watch import EntryPage

T = TypeVar("T")


class Conversation:
    """One conversation: accept, drive, read, configure, cancel."""

    def __init__(self, core: Core, conv_id: Seq) -> None:
        """Bind to the conversation; made by `Harness.root` and `Harness.conversation`."""
        self.id = conv_id
        self._core = core
        self._acceptance = Acceptance(core)
        core.line.residency.attach(conv_id)
        self._detach = weakref.finalize(self, core.line.residency.detach, conv_id)

    async def __aenter__(self) -> "Conversation":
        """Use as a context manager to say how long the conversation stays resident."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop keeping the conversation resident."""
        self._detach()

    # Reading.

    async def state(self, *, as_of: Seq | None = None) -> ConversationState:
        """Answer the conversation's state, now or at a main boundary (TI-03).

        Raises:
            Rejected: `unknown_target`, when there is no such conversation then; `invariant`, when
                `as_of` is no boundary.
        """
        if as_of is None:
            state = await self._core.line.conversation(self.id)
        else:
            found = await self._core.storage.conversations([self.id], as_of=as_of)
            state = found.get(self.id)
        if state is None:
            raise Rejected("unknown_target", f"there is no conversation {self.id}")
        return state

    async def entry(self, entry_id: Seq, *, as_of: Seq | None = None) -> Entry | None:
        """Answer an entry of this conversation or of its inherited prefix, None for any other.

        With `as_of`, None too for what came after that main boundary.
        """
        if as_of is not None:
            await self.state(as_of=as_of)
        entry = await ConversationView(self._core.line, self.id).entry(entry_id)
        return entry if entry is None or as_of is None or entry.id <= as_of else None

    async def task(self, task_id: Seq, *, as_of: Seq | None = None) -> Task | None:
        """Answer a task of this conversation, now or at a main boundary (TI-02)."""
        if as_of is None:
            task = await self._core.line.task(task_id)
        else:
            task = (await self._core.storage.tasks([task_id], as_of=as_of)).get(task_id)
        return task if task is not None and task.conv_id == self.id else None

    async def entries(
        self,
        *,
        after: Seq | None = None,
        before: Seq | None = None,
        newest_first: bool = False,
        limit: int = 100,
        as_of: Seq | None = None,
    ) -> EntryPage:
        """Answer a page of the transcript, inherited entries included; limit 1 to 10,000.

        The page says at which main boundary it was read: a client leaves out what a stream says
        of these entries up to there (WT-08).
        """
        boundary = await self._core.line.boundary() if as_of is None else as_of
        scan = EntryScan(
            after=after,
            before=before,
            limit=limit,
            order="desc" if newest_first else "asc",
            as_of=boundary,
        )
        state = await self.state(as_of=as_of)
        entries = await read_transcript(
            self._core.storage, state, scan, lineage=self._core.line.lineage
        )
        return EntryPage(entries, as_of=boundary, before=before, after=after)

    async def tasks(
        self,
        *,
        live: bool | None = None,
        after: Seq | None = None,
        limit: int = 100,
        as_of: Seq | None = None,
    ) -> Sequence[Task]:
        """Answer a page of tasks by id; `live` True answers those unfinished now, or then."""
        return await self._core.storage.scan_tasks(
            TaskScan(conv_id=self.id, live=live, after=after, limit=limit, as_of=as_of)
        )

    def watch(
        self,
        *,
        limit: int = 50,
        owned: bool = False,
        values: Sequence[ConversationValue[Any] | SessionValue[Any]] = (),
        after: Seq | None = None,
    ) -> Watch:
        """Watch this conversation: a base, then every commit once, deltas and signals (WT-01).

        The base holds the newest `limit` entries, the live tasks, the queue, and the requested
        `values`; with `owned`, conversations that its tasks own are watched too. With `after`, a
        main boundary that was seen before, the batches since then come instead of a base, or
        `SnapshotRequired` and a base (WB-16). Nothing begins before the first event is asked for,
        or `async with` is entered; `Watch` says what may be raised then.
        """
        asked = Asked(conv_id=self.id, owned=owned, limit=limit, values=tuple(values), after=after)
        return Watch(self._core.watches, asked)

    # Values and lists.

    async def get_value(
        self, address: ConversationValue[Any], default: T, *, as_of: Seq | None = None
    ) -> Any | T:
        """Answer the value at an address, or `default`; inherited ones included."""
        bound = self._at(address, ConversationValue)
        if as_of is None:
            raw = await self._core.line.value(bound)
        else:
            stored = await self._core.storage.value(bound, as_of=as_of)
            raw = stored.value_json if stored is not None else None
        return default if raw is None else decode_json(raw)

    async def set_value(self, address: ConversationValue[Any], value: object) -> None:
        """Set a value: a new immutable version.

        Raises:
            Rejected: `invariant`, for a protected address, a value it does not take, an unknown
                provider, or a thinking level that the model would drop (PV-02, PV-10).
        """
        bound = self._at(address, ConversationValue)
        if address in (MODEL, THINKING):
            services = self._core.services
            check_core_value(address.namespace, checked_raw(value))
            model = await self.get_value(MODEL, services.initial.model)
            thinking = await self.get_value(THINKING, services.initial.thinking)
            now = (value, thinking) if address == MODEL else (model, value)
            await check_setting(services.models, *now)
        await self._host(lambda tx: _ignore(tx.set_value(bound, value)))

    async def delete_value(self, address: ConversationValue[Any]) -> None:
        """Delete a value: a tombstone that masks inherited versions too."""
        bound = self._at(address, ConversationValue)
        await self._host(lambda tx: tx.delete_value(bound))

    async def append_list(
        self, address: ConversationList[Any], value: object, *, tag: str | None = None
    ) -> Seq:
        """Append one immutable element; answers its seq."""
        seqs: list[Seq] = []
        bound = self._at(address, ConversationList)
        await self._host(lambda tx: seqs.append(tx.append_list(bound, value, tag=tag)))
        return seqs[0]

    async def read_list(
        self, address: ConversationList[Any], page: ListPage
    ) -> Sequence[ListElement]:
        """Answer a page of a list, inherited ranges included."""
        return await self._core.storage.elements(self._at(address, ConversationList), page)

    async def command(
        self, build: Callable[[Command], Awaitable[object] | object], *, barrier: bool = False
    ) -> bool:
        """Run one command of host code; True after a commit.

        Unbound conversation tokens in it belong to this conversation (LN-18).
        """
        return await self._core.submit(build, barrier=barrier, host=True, conv_id=self.id)

    async def configure(
        self,
        *,
        label: str | UnsetType | None = UNSET,
        steering_mode: QueueMode | UnsetType = UNSET,
        follow_up_mode: QueueMode | UnsetType = UNSET,
    ) -> None:
        """Change label and queue modes in one write; what is left out stays (OP-26)."""
        for mode in (steering_mode, follow_up_mode):
            if mode is not UNSET and mode not in ("all", "one-at-a-time"):
                raise Rejected(
                    "invariant", f"the queue mode {mode!r} is not 'all' or 'one-at-a-time'"
                )
        await self._host(
            lambda tx: tx.patch_conversation(
                self.id, label=label, steering_mode=steering_mode, follow_up_mode=follow_up_mode
            )
        )

    async def reset_context(
        self,
        ids: Sequence[Seq] = (),
        *,
        expect_prefix_version: int | None = None,
        force: bool = False,
    ) -> None:
        """Replace the context list; creates no work (CX-13, CX-24).

        Raises:
            Rejected: `version_mismatch`; `busy` while a request or call is open, or, without
                `force`, while a generation waits to retry or poll.
        """

        async def build(tx: Command) -> None:
            state = await tx.conversation(self.id)
            if expect_prefix_version not in (None, state.prefix_version):
                raise Rejected(
                    "version_mismatch",
                    f"the context is at prefix version {state.prefix_version}, "
                    f"not {expect_prefix_version}",
                )
            waiting = [
                task.id
                for task in tx.live_tasks(self.id)
                if task.status in ("deferred", "retry_wait")
            ]
            if waiting and not force:
                raise Rejected(
                    "busy", f"generation {waiting[0]} waits to go on; pass force=True to reset"
                )
            tx.reset_context(self.id, ids)

        await self._core.submit(build)

    def _at(
        self, token: ConversationValue[Any] | ConversationList[Any], kind: type[object]
    ) -> Address:
        """Bind a token of this kind; raises Rejected `invariant` for any other (VL-04)."""
        if not isinstance(token, kind):
            raise Rejected("invariant", f"{token!r} is no {kind.__name__}")
        return token.bind(self.id)

    async def _host(self, build: Callable[[Command], None]) -> None:
        await self._core.submit(build, host=True)

    # Input.

    async def accept(
        self,
        content: InputContent,
        *,
        request_id: str | None = None,
        budget: Budget | None = None,
    ) -> Accepted:
        """Accept input durably; idle it opens a generation, busy it is queued as a follow-up.

        `budget` holds for everything that follows from the input (BG-02, BG-03).
        """
        return await self._admit("prompt", content, request_id, budget)

    async def follow_up(self, content: InputContent, *, request_id: str | None = None) -> Accepted:
        """Queue input for the next final answer; creates no generation by itself (QU-03)."""
        return await self._admit("followUp", content, request_id)

    async def steer(self, content: InputContent, *, request_id: str | None = None) -> Accepted:
        """Queue input for the next boundary of the running exchange (QU-05)."""
        return await self._admit("steer", content, request_id)

    async def next_run(self, content: InputContent, *, request_id: str | None = None) -> Accepted:
        """Queue input for the next explicit idle acceptance (QU-11)."""
        return await self._admit("nextRun", content, request_id)

    async def append_message(
        self, content: InputContent, *, request_id: str | None = None
    ) -> Accepted:
        """Add context without asking for an answer, at once or at a safe boundary (QU-02)."""
        return await self._admit("write", content, request_id)

    async def cancel_queued(self, input_id: Seq) -> Cancelled:
        """Withdraw a queued input: `cancelled`, `already_consumed` or `not_found` (QU-14)."""
        return await self._acceptance.cancel_queued(self.id, input_id)

    async def flush(self, *, budget: Budget | None = None) -> tuple[Seq, ...]:
        """Start a run of what a failed or stopped one left queued; answers its inputs (D38).

        A `budget` replaces those that these inputs came with (BG-12).

        Raises:
            Rejected: `busy`, or `nothing_to_do`.
        """
        check_budget(budget)
        return await self._acceptance.flush(self.id, budget=budget)

    # Forks.

    async def fork(
        self,
        *,
        at: Seq | None = None,
        as_of: Seq | None = None,
        context: ForkContext = "inherit",
        label: str | None = None,
        request_id: str | None = None,
    ) -> "Conversation":
        """Begin a conversation at an entry (`at`), at a commit's end (`as_of`), or now.

        It sees values, lists and transcript as they were there, and has the context of then, up to
        the entry and without an open exchange, or an empty one when `context` is "fresh". Tasks
        and queue stay here, and nothing is copied; neither sees what the other does later. Nothing
        runs.

        Raises:
            Rejected: `unknown_target`; `deleted`; `invariant`, for a seq inside a commit or for two
                targets; `request_conflict`.
        """
        request = ForkRequest(
            conv_id=self.id,
            at=at,
            as_of=as_of,
            context=context,
            label=label,
            request_id=request_id,
        )
        return Conversation(self._core, await fork(self._core, request))

    async def rewind(
        self,
        *,
        at: Seq | None = None,
        as_of: Seq | None = None,
        keep_running: bool = False,
        label: str | None = None,
        request_id: str | None = None,
    ) -> "Conversation":
        """Cancel this conversation's foreground, wait for its end, and fork; answers the fork.

        This conversation stays as it is, and so do the world and its files: only the new one goes
        back. `keep_running` cancels nothing. A target that is refused cancels nothing either.

        Raises:
            Rejected: as `fork`; `nested_command`, from where the wait could never end.
            Closed: the session closed before everything had ended; nothing was forked.
        """
        request = ForkRequest(
            conv_id=self.id,
            verb="rewind",
            at=at,
            as_of=as_of,
            label=label,
            request_id=request_id,
            keep_running=keep_running,
        )
        return Conversation(self._core, await rewind(self._core, request))

    async def _admit(
        self,
        mode: InputMode,
        content: InputContent,
        request_id: str | None,
        budget: Budget | None = None,
    ) -> Accepted:
        check_budget(budget)
        messages, repairs = normalize_input(content)
        return await self._acceptance.accept(
            Request(
                conv_id=self.id,
                mode=mode,
                messages=with_checked_images(messages, "the input"),
                repairs=repairs,
                request_id=request_id,
                budget=budget,
            )
        )

    async def prompt(
        self,
        content: InputContent,
        *,
        request_id: str | None = None,
        budget: Budget | None = None,
    ) -> InputResult:
        """Accept, then drive until this input is final or the drive ends; answers its result.

        An aborted one is answered when everything that was marked has ended.

        Raises:
            Rejected: `nested_command`, from where that could never end; nothing is accepted then.
        """
        self._core.scheduler.check_free(self.id)
        accepted = await self.accept(content, request_id=request_id, budget=budget)
        await self._core.ensure_resident(self.id)
        await self._core.scheduler.drive(
            self.id, until=finality(self._core.line, accepted.input_id, self.id)
        )
        return await self.result(accepted.input_id)

    async def result(self, input_id: Seq) -> InputResult:
        """Answer what became of an input, now; raises Rejected `not_found`, `unknown_target`."""
        return await read_result(self._core.line, input_id, conv_id=self.id)

    async def wait(self, input_id: Seq) -> InputResult:
        """Wait until an input is final; observes only (D27)."""
        while True:
            changed = self._core.changed()
            result = await self.result(input_id)
            if result.final:
                return result
            self._core.line.check_usable()
            await changed

    # Work.

    async def drive(self, *, poll_deferred: bool = False, wait_timers: bool = True) -> DriveResult:
        """Run this conversation's tree until it is idle, suspended or closed."""
        await self._core.ensure_resident(self.id)
        return await self._core.scheduler.drive(
            self.id, poll_deferred=poll_deferred, wait_timers=wait_timers
        )

    async def wait_for_idle(self) -> None:
        """Wait until the conversation is idle; starts nothing (OP-18).

        Raises:
            Rejected: `nested_command`, from where that could never end.
        """
        self._core.scheduler.check_free(self.id)
        while True:
            changed = self._core.changed()
            self._core.line.check_usable()
            if not is_busy(self.id, self._core.line.kinds, self._core.line.residency):
                return
            await changed

    async def abort(self, *, only_if: Seq | None = None) -> AbortReport:
        """Mark the foreground and drain its queues; a drive performs the cancellation (CN-01)."""
        return await abort(self._core, self.id, only_if=only_if)

    async def shutdown(self) -> AbortReport:
        """Cancel everything the conversation owns, background work too, and drive that (CN-21)."""
        report = await shutdown(self._core, self.id)
        await self.drive()
        return report


def _ignore(_: object) -> None:
    """Turn a call with an answer into a step of a command."""
