"""What a session looks like from outside: read from storage alone, without lock or engine (CM-22).

Every figure is as of one main boundary. What the stored facts do not say is None.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from msgspec import UNSET, Struct

from perdure.errors import Rejected
from perdure.harness.spending import BudgetSpent, open_budgets
from perdure.harness.usage import UsageReader
from perdure.kinds.approval import Approval
from perdure.kinds.generation import Generation
from perdure.kinds.post_tools import PostTools
from perdure.kinds.states import GenerationState, ToolState
from perdure.kinds.tool import ToolCall
from perdure.ports import Storage
from perdure.records.addresses import MODEL, observed_window
from perdure.records.codec import decode
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry, EntryMeta, ModelId
from perdure.records.seqs import Seq
from perdure.records.sessions import ConversationScan, SessionInfo, TaskScan
from perdure.records.tasks import Role, Task
from perdure.records.usage import UsageTotals

PAGE: Final = 100
"""Conversations or tasks read at a time."""

ROLES: Final = MappingProxyType(
    {kind.facts.name: kind.facts.roles for kind in (Generation, ToolCall, PostTools, Approval)}
)
"""What each status of the core kinds means."""


class LiveTask(Struct, frozen=True, kw_only=True):
    """One unfinished task. `waits_for` says what must happen before it moves; `until_ms` when."""

    id: Seq
    conversation: Seq
    kind: str
    name: str | None
    status: str
    role: str
    waits_for: str
    until_ms: int | None
    is_marked: bool


class Queued(Struct, frozen=True, kw_only=True):
    """One queued input, by its first words."""

    id: Seq
    mode: str
    preview: str | None


class ContextSize(Struct, frozen=True, kw_only=True):
    """How much the next request carries: entries, tokens as last reported or estimated, window."""

    entries: int
    tokens: int
    is_estimate: bool
    window: int | None


class Overview(Struct, frozen=True, kw_only=True):
    """A session at one boundary; `conversation` is None before the first commit.

    `budgets` are those of the inputs that live work owes an answer, as they stand now; a look
    back has none, for a raised budget replaces the one before.
    """

    info: SessionInfo
    boundary: Seq
    conversation: Seq | None
    model: ModelId | None
    live: Sequence[LiveTask]
    queue: Sequence[Queued]
    context: ContextSize | None
    usage: UsageTotals
    budgets: Sequence[BudgetSpent] = ()

    @property
    def is_idle(self) -> bool:
        """Say that no task is live."""
        return not self.live


async def root_of(storage: Storage, *, as_of: Seq | None = None) -> ConversationState | None:
    """Find the conversation without parent or owner; None before the first commit."""
    after: Seq | None = None
    while True:
        page = await storage.scan_conversations(
            ConversationScan(after=after, limit=PAGE, as_of=as_of)
        )
        for state in page:
            if state.parent is UNSET and state.owner is UNSET:
                return state
        if len(page) < PAGE:
            return None
        after = page[-1].id


async def stored_model(storage: Storage, *, as_of: Seq | None = None) -> ModelId | None:
    """Answer the model of the root conversation, None when none is stored."""
    root = await root_of(storage, as_of=as_of)
    return None if root is None else await model_of(storage, root, as_of)


async def overview(
    storage: Storage, *, conv_id: Seq | None = None, as_of: Seq | None = None
) -> Overview:
    """Read a session now, or as it was at a main boundary.

    Raises:
        Rejected: `invariant` for an `as_of` that is no main boundary, `unknown_target` for a
            conversation that is not there.
    """
    live = [live_task(task) for task in await live_tasks(storage, as_of)]
    state = await _conversation(storage, conv_id, as_of)
    boundary = as_of
    if boundary is None:
        boundary = await storage.boundary_at(storage.info.last_commit_ms)
    model = None if state is None else await model_of(storage, state, as_of)
    return Overview(
        info=storage.info,
        boundary=boundary,
        conversation=None if state is None else state.id,
        model=model,
        live=live,
        queue=[] if state is None else await _queue(storage, state),
        context=None if state is None else await context_size(storage, state, model),
        usage=await UsageReader(storage).totals(None, as_of=as_of),
        budgets=await open_budgets(storage) if as_of is None else (),
    )


async def live_tasks(storage: Storage, as_of: Seq | None = None) -> Sequence[Task]:
    """Answer every unfinished task by id."""
    found: list[Task] = []
    while True:
        page = await storage.scan_tasks(
            TaskScan(live=True, after=found[-1].id if found else None, limit=PAGE, as_of=as_of)
        )
        found += page
        if len(page) < PAGE:
            return found


async def _conversation(
    storage: Storage, conv_id: Seq | None, as_of: Seq | None
) -> ConversationState | None:
    if conv_id is None:
        return await root_of(storage, as_of=as_of)
    found = (await storage.conversations([conv_id], as_of=as_of)).get(conv_id)
    if found is None:
        raise Rejected("unknown_target", f"there is no conversation {conv_id}")
    return found


async def model_of(
    storage: Storage, state: ConversationState, as_of: Seq | None = None
) -> ModelId | None:
    """Answer a conversation's model, its own or an inherited one; None when none is stored."""
    stored = await storage.value(MODEL.bind(state.id), as_of=as_of)
    return None if stored is None else decode(stored.value_json, ModelId)


def live_task(task: Task) -> LiveTask:
    """Say what a task is to the scheduler, and what it waits for, by its stored facts."""
    role = ROLES.get(task.kind, {}).get(task.status)
    waits_for, until_ms = _wait(task, role)
    name = decode(task.state_json, ToolState).name if task.kind == "tool" else None
    return LiveTask(
        id=task.id,
        conversation=task.conv_id,
        kind=task.kind,
        name=name,
        status=task.status,
        role="unknown" if role is None else role.value,
        waits_for=waits_for,
        until_ms=until_ms,
        is_marked=task.abort_requested is not UNSET,
    )


def _wait(task: Task, role: Role | None) -> tuple[str, int | None]:
    """Say what must happen before a task moves, by its stored facts alone."""
    if task.abort_requested is not UNSET:
        return "its cancellation", None
    if role is Role.INFLIGHT:
        return "its outcome", None
    if role is Role.WAITING:
        return "a decision", None
    if task.after:
        return "tasks " + ", ".join(str(target) for target in task.after), None
    if task.kind == "generation" and task.status in ("retry_wait", "deferred"):
        state = decode(task.state_json, GenerationState)
        until = None if state.not_before is UNSET else state.not_before
        return ("a poll" if task.status == "deferred" else "the next attempt"), until
    return "a drive", None


async def _queue(storage: Storage, state: ConversationState) -> Sequence[Queued]:
    entries = await storage.entries([item.entry for item in state.inbox])
    return [
        Queued(id=item.id, mode=item.kind, preview=_preview(entries[item.entry].meta))
        for item in state.inbox
        if item.entry in entries
    ]


def _preview(meta: EntryMeta) -> str | None:
    return None if meta.preview is UNSET else meta.preview


async def context_size(
    storage: Storage, state: ConversationState, model: ModelId | None
) -> ContextSize:
    """Say how much the next request carries.

    The newest reported size and what came after it; else an estimate of all of it.
    """
    ids = list(state.context)
    metas = [entry.meta for entry in await entries_of(storage, ids)]
    tokens, is_estimate = 0, True
    for meta in metas:
        if meta.context_tokens is not UNSET:
            tokens, is_estimate = meta.context_tokens, False
        else:
            tokens += meta.tokens
    return ContextSize(
        entries=len(ids),
        tokens=tokens,
        is_estimate=is_estimate,
        window=None if model is None else await _window(storage, model),
    )


async def entries_of(storage: Storage, ids: Sequence[Seq]) -> Sequence[Entry]:
    """Answer entries with payloads in the order of their ids, a page at a time."""
    found: list[Entry] = []
    for start in range(0, len(ids), PAGE):
        page = ids[start : start + PAGE]
        entries = await storage.entries(page)
        found += [entries[entry_id] for entry_id in page if entry_id in entries]
    return found


async def _window(storage: Storage, model: ModelId) -> int | None:
    """Answer the window that an error of the provider once named (K27)."""
    stored = await storage.value(observed_window(model).address())
    return None if stored is None else decode(stored.value_json, int)
