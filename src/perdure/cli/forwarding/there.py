"""A session that another process has open: the same acts, asked of its control address."""

from types import MappingProxyType
from typing import Any, Final, cast

import msgspec

from perdure.cli.forwarding.here import Sent
from perdure.cli.main import load
from perdure.client.asking import REPEATED, Asker, Transport, path_of
from perdure.client.places import Place
from perdure.client.running import driven
from perdure.client.server import TRANSPORT, RemoteServer
from perdure.client.session import RemoteSession
from perdure.client.watch import RemoteWatch
from perdure.client.wire import abort_report_of, read
from perdure.drive.outcomes import DriveResult
from perdure.harness.cancellation import AbortReport
from perdure.harness.forks import ForkRequest
from perdure.hosts.clock import SystemClock
from perdure.hosts.randomness import SystemRandomness
from perdure.records.approvals import ApprovalOutcome, Verdict
from perdure.records.budgets import Budget
from perdure.records.codec import decode_json
from perdure.records.inputs import InputMode, InputResult
from perdure.records.seqs import Seq

MODES: Final = MappingProxyType({"prompt": "accept"})
"""Modes that have another name on the wire."""


class There:
    """Acts on a session through its owner; the face is that of `Here`.

    What an owner accepts it goes on with at once. A request is sent once: when it is lost, whoever
    asked looks for the owner again, which may be another one by then.
    """

    is_here = False

    def __init__(self, asker: Asker, *, session_id: str, session: str) -> None:
        self.session = session
        self._asker = asker
        self._remote = RemoteSession(asker, session_id, session)
        self._base = f"/v1/sessions/{session_id}"

    @classmethod
    async def of(cls, address: str, token: str, session: str) -> "There | None":
        """Ask an owner which session it has; None when it has another one.

        Raises:
            Unreachable: nobody answers at the address.
        """
        transport = load(TRANSPORT).HttpTransport(Place(path=address), token)
        asker = Asker(
            cast("Transport", transport),
            clock=SystemClock(),
            randomness=SystemRandomness(),
            tries=1,
        )
        for found in await RemoteServer(asker).sessions(limit=1):
            if found.name == session:
                return cls(asker, session_id=found.id, session=session)
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
        answer = await self._asker.answer("POST", self._path("/inputs", conv_id), body)
        fields = decode_json(answer.body)
        return Sent(
            input_id=Seq(fields["inputId"]),
            conversation=Seq(fields["conversation"]),
            duplicate=REPEATED in answer.headers,
        )

    async def result(self, input_id: Seq) -> InputResult:
        """Answer what became of an input."""
        return await self._asker.record("GET", f"{self._base}/inputs/{input_id}", InputResult)

    async def driven(self, *, poll: bool) -> DriveResult | None:
        """Have the session driven and answer how that ended; None while it still runs."""
        return await driven(self._asker, self._base, poll_deferred=poll)

    async def abort(self, conv_id: Seq | None, only_if: Seq | None) -> AbortReport:
        """Have what runs cancelled and what is queued withdrawn."""
        path = self._path("/abort", conv_id)
        return abort_report_of(await self._asker.ask("POST", path, {"only_if": only_if}))

    async def fork(self, request: ForkRequest) -> Seq:
        """Have a fork made, or the conversation rewound; answers the new one."""
        names = ["at", "as_of", "label", "request_id"]
        names.append("keep_running" if request.verb == "rewind" else "context")
        body = {name: getattr(request, name) for name in names}
        path = self._path(f"/{request.verb}", request.conv_id)
        made = await self._asker.ask("POST", path, body)
        return Seq(read(made["conversation"], int))

    async def decide(
        self, approval: Seq, verdict: Verdict, details: object, *, by: str
    ) -> ApprovalOutcome:
        """Have an approval decided; `by` is who the owner takes this user for."""
        path = f"{self._base}/approvals/{approval}/decision"
        body = {"decision": verdict, "details": details}
        return await self._asker.record("POST", path, ApprovalOutcome, body)

    async def rename(self, name: str) -> None:
        """Have the session renamed."""
        await self._remote.rename(name)

    async def delete(self) -> None:
        """Have the session cancelled, closed and deleted."""
        await self._remote.delete()

    def watch(self, *, conv_id: Seq | None, limit: int, after: Seq | None = None) -> RemoteWatch:
        """Watch the session, or one conversation, after the last commit that was seen."""
        query = {"limit": limit, "conversation": conv_id}
        return RemoteWatch(self._asker, path_of(f"{self._base}/events", query), after)

    def _path(self, path: str, conv_id: Seq | None) -> str:
        return path_of(f"{self._base}{path}", {"conversation": conv_id})
