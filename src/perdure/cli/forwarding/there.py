"""A session that another process has open: the same acts, asked of its control address."""

from collections.abc import AsyncGenerator
from types import MappingProxyType
from typing import Any, Final, cast
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from perdure.cli.forwarding.exact import without_texts
from perdure.cli.forwarding.here import Sent
from perdure.cli.main import load
from perdure.drive.outcomes import DriveOutcome, DriveResult, Wait
from perdure.harness.cancellation import AbortReport, Drained
from perdure.harness.forks import ForkRequest
from perdure.records.approvals import ApprovalOutcome, Verdict
from perdure.records.budgets import Budget
from perdure.records.codec import decode
from perdure.records.inputs import InputMode
from perdure.records.messages import UserMessage
from perdure.records.seqs import Seq

CALLS: Final = "perdure.cli.forwarding.calls"
"""What speaks HTTP; loaded for the first request, since most commands make none (K06)."""

MODES: Final = MappingProxyType({"prompt": "accept"})
"""Modes that have another name on the wire."""

WAIT_S: Final = 30
"""How long one request waits for a drive to end; it is asked again then."""


class SseEvent(Struct, frozen=True, kw_only=True):
    """One event of a stream: its name, its id, "" when it carries none, and its data."""

    name: str
    id: str
    data: bytes


class There:
    """Acts on a session through its owner; the face is that of `Here`."""

    is_here = False

    def __init__(self, address: str, token: str, *, session_id: str, session: str) -> None:
        self.session = session
        self._address = address
        self._token = token
        self._base = f"/v1/sessions/{session_id}"

    @classmethod
    async def of(cls, address: str, token: str, session: str) -> "There | None":
        """Ask an owner which session it has; None when it has another one.

        Raises:
            OSError: nobody answers at the address.
        """
        answer = await _call(address, token, "GET", "/v1/sessions?limit=1")
        for found in answer["sessions"]:
            if found["name"] == session:
                return cls(address, token, session_id=found["id"], session=session)
        return None

    async def send(
        self,
        conv_id: Seq | None,
        mode: InputMode,
        text: str,
        request_id: str | None,
        budget: Budget | None = None,
    ) -> Sent:
        """Have a text accepted or queued; the owner goes on with it."""
        body: dict[str, Any] = {"mode": MODES.get(mode, mode), "content": text}
        body |= {"request_id": request_id}
        if budget is not None:
            body |= {"budget": msgspec.structs.asdict(budget)}
        answer = await self._post("/inputs", conv_id, body)
        return Sent(input_id=Seq(answer["inputId"]), conversation=Seq(answer["conversation"]))

    async def result(self, input_id: Seq) -> dict[str, Any]:
        """Answer what became of an input."""
        return await _call(self._address, self._token, "GET", f"{self._base}/inputs/{input_id}")

    async def driven(self, *, poll: bool) -> DriveResult | None:
        """Have the session driven and answer how that ended; None while it still runs."""
        path = f"{self._base}/drive?wait={WAIT_S}"
        answer = await _call(self._address, self._token, "POST", path, {"poll_deferred": poll})
        if answer.get("driving"):
            return None
        return DriveResult(
            outcome=DriveOutcome(answer["outcome"]),
            waiting_for=msgspec.convert(answer["waitingFor"], tuple[Wait, ...]),
            next_at=answer["nextAt"],
        )

    async def abort(self, conv_id: Seq | None, only_if: Seq | None) -> AbortReport:
        """Have what runs cancelled and what is queued withdrawn."""
        body = {} if only_if is None else {"only_if": only_if}
        answer = await self._post("/abort", conv_id, body)
        return AbortReport(
            marked=tuple(answer["marked"]),
            drained=tuple(_drained(one) for one in answer["drained"]),
            joined=answer["joined"],
        )

    async def fork(self, request: ForkRequest) -> Seq:
        """Have a fork made, or the conversation rewound; answers the new one."""
        names = ["at", "as_of", "label", "request_id"]
        names.append("keep_running" if request.verb == "rewind" else "context")
        body = {name: getattr(request, name) for name in names}
        answer = await self._post(f"/{request.verb}", request.conv_id, body)
        return Seq(answer["conversation"])

    async def decide(
        self, approval: Seq, verdict: Verdict, details: object, *, by: str
    ) -> ApprovalOutcome:
        """Have an approval decided; `by` is who the owner takes this user for."""
        body = {"decision": verdict, **({} if details is None else {"details": details})}
        answer = await self._post(f"/approvals/{approval}/decision", None, body)
        return decode(without_texts(msgspec.json.encode(answer)), ApprovalOutcome)

    async def rename(self, name: str) -> None:
        """Have the session renamed."""
        await _call(self._address, self._token, "PATCH", self._base, {"name": name})

    async def delete(self) -> None:
        """Have the session cancelled, closed and deleted."""
        await _call(self._address, self._token, "DELETE", f"{self._base}?confirm=true")

    def events(
        self, *, conv_id: Seq | None, limit: int, after: str = ""
    ) -> AsyncGenerator[SseEvent]:
        """Watch the session, or one conversation; `after` is the last id that was seen."""
        query: dict[str, object] = {"limit": limit}
        if conv_id is not None:
            query["conversation"] = conv_id
        path = f"{self._base}/events?{urlencode(query)}"
        stream = load(CALLS).events(self._address, self._token, path, after=after)
        return cast("AsyncGenerator[SseEvent]", stream)

    async def _post(self, path: str, conv_id: Seq | None, body: object) -> dict[str, Any]:
        query = "" if conv_id is None else f"?conversation={conv_id}"
        return await _call(self._address, self._token, "POST", f"{self._base}{path}{query}", body)


async def _call(
    address: str, token: str, method: str, path: str, body: object = None
) -> dict[str, Any]:
    return cast("dict[str, Any]", await load(CALLS).call(address, token, method, path, body))


def _drained(one: dict[str, Any]) -> Drained:
    return Drained(
        input_id=one["inputId"],
        conv_id=one["conv"],
        mode=one["mode"],
        messages=msgspec.convert(one["messages"], tuple[UserMessage, ...]),
    )
