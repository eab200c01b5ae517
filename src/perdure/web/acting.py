"""The routes that act on one session: each opens it, does one thing, and may set it going (WB-10).

`drive` is true unless the body says otherwise; with false nothing starts. A creating request whose
`request_id` was seen before changes nothing and answers the same bytes (WB-12).
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from perdure.client.asking import REPEATED
from perdure.drive.outcomes import DriveResult
from perdure.errors import Rejected
from perdure.harness.cancellation import AbortReport
from perdure.harness.conversation import Conversation
from perdure.harness.forks import ForkContext
from perdure.harness.harness import Harness
from perdure.records.addresses import ACTIVE_TOOLS, MODEL, THINKING, entry_label
from perdure.records.budgets import Budget, OnLimit, OnUnknown
from perdure.records.conversations import ParentLink, QueueMode
from perdure.records.inputs import Accepted
from perdure.records.messages import InputContent, UserMessage
from perdure.records.models import parse_model
from perdure.records.seqs import Seq
from perdure.records.settings import ThinkingLevel
from perdure.web.calls import NO_HEADERS, Call, Reply
from perdure.web.reading import WaitQuery, path_seq
from perdure.web.wire import plain

Mode: TypeAlias = Literal["accept", "steer", "followUp", "nextRun", "write"]


class ActQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which conversation; left out, the root."""

    conversation: int | None = None


class NewBudget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an input and all that follows from it may spend: at least one limit (BG-01)."""

    cost: str | None = None
    currency: str = "USD"
    tokens: int | None = None
    turns: int | None = None
    seconds: int | None = None
    on_limit: OnLimit = "suspend"
    unknown: OnUnknown = "ignore"


class NewInput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input: a text, a user message, or a list of user messages."""

    content: Any
    mode: Mode = "accept"
    request_id: str | None = None
    budget: NewBudget | None = None
    drive: bool = True


class Abort(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to abort: everything, or only while one input is queued or open."""

    only_if: int | None = None
    drive: bool = True


class Flush(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Start a run of what is queued, under a budget of its own when one is given."""

    budget: NewBudget | None = None
    drive: bool = True


class Configure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change; what is left out stays."""

    label: str | UnsetType | None = UNSET
    steering_mode: QueueMode | UnsetType = UNSET
    follow_up_mode: QueueMode | UnsetType = UNSET
    model: str | UnsetType = UNSET
    thinking: ThinkingLevel | UnsetType = UNSET
    active_tools: Sequence[str] | UnsetType = UNSET


class Reset(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The context list to put in place."""

    ids: Sequence[int] = ()
    expect_prefix_version: int | None = None
    force: bool = False


class Fork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a fork begins: at an entry, at a commit's end, or now."""

    at: int | None = None
    as_of: int | None = None
    context: ForkContext = "inherit"
    label: str | None = None
    request_id: str | None = None


class Rewind(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to go back to: an entry, or a commit's end."""

    at: int | None = None
    as_of: int | None = None
    keep_running: bool = False
    label: str | None = None
    request_id: str | None = None


class Label(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry's label; null removes it."""

    label: str | None


class Drive(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether deferred answers may be asked for once."""

    poll_deferred: bool = False


class Forked(Struct, frozen=True, kw_only=True):
    """A conversation that was made, and where it begins; equal for every repeat of its request."""

    conversation: Seq
    parent: ParentLink


class AcceptedInput(Struct, frozen=True, kw_only=True, rename="camel"):
    """An accepted input; equal for every repeat of its request."""

    input_id: Seq
    conversation: Seq
    mode: Mode


VERBS: Final[Mapping[Mode, str]] = MappingProxyType(
    {
        "accept": "accept",
        "steer": "steer",
        "followUp": "follow_up",
        "nextRun": "next_run",
        "write": "append_message",
    }
)
"""The method of `Conversation` behind each mode."""


@asynccontextmanager
async def _in_conversation(call: Call) -> AsyncGenerator[tuple[Harness, Conversation]]:
    """Open the session, and find the conversation that is meant."""
    query: ActQuery = call.query
    async with call.house.using(call.session) as harness:
        if query.conversation is None:
            yield harness, await harness.root()
            return
        found = await harness.conversation(Seq(query.conversation))
        if found is None:
            raise Rejected("unknown_target", f"there is no conversation {query.conversation}")
        yield harness, found


async def post_input(call: Call) -> Reply:
    """Accept an input, or queue it."""
    body: NewInput = call.body
    content, budget = content_of(body.content), _budget_of(body.budget)
    if budget is not None and body.mode != "accept":
        raise Rejected("invariant", f"a budget comes with the mode 'accept', not {body.mode!r}")
    async with _in_conversation(call) as (_, conversation):
        if body.mode == "accept":
            accepted = await conversation.accept(content, request_id=body.request_id, budget=budget)
        else:
            accept = getattr(conversation, VERBS[body.mode])
            accepted = cast("Accepted", await accept(content, request_id=body.request_id))
        if body.drive:
            await call.house.drive(call.session)
    answer = AcceptedInput(input_id=accepted.input_id, conversation=conversation.id, mode=body.mode)
    # The body is equal for every repeat; that it is one stands beside it.
    headers = {REPEATED: "true"} if accepted.duplicate else NO_HEADERS
    return Reply(content=answer, status=202, headers=headers)


def _budget_of(given: NewBudget | None) -> Budget | None:
    """Make the budget of a request; raises Rejected `invariant`, naming the field."""
    return None if given is None else Budget(**structs.asdict(given))


def content_of(given: Any) -> InputContent:
    """Read an input's content; raises Rejected `invariant`, with the path of what is wrong."""
    if isinstance(given, str):
        return given
    if isinstance(given, list):
        return [
            _message(item, f"$.content[{index}]")
            for index, item in enumerate(cast("list[object]", given))
        ]
    return _message(given, "$.content")


def _message(given: object, path: str) -> UserMessage:
    try:
        message = msgspec.convert(given, UserMessage)
    except msgspec.ValidationError as error:
        raise Rejected("invariant", f"at {path}: {error}", {"path": path}) from None
    known = plain(message)
    if isinstance(given, dict) and not _has_all(cast("dict[str, Any]", given), known):
        raise Rejected("invariant", f"at {path}: a field that no user message has", {"path": path})
    return message


def _has_all(given: Any, known: Any) -> bool:
    """Say whether everything that was given was understood; defaults are left out when plain."""
    if isinstance(given, dict) and isinstance(known, dict):
        fields = cast("dict[str, Any]", known)
        return all(
            name in fields and _has_all(item, fields[name])
            for name, item in cast("dict[str, Any]", given).items()
            if not (name in ("role", "type") or item in (0, False, None))
        )
    if isinstance(given, list) and isinstance(known, list):
        pairs = zip(cast("list[Any]", given), cast("list[Any]", known), strict=True)
        return all(_has_all(item, other) for item, other in pairs)
    return True


async def cancel_input(call: Call) -> Reply:
    """Withdraw a queued input."""
    async with call.house.using(call.session) as harness:
        input_id = path_seq(call, "input")
        conversation = await _conversation_of(call, harness, input_id)
        result = "not_found"
        if conversation is not None:
            result = await conversation.cancel_queued(input_id)
    return Reply(content={"result": result})


async def _conversation_of(call: Call, harness: Harness, entry_id: Seq) -> Conversation | None:
    """Find the conversation of an entry."""
    async with call.house.reading(call.session) as storage:
        entry = (await storage.entries([entry_id])).get(entry_id)
    return None if entry is None else await harness.conversation(entry.conv_id)


async def abort(call: Call) -> Reply:
    """Mark the foreground and drain its queues."""
    body: Abort = call.body
    only_if = None if body.only_if is None else Seq(body.only_if)
    async with _in_conversation(call) as (_, conversation):
        report = await conversation.abort(only_if=only_if)
        if body.drive:
            await call.house.drive(call.session)
    return Reply(content=report_record(report))


async def shutdown(call: Call) -> Reply:
    """Cancel everything the conversation owns, and drive that."""
    async with _in_conversation(call) as (_, conversation):
        report = await conversation.shutdown()
    return Reply(content=report_record(report))


def report_record(report: AbortReport) -> dict[str, Any]:
    """Answer what an abort did, as the wire names it."""
    return {
        "marked": report.marked,
        "drained": [
            {
                "inputId": one.input_id,
                "conv": one.conv_id,
                "mode": one.mode,
                "messages": one.messages,
            }
            for one in report.drained
        ],
        "joined": report.joined,
    }


async def flush(call: Call) -> Reply:
    """Start a run of what a failed or stopped one left queued."""
    body: Flush = call.body
    async with _in_conversation(call) as (_, conversation):
        inputs = await conversation.flush(budget=_budget_of(body.budget))
        if body.drive:
            await call.house.drive(call.session)
    return Reply(content={"inputs": inputs})


async def configure(call: Call) -> Reply:
    """Change label, queue modes, model, thinking level or tools."""
    body: Configure = call.body
    async with _in_conversation(call) as (_, conversation):
        if body.model is not UNSET:
            await conversation.set_value(MODEL, parse_model(body.model))
        if body.thinking is not UNSET:
            await conversation.set_value(THINKING, body.thinking)
        if body.active_tools is not UNSET:
            await conversation.set_value(ACTIVE_TOOLS, list(body.active_tools))
        own = (body.label, body.steering_mode, body.follow_up_mode)
        if any(one is not UNSET for one in own):
            await conversation.configure(
                label=body.label,
                steering_mode=body.steering_mode,
                follow_up_mode=body.follow_up_mode,
            )
        return Reply(content={"conversation": await conversation.state()})


async def reset(call: Call) -> Reply:
    """Replace the context list."""
    body: Reset = call.body
    async with _in_conversation(call) as (_, conversation):
        await conversation.reset_context(
            [Seq(one) for one in body.ids],
            expect_prefix_version=body.expect_prefix_version,
            force=body.force,
        )
        return Reply(content={"conversation": await conversation.state()})


async def fork(call: Call) -> Reply:
    """Begin a conversation at a boundary of this one; nothing runs."""
    body: Fork = call.body
    async with _in_conversation(call) as (_, conversation):
        made = await conversation.fork(
            at=_seq(body.at),
            as_of=_seq(body.as_of),
            context=body.context,
            label=body.label,
            request_id=body.request_id,
        )
        return await _forked(made)


async def rewind(call: Call) -> Reply:
    """Cancel what runs in this conversation, and begin another one where it was before."""
    body: Rewind = call.body
    async with _in_conversation(call) as (_, conversation):
        made = await conversation.rewind(
            at=_seq(body.at),
            as_of=_seq(body.as_of),
            keep_running=body.keep_running,
            label=body.label,
            request_id=body.request_id,
        )
        return await _forked(made)


def _seq(given: int | None) -> Seq | None:
    return None if given is None else Seq(given)


async def _forked(made: Conversation) -> Reply:
    parent = (await made.state()).parent
    assert parent is not UNSET
    return Reply(content=Forked(conversation=made.id, parent=parent), status=201)


async def label(call: Call) -> Reply:
    """Set or remove an entry's label."""
    body: Label = call.body
    async with call.house.using(call.session) as harness:
        entry_id = path_seq(call, "entry")
        if await _conversation_of(call, harness, entry_id) is None:
            raise Rejected("not_found", f"there is no entry {entry_id}")
        if body.label is None:
            await harness.delete_value(entry_label(entry_id))
        else:
            await harness.set_value(entry_label(entry_id), body.label)
    return Reply(content={"entry": entry_id, "label": body.label})


async def drive(call: Call) -> Reply:
    """Let the session's work run; with `wait` answer how it ended."""
    body: Drive = call.body
    query: WaitQuery = call.query
    await call.house.drive(call.session, poll_deferred=body.poll_deferred)
    result = None
    if query.wait > 0:
        result = await call.house.driven(call.session, query.wait)
    if result is None:
        return Reply(content={"driving": True}, status=202)
    return Reply(content=drive_record(result))


def drive_record(result: DriveResult) -> dict[str, Any]:
    """Answer how a drive ended, as the wire names it."""
    return {
        "outcome": result.outcome,
        "waitingFor": [plain(wait) for wait in result.waiting_for],
        "nextAt": result.next_at,
    }
