"""The routes that read one session: straight from storage, at one boundary, owning nothing (WB-09).

Every answer says the main boundary it was read at: `asOf`. Without `as_of` that is the newest one,
and what has history is read as of it, so that one answer is one state.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

from perdure.errors import Rejected
from perdure.harness.overview import (
    context_size,
    entries_of,
    live_task,
    model_of,
    root_of,
)
from perdure.harness.results import stored_result
from perdure.harness.transcript import read_transcript
from perdure.ports import Storage
from perdure.records.addresses import SEALED_NAMESPACES, Address
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry
from perdure.records.messages import UserPayload, read_payload
from perdure.records.seqs import Seq
from perdure.records.sessions import (
    ConversationScan,
    EntryScan,
    ListElement,
    ListPage,
    StoredValue,
    TaskScan,
)
from perdure.records.tasks import Task
from perdure.web.calls import LIMIT_DEFAULT, Call, Reply
from perdure.web.sessions import Limit
from perdure.web.wire import plain

WAIT_S_MAX = 60
"""Longest wait of one request (WB-11)."""


class AtQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At which main boundary; left out, the newest."""

    as_of: int | None = None


class ConversationsQuery(AtQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which conversations."""

    limit: Limit = LIMIT_DEFAULT
    after: int | None = None
    owner: int | None = None
    parent: int | None = None


class EntriesQuery(AtQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which entries; with `before` or `newest` the last ones below."""

    limit: Limit = LIMIT_DEFAULT
    after: int | None = None
    before: int | None = None
    newest: bool = False


class TasksQuery(AtQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks; with `before` or `newest` the last ones below."""

    limit: Limit = LIMIT_DEFAULT
    after: int | None = None
    before: int | None = None
    newest: bool = False
    live: bool | None = None


class ValuesQuery(AtQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which values of a namespace: those whose key starts with `prefix`, or the one of `key`."""

    namespace: str
    key: str | None = None
    prefix: str = ""
    limit: Limit = LIMIT_DEFAULT
    after: str | None = None


class ListQuery(AtQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which elements of a list."""

    namespace: str
    key: str = ""
    limit: Limit = LIMIT_DEFAULT
    after: int | None = None
    before: int | None = None
    newest: bool = False


class WaitQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many seconds to wait for the end."""

    wait: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] = 0


class At(Struct, frozen=True):
    """A storage, and the boundary that it is read at; None before the first commit."""

    storage: Storage
    as_of: Seq | None

    @property
    def shown(self) -> Seq:
        """Answer `asOf`."""
        return self.as_of or Seq(0)


@asynccontextmanager
async def at_boundary(call: Call, as_of: int | None) -> AsyncGenerator[At]:
    """Open the session at one boundary."""
    async with call.house.reading(call.session) as storage:
        now = await storage.boundary_at(storage.info.last_commit_ms)
        yield At(storage, (now or None) if as_of is None else Seq(as_of))


def reply_at(at: At, **fields: object) -> Reply:
    """Answer what was read, with the boundary it was read at."""
    return Reply(content={"asOf": at.shown, **fields})


async def conversation_of(
    storage: Storage, word: str, *, as_of: Seq | None = None
) -> ConversationState:
    """Find the conversation of a path segment or parameter: an id, or `root`.

    Raises:
        Rejected: `unknown_target`.
    """
    state = None
    if word == "root":
        state = await root_of(storage, as_of=as_of)
    elif word.isascii() and word.isdigit() and len(word) < 20:
        conv_id = Seq(int(word))
        state = (await storage.conversations([conv_id], as_of=as_of)).get(conv_id)
    if state is None:
        raise Rejected("unknown_target", f"there is no conversation {word[:40]}")
    return state


async def _conversation(call: Call, at: At) -> ConversationState:
    word: str = call.request.path_params["conv"]
    return await conversation_of(at.storage, word, as_of=at.as_of)


async def list_conversations(call: Call) -> Reply:
    """Answer a page of conversations by id."""
    query: ConversationsQuery = call.query
    async with at_boundary(call, query.as_of) as at:
        page = await at.storage.scan_conversations(
            ConversationScan(
                owner=seq_or_none(query.owner),
                parent=seq_or_none(query.parent),
                after=seq_or_none(query.after),
                limit=query.limit,
                as_of=at.as_of,
            )
        )
        return reply_at(
            at, conversations=page, next=page[-1].id if len(page) == query.limit else None
        )


async def get_conversation(call: Call) -> Reply:
    """Answer one conversation."""
    async with at_boundary(call, call.query.as_of) as at:
        return reply_at(at, conversation=await _conversation(call, at))


async def list_entries(call: Call) -> Reply:
    """Answer a page of the transcript in order, inherited entries included."""
    query: EntriesQuery = call.query
    backwards = query.newest or query.before is not None
    async with at_boundary(call, query.as_of) as at:
        state = await _conversation(call, at)
        page: Sequence[Entry] = await read_transcript(
            at.storage,
            state,
            EntryScan(
                after=seq_or_none(query.after),
                before=seq_or_none(query.before),
                order="desc" if backwards else "asc",
                limit=query.limit,
                as_of=at.as_of,
            ),
        )
        following = page[-1].id if len(page) == query.limit else None
        return reply_at(at, entries=page[::-1] if backwards else page, next=following)


async def list_tasks(call: Call) -> Reply:
    """Answer a page of tasks, each with its role and what it waits for."""
    query: TasksQuery = call.query
    backwards = query.newest or query.before is not None
    async with at_boundary(call, query.as_of) as at:
        state = await _conversation(call, at)
        page = await at.storage.scan_tasks(
            TaskScan(
                conv_id=state.id,
                live=query.live,
                after=seq_or_none(query.after),
                before=seq_or_none(query.before),
                order="desc" if backwards else "asc",
                limit=query.limit,
                as_of=at.as_of,
            )
        )
        following = page[-1].id if len(page) == query.limit else None
        shown = page[::-1] if backwards else page
        return reply_at(at, tasks=[task_record(task) for task in shown], next=following)


def task_record(task: Task) -> dict[str, Any]:
    """Answer a task with what it is to the scheduler."""
    shown = live_task(task)
    is_over = shown.role == "terminal"
    return {
        **plain(task),
        "role": shown.role,
        "waitsFor": None if is_over else shown.waits_for,
        "untilMs": None if is_over else shown.until_ms,
    }


async def get_context(call: Call) -> Reply:
    """Answer what the model is shown, in order, and how much it is."""
    async with at_boundary(call, call.query.as_of) as at:
        state = await _conversation(call, at)
        model = await model_of(at.storage, state, at.as_of)
        size = await context_size(at.storage, state, model)
        return reply_at(
            at,
            entries=await entries_of(at.storage, list(state.context)),
            prefixVersion=state.prefix_version,
            tokens=size.tokens,
            isEstimate=size.is_estimate,
            window=size.window,
            model=None if model is None else str(model),
        )


async def get_queue(call: Call) -> Reply:
    """Answer the inputs that wait, oldest first, with their words."""
    async with at_boundary(call, call.query.as_of) as at:
        state = await _conversation(call, at)
        return reply_at(at, queue=await queue_of(at.storage, state))


async def queue_of(storage: Storage, state: ConversationState) -> list[dict[str, Any]]:
    """Answer a conversation's queue with contents."""
    entries = await storage.entries([item.entry for item in state.inbox])
    found: list[dict[str, Any]] = []
    for item in state.inbox:
        entry = entries.get(item.entry)
        if entry is None or entry.payload_json is UNSET:
            continue
        preview = entry.meta.preview
        found.append(
            {
                "id": item.id,
                "mode": item.kind,
                "preview": None if preview is UNSET else preview,
                "messages": read_payload(entry.payload_json, UserPayload).messages,
            }
        )
    return found


async def list_values(call: Call) -> Reply:
    """Answer values of a conversation by key, inherited ones included."""
    query: ValuesQuery = call.query
    _check_open(query.namespace)
    async with at_boundary(call, query.as_of) as at:
        state = await _conversation(call, at)
        if query.key is not None:
            address = _address("value", state, query.namespace, query.key)
            value = await at.storage.value(address, as_of=at.as_of)
            return reply_at(at, values=[] if value is None else [_value(value)], next=None)
        address = _address("value", state, query.namespace, query.prefix)
        page = await at.storage.scan_values(
            address, after=query.after, limit=query.limit, as_of=at.as_of
        )
        following = page[-1].key if len(page) == query.limit else None
        return reply_at(at, values=[_value(value) for value in page], next=following)


def _value(value: StoredValue) -> dict[str, object]:
    return {"key": value.key, "seq": value.seq, "value": value.value_json}


async def list_elements(call: Call) -> Reply:
    """Answer a page of a list, inherited ranges included."""
    query: ListQuery = call.query
    _check_open(query.namespace)
    backwards = query.newest or query.before is not None
    async with at_boundary(call, query.as_of) as at:
        state = await _conversation(call, at)
        page = await at.storage.elements(
            _address("list", state, query.namespace, query.key),
            ListPage(
                after=seq_or_none(query.after),
                before=seq_or_none(query.before),
                order="desc" if backwards else "asc",
                limit=query.limit,
                as_of=at.as_of,
            ),
        )
        following = page[-1].seq if len(page) == query.limit else None
        shown = page[::-1] if backwards else page
        return reply_at(at, elements=[_element(one) for one in shown], next=following)


def _element(element: ListElement) -> dict[str, object]:
    fields: dict[str, object] = {"seq": element.seq, "value": element.value_json}
    return fields if element.tag is None else {**fields, "tag": element.tag}


def _address(
    kind: Literal["value", "list"], state: ConversationState, namespace: str, key: str
) -> Address:
    """Answer the place of a conversation's value or list; the core's own may be read too."""
    return Address(kind=kind, namespace=namespace, key=key, conv_id=state.id)


def _check_open(namespace: str) -> None:
    """Keep sealed namespaces unseen (VL-31)."""
    if namespace in SEALED_NAMESPACES:
        raise Rejected("invariant", f"the namespace {namespace!r} is not shown")


def camel(fields: dict[str, Any]) -> dict[str, Any]:
    """Name the fields of one record as the wire does; what stands below them stays."""
    answer: dict[str, Any] = {}
    for name, item in fields.items():
        first, *rest = name.split("_")
        answer[first + "".join(word.title() for word in rest)] = item
    return answer


async def get_input(call: Call) -> Reply:
    """Answer what became of an input, waiting for its end when asked to (WB-11)."""
    input_id, left_s = path_seq(call, "input"), float(call.query.wait)
    loop = call.house.loop
    deadline = loop.time() + left_s
    while True:
        news = call.house.news(call.session)
        async with at_boundary(call, None) as at:
            result = await stored_result(at.storage, input_id)
            shown = {**plain(result), "final": result.final, "text": result.text}
        left_s = deadline - loop.time()
        if result.final or left_s <= 0 or call.house.stopping.is_set():
            return reply_at(at, **shown)
        await call.house.until(news, left_s)


def path_seq(call: Call, name: str) -> Seq:
    """Answer an id of the path; raises Rejected `not_found` for what is none."""
    word: str = call.request.path_params[name]
    if not (word.isascii() and word.isdigit() and len(word) < 20):
        raise Rejected("not_found", f"there is no {name} {word[:40]!r}")
    return Seq(int(word))


def seq_or_none(number: int | None) -> Seq | None:
    """Take a parameter for a seq."""
    return None if number is None else Seq(number)
