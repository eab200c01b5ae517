"""The routes of sessions: pages, one, making, renaming, deleting (WB-08)."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from perdure.errors import PerdureError, Rejected
from perdure.harness.overview import live_tasks, root_of, stored_model
from perdure.kinds.requests import check_request_id
from perdure.ports import Storage
from perdure.records.entries import Entry, preview_of
from perdure.records.messages import (
    AssistantPayload,
    Message,
    TextPart,
    UserPayload,
    read_payload,
)
from perdure.records.seqs import Seq
from perdure.records.sessions import EntryScan, Owner, SessionInfo
from perdure.records.tasks import Task
from perdure.web.calls import LIMIT_DEFAULT, LIMIT_MAX, Call, Reply
from perdure.web.house import House

State: TypeAlias = Literal["idle", "working", "suspended", "faulted", "owned", "damaged", "empty"]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]

LAST_WORDS: int = 5
"""Entries looked through for a session's last words."""


class SessionsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which sessions."""

    limit: Limit = LIMIT_DEFAULT
    after: str | None = None
    name: str | None = None
    detail: bool = False


class NewSession(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session to be made."""

    name: str
    request_id: str | None = None


class NewName(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session's new name."""

    name: str


class DeleteQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a deletion is meant."""

    confirm: bool = False


class SessionView(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A session as the API shows it; `owned` says that another process holds it."""

    id: str
    name: str
    created_ms: int
    last_commit_ms: int
    last_seq: int
    format: int
    epoch: int
    owner: Owner | None
    damaged: str | None
    state: State
    here: bool
    live: int
    approvals: int
    root: Seq | None
    model: str | None
    last_words: str | UnsetType | None = UNSET
    as_of: Seq | UnsetType = UNSET


class SessionPage(Struct, frozen=True, kw_only=True):
    """A page of sessions; `next` is the name to go on after."""

    sessions: Sequence[SessionView]
    next: str | None


class MadeSession(Struct, frozen=True, kw_only=True):
    """What a request made; equal for every repeat."""

    id: str
    name: str


class LiveWork(Struct, frozen=True, kw_only=True):
    """One task that a deletion would end."""

    id: Seq
    kind: str
    status: str


class Deletion(Struct, frozen=True, kw_only=True):
    """What a deletion did, or would do."""

    deleted: bool
    tasks: Sequence[LiveWork]


async def list_sessions(call: Call) -> Reply:
    """Answer a page of sessions by name, or the one of a name."""
    query: SessionsQuery = call.query
    if query.name is not None:
        found = await _named(call.house, query.name)
        page = [] if found is None else [found]
        following = None
    else:
        page = await call.house.page(after=query.after, limit=query.limit)
        following = page[-1].name if len(page) == query.limit else None
    views = [await session_view(call.house, info, detail=query.detail) for info in page]
    return Reply(content=SessionPage(sessions=views, next=following))


async def make_session(call: Call) -> Reply:
    """Make a session with its root conversation; a repeat answers the same bytes."""
    body: NewSession = call.body
    if body.request_id is not None:
        check_request_id(body.request_id)
    made = await call.house.create(body.name, body.request_id)
    async with call.house.using(made.info.id):
        pass  # opening an empty session makes its root
    return Reply(
        content=MadeSession(id=made.info.id, name=body.name), status=201 if made.is_new else 200
    )


async def get_session(call: Call) -> Reply:
    """Answer one session."""
    return Reply(content=await _one(call))


async def rename_session(call: Call) -> Reply:
    """Give a session a new name."""
    body: NewName = call.body
    info = await call.house.find(call.session)
    await call.house.sessions.rename(info.name, body.name)
    return Reply(content=await _one(call))


async def delete_session(call: Call) -> Reply:
    """Delete a session, or say what would go."""
    query: DeleteQuery = call.query
    info = await call.house.find(call.session)
    async with call.house.reading(call.session) as storage:
        live = await live_tasks(storage)
    tasks = [LiveWork(id=task.id, kind=task.kind, status=task.status) for task in live]
    if query.confirm:
        await call.house.delete(info)
    return Reply(content=Deletion(deleted=query.confirm, tasks=tasks))


async def _one(call: Call) -> SessionView:
    return await session_view(call.house, await call.house.find(call.session), detail=True)


async def _named(house: House, name: str) -> SessionInfo | None:
    """Find a session by any legal name."""
    try:
        storage = await house.sessions.open(name, create=False, read_only=True)
    except Rejected as error:
        if error.code != "not_found":
            raise
        return None
    session_id = storage.info.id
    await storage.close()
    return await house.look(session_id)


async def session_view(house: House, info: SessionInfo, *, detail: bool) -> SessionView:
    """Read what a page of sessions shows; one that cannot be read says why."""
    damaged, live, root, model = info.damaged, list[Task](), None, None
    words: str | UnsetType | None = UNSET
    as_of: Seq | UnsetType = UNSET
    if damaged is None:
        try:
            storage = await house.sessions.open(info.name, create=False, read_only=True)
            try:
                live = list(await live_tasks(storage))
                state = await root_of(storage)
                root = None if state is None else state.id
                model = await stored_model(storage)
                if detail:
                    as_of = await storage.boundary_at(storage.info.last_commit_ms)
                    words = None if root is None else await _last_words(storage, root)
            finally:
                await storage.close()
        except PerdureError as error:
            damaged = str(error)
    return SessionView(
        id=info.id,
        name=info.name,
        created_ms=info.created_ms,
        last_commit_ms=info.last_commit_ms,
        last_seq=info.last_seq,
        format=info.format,
        epoch=info.epoch,
        owner=info.owner,
        damaged=damaged,
        state="damaged" if damaged is not None else _state(house, info, live),
        here=house.is_here(info.id),
        live=len(live),
        approvals=sum(task.kind == "approval" and task.status == "waiting" for task in live),
        root=root,
        model=None if model is None else str(model),
        last_words=words,
        as_of=as_of,
    )


def _state(house: House, info: SessionInfo, live: Sequence[Task]) -> State:
    if info.id in house.faults:
        return "faulted"
    if info.owner is not None and not house.is_here(info.id):
        return "owned"
    if info.last_seq == 0:
        return "empty"
    if not live:
        return "idle"
    return "working" if house.is_driven(info.id) else "suspended"


async def _last_words(storage: Storage, root: Seq) -> str | None:
    """Answer the first words of the newest entry that says something."""
    page: Sequence[Entry] = await storage.scan_entries(
        EntryScan(conv_id=root, limit=LAST_WORDS, order="desc")
    )
    texts = (_words(entry) for entry in page if entry.kind in ("user", "assistant", "input"))
    return next(filter(None, texts), None)


def _words(entry: Entry) -> str:
    """Answer the texts of an entry, cut to a preview."""
    if entry.payload_json is UNSET:
        return ""
    messages: Sequence[Message]
    if entry.kind == "assistant":
        messages = (read_payload(entry.payload_json, AssistantPayload).message,)
    else:
        messages = read_payload(entry.payload_json, UserPayload).messages
    texts = [part.text for one in messages for part in one.content if isinstance(part, TextPart)]
    return preview_of(" ".join(texts))
