"""Harness: one open session.

Opening starts nothing and, on a session that has commits, writes nothing (OP-01); on an empty one
it creates the root conversation with its initial values in one command (OP-02).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import msgspec

from perdure.drive.kind import Reduces, TaskKind
from perdure.drive.limits import Limits
from perdure.drive.outcomes import DriveResult, Inspection
from perdure.drive.scheduler import CloseReport, Scheduler
from perdure.errors import Rejected
from perdure.harness.approvals import decide_approval
from perdure.harness.conversation import Conversation
from perdure.harness.core import Core
from perdure.harness.options import HarnessOptions, registry
from perdure.harness.reports import Reports
from perdure.harness.watch_start import Asked, Reading
from perdure.harness.watching import Watch, Watches
from perdure.kinds.approval import Approval
from perdure.kinds.content import CORE_CONTENT, ContentKind
from perdure.kinds.generation import Generation
from perdure.kinds.hooks import Hooks
from perdure.kinds.ledger import Ledger
from perdure.kinds.post_tools import PostTools
from perdure.kinds.projection import Projections
from perdure.kinds.refusals import load_refused
from perdure.kinds.secrets import Secrets
from perdure.kinds.services import Services, SettingsBook
from perdure.kinds.tool import ToolCall
from perdure.line.command import Command, WorkingCommand
from perdure.line.facts import KindTable
from perdure.line.line import Line, Listener, PreviewListener, check_outside
from perdure.line.raised import raising
from perdure.ports import Storage
from perdure.records.addresses import (
    ACTIVE_TOOLS,
    MODEL,
    THINKING,
    Address,
    SessionList,
    SessionValue,
    WorkingScope,
)
from perdure.records.approvals import ApprovalOutcome, Remember, Verdict
from perdure.records.codec import decode, decode_json
from perdure.records.conversations import ConversationState
from perdure.records.entries import ModelId
from perdure.records.seqs import NO_SEQ, Seq
from perdure.records.sessions import (
    ConversationScan,
    ListElement,
    ListPage,
    SessionInfo,
)
from perdure.records.settings import ALL_TOOLS
from perdure.records.tasks import Task
from perdure.records.usage import UsageTotals
from perdure.records.writes import Commit, InsertConversation

T = TypeVar("T")

CLOSE_GRACE_S: Final = 30.0
"""How long close waits for running handlers (D08)."""


class Harness:
    """One open session: conversations, drive, inspect, values, usage."""

    def __init__(self, core: Core, root_id: Seq) -> None:
        """Hold an opened session; use `Harness.open`."""
        self._core = core
        self._root_id = root_id
        self._closing: asyncio.Task[CloseReport] | None = None

    @classmethod
    async def open(cls, storage: Storage, options: HarnessOptions) -> "Harness":
        """Open a session over a storage whose writer this process is.

        Raises:
            Rejected: `invariant`, naming what this release cannot run (OP-03, OP-28).
        """
        telemetry = options.telemetry
        if not telemetry.is_on:
            return await cls._open(storage, options)
        info = storage.info
        with telemetry.span("harness.open", session=info.id, epoch=info.epoch) as span:
            harness = await cls._open(storage, options)
            live = harness.inspect()
            span.set(
                head=storage.last_seq, live=len(live.start) + len(live.inflight) + len(live.waiting)
            )
            return harness

    @classmethod
    async def _open(cls, storage: Storage, options: HarnessOptions) -> "Harness":
        reports = Reports(options.on_error)
        services, kinds, table = _assemble(storage, options, reports)
        storage = raising(storage, table)
        line = Line(
            storage,
            clock=options.clock,
            kinds=table,
            telemetry=options.telemetry,
            report=lambda error: services.report(error, None),
        )
        line.residency.listen_drops(services.projections.forget)
        services.ledger.attach(line, storage)
        await line.hydrate()
        await _check_live(line, storage, kinds)
        _check_content(line, services, options)
        await load_refused(storage, services.projections)
        root_id = await _root(line, storage, services)
        scheduler = Scheduler(
            line,
            kinds,
            clock=options.clock,
            limits=options.limits or Limits(),
            report=services.report,
        )
        reducers = {name: kind for name, kind in kinds.items() if isinstance(kind, Reduces)}
        watches = Watches(
            line,
            Reading(line, storage, reducers),
            report=services.report,
            hide=lambda text: services.secrets.text(text)[0],
        )
        reports.listen(watches.on_report)
        core = Core(
            line,
            scheduler,
            storage,
            services,
            watches,
            new_model=await _new_model(line, root_id, options),
        )
        return cls(core, root_id)

    async def __aenter__(self) -> "Harness":
        """Answer itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    @property
    def info(self) -> SessionInfo:
        """Answer session id, name, format and epoch."""
        return self._core.storage.info

    # Conversations.

    async def root(self) -> Conversation:
        """Answer the conversation created without parent or owner (OP-23)."""
        return Conversation(self._core, self._root_id)

    async def conversation(self, conv_id: Seq) -> Conversation | None:
        """Answer a conversation by id, None when there is none."""
        state = await self._core.line.conversation(conv_id)
        return None if state is None else Conversation(self._core, conv_id)

    async def conversations(
        self,
        *,
        owner: Seq | None = None,
        parent: Seq | None = None,
        after: Seq | None = None,
        limit: int = 100,
        as_of: Seq | None = None,
    ) -> Sequence[ConversationState]:
        """Answer a page of conversations by id, as they are or were at a boundary (TI-03)."""
        return await self._core.storage.scan_conversations(
            ConversationScan(owner=owner, parent=parent, after=after, limit=limit, as_of=as_of)
        )

    # Work.

    def inspect(self) -> Inspection:
        """Answer all live tasks by role; starts nothing (OP-04)."""
        return self._core.scheduler.inspect()

    async def drive(self, *, poll_deferred: bool = False, wait_timers: bool = True) -> DriveResult:
        """Run every independent tree until nothing is live, or nothing can move (OP-07)."""
        return await self._core.scheduler.drive(
            None, poll_deferred=poll_deferred, wait_timers=wait_timers
        )

    async def decide_approval(
        self,
        approval_id: Seq,
        decision: Verdict,
        *,
        details: object = None,
        by: str = "api",
        remember: Remember | None = None,
    ) -> ApprovalOutcome:
        """Grant or deny what waits for a person; the first decision counts (D17, AQ-06).

        A grant lets the held call run with the arguments that were shown, on the next drive; a
        deny settles it now, with the text of `details` for the model. `by` says who decided. With
        `remember` such calls run from now on without a question (AQ-10).

        Raises:
            Rejected: `not_found`; `unknown_target` for a task of another kind; `busy` while it is
                not announced yet; `invariant` for anything but grant and deny, and for what cannot
                be remembered.
        """
        return await decide_approval(
            self._core, approval_id, decision, details=details, by=by, remember=remember
        )

    def watch(self, *, limit: int = 50, after: Seq | None = None) -> Watch:
        """Watch every conversation; the base is the root's, its tasks are the session's.

        `limit` and `after` as in `Conversation.watch`.
        """
        asked = Asked(conv_id=self._root_id, whole=True, limit=limit, after=after)
        return Watch(self._core.watches, asked)

    def on_preview(self, listener: PreviewListener) -> Callable[[], None]:
        """Call `listener` with streamed frames and progress; answers the way out."""
        return self._core.line.listen_previews(listener)

    def on_commit(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` after every commit, in commit order; answers the way out."""
        return self._core.line.listen(listener)

    # Commands, values, the journal.

    async def command(
        self, build: Callable[[Command], Awaitable[object] | object], *, barrier: bool = False
    ) -> bool:
        """Run one main command of host code; True after a commit."""
        return await self._core.submit(build, barrier=barrier, host=True)

    async def working_command(
        self, scope: WorkingScope, build: Callable[[WorkingCommand], Awaitable[object] | object]
    ) -> bool:
        """Run one command of a working scope; True after a commit."""
        return await self._core.shielded(self._core.line.submit_working(scope, build, host=True))

    async def get_value(self, address: SessionValue[Any] | Address, default: T) -> Any | T:
        """Answer a session or working value, or `default` when nothing is stored."""
        raw = await self._core.line.value(_bound(address, "value"))
        return default if raw is None else decode_json(raw)

    async def set_value(self, address: SessionValue[Any], value: object) -> None:
        """Set a session value."""

        def build(tx: Command) -> None:
            tx.set_value(address, value)

        await self.command(build)

    async def delete_value(self, address: SessionValue[Any]) -> None:
        """Delete a session value."""
        await self.command(lambda tx: tx.delete_value(address))

    async def append_list(
        self, address: SessionList[Any], value: object, *, tag: str | None = None
    ) -> Seq:
        """Append to a session list; answers the element's seq."""
        seqs: list[Seq] = []
        await self.command(lambda tx: seqs.append(tx.append_list(address, value, tag=tag)))
        return seqs[0]

    async def read_list(
        self, address: SessionList[Any] | Address, page: ListPage
    ) -> Sequence[ListElement]:
        """Answer a page of a session or working list."""
        return await self._core.storage.elements(_bound(address, "list"), page)

    async def commits(self, *, after: Seq = NO_SEQ, limit: int = 100) -> Sequence[Commit]:
        """Answer main commits in order (BR-10)."""
        return await self._core.storage.commits(after=after, limit=limit)

    async def boundary_at(self, time_ms: int) -> Seq:
        """Answer the newest boundary at or before a wall time (TI-04)."""
        return await self._core.storage.boundary_at(time_ms)

    async def usage_totals(
        self, conv_id: Seq | None = None, *, as_of: Seq | None = None
    ) -> UsageTotals:
        """Answer what a conversation, or the session, used; unknown attempts apart (US-10).

        With `as_of`, what was reported by that main boundary (TI-05).
        """
        return await self._core.usage.totals(conv_id, as_of=as_of)

    # Closing.

    async def close(
        self, *, drain: float = 0.0, grace: float | None = CLOSE_GRACE_S
    ) -> CloseReport:
        """Refuse commands, signal handlers, wait up to `grace` seconds, release the session (D08).

        For `drain` seconds of the injected clock before that, running handlers may still settle,
        while nothing is launched. Settles nothing itself, marks nothing, retires nothing (OP-13).
        A second call shares the first one's report; cancelling a caller ends its wait only.

        Raises:
            Rejected: `nested_command`, inside a command: it would wait for itself (LN-20).
        """
        check_outside(self._core.line)
        if self._closing is None:
            self._closing = self._core.kept(self._close(drain, grace))
        return await asyncio.shield(self._closing)

    async def _close(self, drain: float, grace: float | None) -> CloseReport:
        core = self._core
        core.refuse()
        await core.scheduler.drain(ms=round(drain * 1000))
        core.line.seal()
        core.wake()
        core.watches.close()
        try:
            report = await core.scheduler.close(grace_s=grace)
            await core.line.drained()
        finally:
            await core.storage.close()
            await core.services.models.close()
        return msgspec.structs.replace(report, threads=tuple(core.services.threads.stuck()))


def _bound(address: object, kind: str) -> Address:
    """Answer an address of this kind; raises Rejected `invariant` for any other (VL-04)."""
    bound = address
    if isinstance(address, SessionValue | SessionList):
        bound = cast("SessionValue[Any] | SessionList[Any]", address).address()
    if not isinstance(bound, Address) or bound.kind != kind:
        raise Rejected("invariant", f"{address!r} is no {kind} of the session")
    return bound


def _assemble(
    storage: Storage, options: HarnessOptions, reports: Reports
) -> tuple[Services, dict[str, TaskKind], KindTable]:
    contents: dict[str, ContentKind] = dict(CORE_CONTENT)
    for kind in options.contents:
        if kind.facts.name in contents:
            raise Rejected("invariant", f"two content kinds are named {kind.facts.name!r}")
        contents[kind.facts.name] = kind
    services = Services(
        session_id=storage.info.id,
        models=options.models,
        tools=MappingProxyType(dict(registry(options.tools))),
        clock=options.clock,
        randomness=options.randomness,
        threads=options.threads,
        telemetry=options.telemetry,
        processes=options.processes,
        resources=MappingProxyType(dict(options.resources)),
        permissions=options.permissions,
        policy=options.approvals,
        secrets=Secrets() if options.secrets is None else options.secrets,
        initial=options.initial,
        system_prompt=options.system_prompt,
        hooks=Hooks() if options.hooks is None else options.hooks,
        hook_seconds=options.hook_seconds,
        yields_max=options.yields_max,
        contents=contents,
        projections=Projections(contents),
        book=SettingsBook(),
        ledger=Ledger(options.clock, options.budget),
        report=reports,
    )
    kinds: list[TaskKind] = [
        Generation(services),
        ToolCall(services),
        PostTools(services),
        Approval(services),
        *options.kinds,
    ]
    table = KindTable([kind.facts for kind in kinds], [kind.facts for kind in contents.values()])
    return services, {kind.facts.name: kind for kind in kinds}, table


async def _check_live(line: Line, storage: Storage, kinds: dict[str, TaskKind]) -> None:
    """Refuse live tasks of unknown kinds or statuses, and dangling dependencies (OP-03)."""
    faults: list[str] = []
    named: dict[Seq, Seq] = {}
    for task in line.residency.live_tasks():
        named.update((target, task.id) for target in task.after)
        fault = _task_fault(task, kinds.get(task.kind))
        if fault is not None:
            faults.append(fault)
    absent = [target for target in named if line.residency.task(target) is None]
    if absent:
        found = await storage.tasks(absent)
        faults += [
            f"task {named[target]} depends on task {target}, which does not exist"
            for target in absent
            if target not in found
        ]
    if faults:
        raise Rejected("invariant", "this release cannot run the session: " + "; ".join(faults))


def _task_fault(task: Task, kind: TaskKind | None) -> str | None:
    if kind is None:
        return f"task {task.id} is of the unknown kind {task.kind!r}"
    if task.status not in kind.facts.roles:
        return f"{task.kind} task {task.id} has the unknown status {task.status!r}"
    try:
        decode(task.state_json, kind.facts.state)
    except ValueError as error:
        return f"the state of {task.kind} task {task.id} does not fit: {error}"
    return None


def _check_content(line: Line, services: Services, options: HarnessOptions) -> None:
    """Refuse entries of unknown kinds on live context lists, or report them once (OP-28)."""
    unknown: dict[str, list[Seq]] = {}
    for conv_id in dict.fromkeys(task.conv_id for task in line.residency.live_tasks()):
        state = line.residency.conversation(conv_id)
        for entry_id in () if state is None else state.context:
            entry = line.residency.entry(entry_id)
            if entry is not None and line.kinds.content(entry.kind) is None:
                unknown.setdefault(entry.kind, []).append(entry_id)
    if not unknown:
        return
    named = "; ".join(f"{kind!r}: {ids}" for kind, ids in unknown.items())
    if options.unknown_content == "skip":
        services.report(
            RuntimeWarning(f"entries of unknown content kinds are left out: {named}"), None
        )
        return
    raise Rejected(
        "invariant",
        f"entries of unknown content kinds stand on live context lists: {named}; register the "
        f"kind, or open with unknown_content='skip'",
    )


async def _root(line: Line, storage: Storage, services: Services) -> Seq:
    """Find the root, or create it with its initial values in one command (OP-02, VL-11)."""
    if line.last_seq != NO_SEQ:
        # The root is what the session's first commit created; nothing grows with history here.
        for write in (await storage.commits(after=NO_SEQ, limit=1))[0].writes:
            if isinstance(write, InsertConversation):
                return write.seq
        raise Rejected("invariant", "the session's first commit creates no root conversation")
    ids: list[Seq] = []

    def build(tx: Command) -> None:
        conv_id = tx.insert_conversation()
        tx.set_value(MODEL.bind(conv_id), services.initial.model)
        tx.set_value(THINKING.bind(conv_id), services.initial.thinking)
        tx.set_value(ACTIVE_TOOLS.bind(conv_id), [ALL_TOOLS])
        ids.append(conv_id)

    await line.submit(build, barrier=True)
    return ids[0]


async def _new_model(line: Line, root_id: Seq, options: HarnessOptions) -> ModelId | None:
    """Answer the model to write with the first acceptance, None when it is stored (OP-29)."""
    if not options.model_given:
        return None
    raw = await line.value(MODEL.bind(root_id))
    stored = None if raw is None else decode(raw, ModelId)
    return None if stored == options.initial.model else options.initial.model
