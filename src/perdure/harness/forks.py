"""Forks and rewind: a new conversation that begins at a boundary of another (seed 8.4).

A fork is one record: its parent, the boundary, and the context list as it was then. Entries, values
and lists before the boundary are read through the parent and are never copied (FK-02); nothing the
parent does later is seen (FK-08). Tasks, queue and approvals stay where they are (FK-01).

Rewind is the same after the source's foreground has been cancelled and has ended (FK-10).
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import UNSET, Struct

from perdure.drive.foreground import marked, tree_of
from perdure.errors import Closed, Rejected
from perdure.harness.cancellation import abort
from perdure.harness.core import Core
from perdure.kinds.requests import (
    check_request_id,
    content_digest,
    earlier_request,
    name_creation,
)
from perdure.line.command import Command
from perdure.line.facts import KindTable
from perdure.line.lineage import Lineage, holds
from perdure.line.validate import calls_of
from perdure.ports import Storage
from perdure.records.conversations import ConversationState, ParentLink
from perdure.records.inputs import CreatingVerb
from perdure.records.seqs import Seq

ForkContext: TypeAlias = Literal["inherit", "fresh"]


class ForkRequest(Struct, frozen=True, kw_only=True):
    """One call of fork or rewind: exactly one target, or for a fork none, which means now."""

    conv_id: Seq
    verb: CreatingVerb = "fork"
    at: Seq | None = None
    as_of: Seq | None = None
    context: ForkContext = "inherit"
    label: str | None = None
    request_id: str | None = None
    keep_running: bool = False

    @property
    def digest(self) -> str:
        """Digest what is asked for (ID-10)."""
        content = {
            "at": self.at,
            "asOf": self.as_of,
            "context": self.context,
            "label": self.label,
            "keepRunning": self.keep_running,
        }
        return content_digest(self.conv_id, self.verb, content)


class Beginning(Struct, frozen=True, kw_only=True):
    """Where a fork begins: its parent link, and the parent as it was there."""

    link: ParentLink
    state: ConversationState


async def fork(core: Core, request: ForkRequest) -> Seq:
    """Make a fork, durably, or answer the one that this request made before; runs nothing.

    Raises:
        Rejected: `unknown_target`, `deleted`, `invariant`, `request_conflict`.
    """
    _check(request)
    made: list[Seq] = []

    async def build(tx: Command) -> None:
        earlier = await _earlier(core, request)
        made.append(await _build(core, tx, request) if earlier is None else earlier)

    await core.submit(build, barrier=True)
    return made[0]


async def rewind(core: Core, request: ForkRequest) -> Seq:
    """Cancel the source's foreground and wait for its end, then fork; a repeat cancels nothing.

    Raises:
        Rejected: as `fork`, before anything is cancelled; `nested_command`, inside what it would
            wait for.
        Closed: the session closed before everything had ended; nothing was forked.
    """
    _check(request)
    if request.at is None and request.as_of is None:
        raise Rejected("invariant", "a rewind names the entry or the commit it goes back to")
    earlier = await _earlier(core, request)
    if earlier is not None:
        return earlier
    await _source(core, request.conv_id)
    await beginning(core.storage, request.conv_id, at=request.at, as_of=request.as_of)
    if not request.keep_running:
        await _cancelled(core, request.conv_id)
    return await fork(core, request)


async def _cancelled(core: Core, conv_id: Seq) -> None:
    """Abort the foreground and drive until nothing that was marked is left."""
    core.scheduler.check_free(conv_id)
    await abort(core, conv_id)
    held = core.line.residency

    def is_over() -> bool:
        return not any(marked(held.live_tasks(one)) for one in tree_of(conv_id, held))

    if is_over():
        return
    await core.ensure_resident(conv_id)
    result = await core.scheduler.drive(conv_id, until=is_over)
    if result.outcome == "closed":
        raise Closed
    if not is_over():
        raise Rejected("busy", f"conversation {conv_id} is still being cancelled; rewind again")


def _check(request: ForkRequest) -> None:
    if request.request_id is not None:
        check_request_id(request.request_id)
    if request.at is not None and request.as_of is not None:
        raise Rejected("invariant", "a fork begins at an entry or at a commit, not at both")
    if request.context not in ("inherit", "fresh"):
        raise Rejected("invariant", f"the context {request.context!r} is not 'inherit' or 'fresh'")


async def _earlier(core: Core, request: ForkRequest) -> Seq | None:
    """Answer what the request made before; reads the state before a command, as the line does."""
    if request.request_id is None:
        return None
    return await earlier_request(
        core.line.value,
        request_id=request.request_id,
        conv_id=request.conv_id,
        verb=request.verb,
        digest_now=request.digest,
    )


async def _source(core: Core, conv_id: Seq) -> ConversationState:
    state = await core.line.conversation(conv_id)
    if state is None:
        raise Rejected("unknown_target", f"there is no conversation {conv_id}")
    if state.deleted:
        raise Rejected("deleted", f"conversation {conv_id} was deleted")
    return state


async def _build(core: Core, tx: Command, request: ForkRequest) -> Seq:
    await tx.conversation(request.conv_id)
    as_of = request.as_of
    if request.at is None and as_of is None:
        as_of = await core.line.boundary()
    start = await beginning(
        core.storage, request.conv_id, at=request.at, as_of=as_of, lineage=core.line.lineage
    )
    context: Sequence[Seq] = ()
    if request.context == "inherit":
        context = await _context(core, start, request.at)
    made = tx.insert_conversation(parent=start.link, context=context)
    modes = {
        name: getattr(start.state, name)
        for name in ("steering_mode", "follow_up_mode")
        if getattr(start.state, name) != "all"
    }
    if request.label is not None or modes:
        label = UNSET if request.label is None else request.label
        tx.patch_conversation(made, label=label, **modes)
    if request.request_id is not None:
        name_creation(
            tx,
            made,
            conv_id=request.conv_id,
            verb=request.verb,
            digest_now=request.digest,
            request_id=request.request_id,
        )
    return made


# Where it begins.


async def beginning(
    storage: Storage,
    conv_id: Seq,
    *,
    at: Seq | None,
    as_of: Seq | None,
    lineage: Lineage | None = None,
) -> Beginning:
    """Find the conversation that a target belongs to, and its boundary (FK-04, FK-12).

    The parent is the conversation that owns the entry, or that existed at the commit: this one, or
    an ancestor whose inherited prefix reaches that far. `lineage` is that of an open session.

    Raises:
        Rejected: `unknown_target`, when the target is not part of what this conversation sees;
            `invariant`, when a commit is meant and none ends there (FK-06).
    """
    state = (await storage.conversations([conv_id])).get(conv_id)
    if state is None:
        raise Rejected("unknown_target", f"there is no conversation {conv_id}")
    history = await (lineage or Lineage(storage)).stretches(state)
    if at is not None:
        entry = (await storage.entries([at])).get(at)
        if entry is None or not holds(history, entry):
            raise Rejected("unknown_target", f"entry {at} is not part of conversation {conv_id}")
        parent, as_of = entry.conv_id, entry.commit_end
    else:
        assert as_of is not None
        # Refuses a seq inside a commit, whichever conversation it turns out to be.
        await storage.conversations([conv_id], as_of=as_of)
        begun = [one.conv_id for one in history if one.conv_id <= as_of <= one.through]
        if not begun:
            raise Rejected(
                "unknown_target", f"conversation {conv_id} had not begun at commit {as_of}"
            )
        parent = begun[0]
    return Beginning(
        link=ParentLink(
            conv_id=parent,
            at_entry=UNSET if at is None else at,
            as_of=as_of,
            inherit_values=True,
        ),
        state=(await storage.conversations([parent], as_of=as_of))[parent],
    )


# What it begins with.


async def _context(core: Core, start: Beginning, at: Seq | None) -> list[Seq]:
    """Answer the list at the boundary, up to the entry, without an exchange left open (FK-07)."""
    ids = [seq for seq in start.state.context if at is None or seq <= at]
    return await trimmed(core.storage, core.line.kinds, ids)


async def trimmed(storage: Storage, kinds: KindTable, ids: list[Seq]) -> list[Seq]:
    """Cut a list before an exchange whose results are not all on it; only the last one can be."""
    answered: set[int] = set()
    for place in range(len(ids) - 1, -1, -1):
        entry = (await storage.entries([ids[place]]))[ids[place]]
        facts = kinds.content(entry.kind)
        if facts is not None and facts.answers and entry.call_index is not UNSET:
            answered.add(entry.call_index)
        elif facts is not None and facts.asks:
            is_whole = all(index in answered for index in range(calls_of(entry)))
            return ids if is_whole else ids[:place]
    return ids
