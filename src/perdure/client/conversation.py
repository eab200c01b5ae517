"""RemoteConversation: one conversation of a server, with the face of `Conversation`.

Methods have the names, arguments, answers and errors of `harness.Conversation`; what no route
offers is not here. Every verb that accepts something carries a request id, made here when none is
given, and is sent again when the connection ends before the answer: one effect (WB-12). Abort,
flush, withdrawal and settings are not sent again: `Unreachable.was_sent` says that they may have
had their effect.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from perdure.client.asking import REPEATED, Asker, path_of
from perdure.client.pages import Wanted, pages
from perdure.client.running import drive
from perdure.client.watch import RemoteWatch
from perdure.client.wire import abort_report_of, read
from perdure.drive.outcomes import DriveResult
from perdure.errors import Rejected
from perdure.harness.acceptance import Cancelled
from perdure.harness.cancellation import AbortReport
from perdure.harness.forks import ForkContext
from perdure.kinds.requests import check_request_id
from perdure.records.addresses import (
    ACTIVE_TOOLS,
    MODEL,
    THINKING,
    ConversationList,
    ConversationValue,
)
from perdure.records.budgets import Budget, check_budget
from perdure.records.codec import checked_raw, decode, decode_json
from perdure.records.conversations import ConversationState, QueueMode
from perdure.records.entries import Entry, ModelId
from perdure.records.inputs import Accepted, InputResult
from perdure.records.messages import NO_REPAIRS, InputContent, normalize_input
from perdure.records.seqs import Seq
from perdure.records.sessions import ListElement, ListPage
from perdure.records.tasks import Task
from perdure.records.watch import EntryPage

T = TypeVar("T")

WAIT_S: Final = 30
"""How long one request waits for the end of an input; it is asked again then."""


class RemoteConversation:
    """One conversation of a server: accept, drive, read, configure, cancel."""

    def __init__(self, asker: Asker, session_id: str, conv_id: Seq) -> None:
        """Bind to the conversation; made by `RemoteSession.root` and `conversation`."""
        self.id = conv_id
        self._asker = asker
        self._session_id = session_id
        self._session = f"/v1/sessions/{session_id}"
        self._path = f"{self._session}/conversations/{conv_id}"

    # Reading.

    async def state(self, *, as_of: Seq | None = None) -> ConversationState:
        """Answer the conversation's state, now or at a main boundary (TI-03)."""
        fields = await self._asker.get(self._path, as_of=as_of)
        return read(fields["conversation"], ConversationState)

    async def entry(self, entry_id: Seq, *, as_of: Seq | None = None) -> Entry | None:
        """Answer an entry of this conversation or of its inherited prefix, None for any other.

        With `as_of`, None too for what came after that main boundary.
        """
        query = {**_only(entry_id), **({} if as_of is None else {"as_of": as_of})}
        fields = await self._asker.get(f"{self._path}/entries", **query)
        found = read(fields["entries"], list[Entry])
        return found[0] if found else None

    async def task(self, task_id: Seq, *, as_of: Seq | None = None) -> Task | None:
        """Answer a task of this conversation, now or at a main boundary (TI-02)."""
        fields = await self._asker.get(f"{self._path}/tasks", **_only(task_id), as_of=as_of)
        return next(iter(read(fields["tasks"], list[Task])), None)

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

        The page says at which main boundary it was read (WT-08).
        """
        wanted = Wanted(
            after=after, before=before, newest_first=newest_first, limit=limit, as_of=as_of
        )
        found = await pages(
            self._asker,
            f"{self._path}/entries",
            wanted,
            lambda fields: read(fields["entries"], list[Entry]),
            lambda entry: entry.id,
        )
        return EntryPage(found.items, as_of=found.as_of, before=before, after=after)

    async def tasks(
        self,
        *,
        live: bool | None = None,
        after: Seq | None = None,
        limit: int = 100,
        as_of: Seq | None = None,
    ) -> Sequence[Task]:
        """Answer a page of tasks by id; `live` True answers those unfinished now, or then."""
        found = await pages(
            self._asker,
            f"{self._path}/tasks",
            Wanted(after=after, limit=limit, as_of=as_of),
            lambda fields: read(fields["tasks"], list[Task]),
            lambda task: task.id,
            live=live,
        )
        return found.items

    def watch(
        self, *, limit: int = 50, owned: bool = False, after: Seq | None = None
    ) -> RemoteWatch:
        """Watch this conversation: a base, then every commit once, deltas and signals (WT-01).

        Arguments and events as in `Conversation.watch`; a connection that was lost is made again,
        and what it missed is delivered (WB-16).
        """
        query = {"conversation": self.id, "limit": limit, "owned": owned}
        return RemoteWatch(self._asker, path_of(f"{self._session}/events", query), after)

    # Values and lists.

    async def get_value(
        self, address: ConversationValue[Any], default: T, *, as_of: Seq | None = None
    ) -> Any | T:
        """Answer the value at an address, or `default`; inherited ones included."""
        place = _checked(address, ConversationValue)
        fields = await self._asker.get(
            f"{self._path}/values", namespace=place.namespace, key=place.key, as_of=as_of
        )
        found = decode_json(fields["values"])
        return found[0]["value"] if found else default

    async def set_value(self, address: ConversationValue[Any], value: object) -> None:
        """Set the model, the thinking level or the active tools: what a server lets a caller set.

        Raises:
            Rejected: `invariant`, for another address and as `Conversation.set_value` does.
        """
        _checked(address, ConversationValue)
        if address == MODEL:
            if not isinstance(value, ModelId):
                value = _model(value)
            await self._post("/configure", {"model": str(value)})
        elif address == THINKING:
            await self._post("/configure", {"thinking": value})
        elif address == ACTIVE_TOOLS:
            await self._post("/configure", {"active_tools": value})
        else:
            raise Rejected("invariant", f"a server sets no {address!r}; it sets model, thinking "
                           "level and active tools")  # fmt: skip

    async def read_list(
        self, address: ConversationList[Any], page: ListPage
    ) -> Sequence[ListElement]:
        """Answer a page of a list, inherited ranges included."""
        place = _checked(address, ConversationList)
        wanted = Wanted(
            after=page.after,
            before=page.before,
            newest_first=page.order == "desc",
            limit=page.limit,
            as_of=page.as_of,
        )
        found = await pages(
            self._asker,
            f"{self._path}/lists",
            wanted,
            lambda fields: [element.element() for element in read(fields["elements"], _ELEMENTS)],
            lambda element: element.seq,
            namespace=place.namespace,
            key=place.key,
        )
        for number, element in enumerate(found.items):
            if page.stop_at_tag is not None and element.tag == page.stop_at_tag:
                return found.items[: number + 1]
        return found.items

    async def configure(
        self,
        *,
        label: str | UnsetType | None = UNSET,
        steering_mode: QueueMode | UnsetType = UNSET,
        follow_up_mode: QueueMode | UnsetType = UNSET,
    ) -> None:
        """Change label and queue modes in one write; what is left out stays (OP-26)."""
        given = {"label": label, "steering_mode": steering_mode, "follow_up_mode": follow_up_mode}
        body = {name: value for name, value in given.items() if value is not UNSET}
        await self._post("/configure", body)

    async def reset_context(
        self,
        ids: Sequence[Seq] = (),
        *,
        expect_prefix_version: int | None = None,
        force: bool = False,
    ) -> None:
        """Replace the context list; creates no work (CX-13, CX-24).

        Raises:
            Rejected: `version_mismatch`, `busy`.
        """
        body = {
            "ids": list(ids),
            "expect_prefix_version": expect_prefix_version,
            "force": force,
        }
        await self._post("/reset", body)

    # Input.

    async def accept(
        self,
        content: InputContent,
        *,
        request_id: str | None = None,
        budget: Budget | None = None,
    ) -> Accepted:
        """Accept input durably; idle it opens a generation, busy it is queued as a follow-up.

        Nothing runs before a drive. `budget` holds for everything that follows from the input.
        """
        return await self._give("accept", content, request_id, budget)

    async def follow_up(self, content: InputContent, *, request_id: str | None = None) -> Accepted:
        """Queue input for the next final answer; creates no generation by itself (QU-03)."""
        return await self._give("followUp", content, request_id)

    async def steer(self, content: InputContent, *, request_id: str | None = None) -> Accepted:
        """Queue input for the next boundary of the running exchange (QU-05)."""
        return await self._give("steer", content, request_id)

    async def next_run(self, content: InputContent, *, request_id: str | None = None) -> Accepted:
        """Queue input for the next explicit idle acceptance (QU-11)."""
        return await self._give("nextRun", content, request_id)

    async def append_message(
        self, content: InputContent, *, request_id: str | None = None
    ) -> Accepted:
        """Add context without asking for an answer, at once or at a safe boundary (QU-02)."""
        return await self._give("write", content, request_id)

    async def cancel_queued(self, input_id: Seq) -> Cancelled:
        """Withdraw a queued input: `cancelled`, `already_consumed` or `not_found` (QU-14)."""
        fields = await self._asker.ask("POST", f"{self._session}/queue/{input_id}/cancel")
        return cast("Cancelled", read(fields["result"], str))

    async def flush(self, *, budget: Budget | None = None) -> tuple[Seq, ...]:
        """Start a run of what a failed or stopped one left queued; answers its inputs (D38).

        Raises:
            Rejected: `busy`, or `nothing_to_do`.
        """
        body = {"budget": _budget(budget), "drive": False}
        return read((await self._post("/flush", body))["inputs"], tuple[Seq, ...])

    async def prompt(
        self,
        content: InputContent,
        *,
        request_id: str | None = None,
        budget: Budget | None = None,
    ) -> InputResult:
        """Accept, then wait until this input is final or the drive ends; answers its result.

        An aborted one is answered when everything that was marked has ended. A server that ends
        meanwhile and begins again is asked to go on.
        """
        accepted = await self._give("accept", content, request_id, budget, runs=True)
        waiting = asyncio.ensure_future(self.wait(accepted.input_id))
        driving = asyncio.ensure_future(self.drive())
        try:
            await asyncio.wait((waiting, driving), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() or waiting.result().state == "aborted":
                await driving
                return await self.result(accepted.input_id)
            return waiting.result()
        finally:
            waiting.cancel()
            driving.cancel()
            await asyncio.gather(waiting, driving, return_exceptions=True)

    async def result(self, input_id: Seq) -> InputResult:
        """Answer what became of an input, now; raises Rejected `not_found`, `unknown_target`."""
        return await self._result(input_id, wait_s=0)

    async def wait(self, input_id: Seq) -> InputResult:
        """Wait until an input is final; observes only (D27)."""
        while True:
            result = await self._result(input_id, wait_s=WAIT_S)
            if result.final:
                return result

    # Work.

    async def drive(self, *, poll_deferred: bool = False) -> DriveResult:
        """Have the session run until it is idle, suspended or closed: all of its conversations."""
        return await drive(self._asker, self._session, poll_deferred=poll_deferred)

    async def abort(self, *, only_if: Seq | None = None) -> AbortReport:
        """Mark the foreground and drain its queues; a drive performs the cancellation (CN-01)."""
        body = {"only_if": only_if, "drive": False}
        return abort_report_of(await self._post("/abort", body))

    async def shutdown(self) -> AbortReport:
        """Cancel everything the conversation owns, background work too, and drive that (CN-21)."""
        return abort_report_of(await self._post("/shutdown"))

    # Asking.

    async def fork(
        self,
        *,
        at: Seq | None = None,
        as_of: Seq | None = None,
        context: ForkContext = "inherit",
        label: str | None = None,
        request_id: str | None = None,
    ) -> "RemoteConversation":
        """Begin a conversation at an entry (`at`), at a commit's end (`as_of`), or now (FK-02).

        Raises:
            Rejected: `unknown_target`; `deleted`; `invariant`, for a seq inside a commit or for two
                targets; `request_conflict`.
        """
        body = {"at": at, "as_of": as_of, "context": context, "label": label}
        return await self._branch("/fork", body, request_id)

    async def rewind(
        self,
        *,
        at: Seq | None = None,
        as_of: Seq | None = None,
        keep_running: bool = False,
        label: str | None = None,
        request_id: str | None = None,
    ) -> "RemoteConversation":
        """Cancel the foreground, wait for its end, and fork; answers the fork (FK-10).

        Raises:
            Rejected: as `fork`.
            Closed: the session closed before everything had ended; nothing was forked.
        """
        body = {"at": at, "as_of": as_of, "keep_running": keep_running, "label": label}
        return await self._branch("/rewind", body, request_id)

    async def _branch(
        self, path: str, body: Mapping[str, object], request_id: str | None
    ) -> "RemoteConversation":
        """Have a conversation made that begins in this one."""
        named = {**body, "request_id": request_id or self._asker.new_request_id()}
        place = path_of(f"{self._session}{path}", {"conversation": self.id})
        made = await self._asker.ask("POST", place, named, repeats=True)
        return RemoteConversation(
            self._asker, self._session_id, Seq(read(made["conversation"], int))
        )

    async def _give(
        self,
        mode: str,
        content: InputContent,
        request_id: str | None,
        budget: Budget | None = None,
        *,
        runs: bool = False,
    ) -> Accepted:
        """Have an input accepted or queued, in one of the modes of the wire (WB-10).

        With `runs` the server goes on with it at once. `duplicate` says that the server knew the
        id of the caller's; after a lost answer that may be from this very call.
        """
        messages, repairs = normalize_input(content)
        if request_id is not None:
            # A server repairs text as it comes in; an id is refused instead.
            check_request_id(request_id)
        body = {
            "mode": mode,
            # What has to be repaired may be no JSON.
            "content": content if repairs == NO_REPAIRS else messages,
            "request_id": request_id or self._asker.new_request_id(),
            "budget": _budget(budget),
            "drive": runs,
        }
        path = path_of(f"{self._session}/inputs", {"conversation": self.id})
        answer = await self._asker.answer("POST", path, body, repeats=True)
        fields = decode_json(answer.body)
        is_known = request_id is not None and REPEATED in answer.headers
        return Accepted(input_id=Seq(fields["inputId"]), duplicate=is_known)

    async def _result(self, input_id: Seq, *, wait_s: int) -> InputResult:
        path = path_of(f"{self._session}/inputs/{input_id}", {"wait": wait_s})
        result = await self._asker.record("GET", path, InputResult, repeats=True)
        if result.conv_id != self.id:
            raise Rejected(
                "unknown_target", f"input {input_id} belongs to conversation {result.conv_id}"
            )
        return result

    async def _post(self, path: str, body: object = None) -> dict[str, Any]:
        place = path_of(f"{self._session}{path}", {"conversation": self.id})
        return await self._asker.ask("POST", place, body)


class _Element(msgspec.Struct, frozen=True, kw_only=True):
    """One element of a list as the wire names it."""

    seq: Seq
    value: msgspec.Raw
    tag: str | None = None

    def element(self) -> ListElement:
        return ListElement(seq=self.seq, value_json=self.value, tag=self.tag)


_ELEMENTS: Final = list[_Element]


def _only(one: Seq) -> dict[str, int]:
    """Answer the bounds between which one id stands alone."""
    return {"after": one - 1, "before": one + 1, "limit": 1}


def _checked(token: Any, kind: type[Any]) -> Any:
    if not isinstance(token, kind):
        raise Rejected("invariant", f"{token!r} is no {kind.__name__}")
    return token


def _budget(budget: Budget | None) -> dict[str, Any] | None:
    check_budget(budget)
    return None if budget is None else msgspec.structs.asdict(budget)


def _model(value: object) -> ModelId:
    if isinstance(value, Mapping):
        return decode(checked_raw(cast("object", value)), ModelId)
    raise Rejected("invariant", f"the model {value!r} is no ModelId")
