"""RemoteSession: one session of a server, with the face of `Harness`."""

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from perdure.client.asking import Asker, path_of
from perdure.client.conversation import RemoteConversation
from perdure.client.pages import Wanted, pages
from perdure.client.running import drive
from perdure.client.watch import RemoteWatch
from perdure.client.wire import read, read_renamed, usage_of
from perdure.drive.outcomes import DriveResult
from perdure.errors import Rejected
from perdure.records.addresses import SessionValue, entry_label
from perdure.records.approvals import ApprovalOutcome, ApprovalView, Verdict
from perdure.records.codec import decode_json
from perdure.records.conversations import ConversationState
from perdure.records.seqs import NO_SEQ, Seq
from perdure.records.usage import UsageTotals
from perdure.records.watch import WatchCommit
from perdure.records.writes import Commit


class RemoteSession:
    """One session of a server: conversations, drive, approvals, usage.

    Methods have the names, arguments, answers and errors of `harness.Harness`; what no route offers
    is not here. It stays the server's: there is nothing to close.
    """

    def __init__(self, asker: Asker, session_id: str, name: str) -> None:
        """Bind to the session; made by `RemoteServer.session`."""
        self.id = session_id
        self.name = name
        self._asker = asker
        self._path = f"/v1/sessions/{session_id}"

    # Conversations.

    async def root(self) -> RemoteConversation:
        """Answer the conversation created without parent or owner (OP-23)."""
        return await self._conversation("root")

    async def conversation(self, conv_id: Seq) -> RemoteConversation | None:
        """Answer a conversation by id, None when there is none."""
        try:
            return await self._conversation(str(conv_id))
        except Rejected as error:
            if error.code != "unknown_target":
                raise
            return None

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
        found = await pages(
            self._asker,
            f"{self._path}/conversations",
            Wanted(after=after, limit=limit, as_of=as_of),
            lambda fields: read(fields["conversations"], list[ConversationState]),
            lambda state: state.id,
            owner=owner,
            parent=parent,
        )
        return found.items

    async def _conversation(self, word: str) -> RemoteConversation:
        fields = await self._asker.get(f"{self._path}/conversations/{word}")
        state = read(fields["conversation"], ConversationState)
        return RemoteConversation(self._asker, self.id, state.id)

    async def rename(self, name: str) -> None:
        """Give the session a new unique name; raises Rejected `invariant`."""
        await self._asker.ask("PATCH", self._path, {"name": name})
        self.name = name

    async def delete(self) -> None:
        """Delete the session with all that is in it, for good.

        Raises:
            Rejected: `busy`, while the server uses it.
        """
        await self._asker.ask("DELETE", path_of(self._path, {"confirm": True}))

    # Work.

    async def drive(self, *, poll_deferred: bool = False) -> DriveResult:
        """Have every independent tree run until nothing is live, or nothing can move (OP-07)."""
        return await drive(self._asker, self._path, poll_deferred=poll_deferred)

    async def approvals(self, *, waiting_only: bool = True) -> Sequence[ApprovalView]:
        """Answer the approvals that wait, or all, with exactly the arguments that would run."""
        found = list[ApprovalView]()
        after: Seq | None = None
        while True:
            status = "waiting" if waiting_only else "all"
            fields = await self._asker.get(f"{self._path}/approvals", status=status, after=after)
            found += [
                read_renamed(one, ApprovalView) for one in read(fields["approvals"], list[Raw])
            ]
            after = decode_json(fields["next"])
            if after is None:
                return found

    async def decide_approval(
        self, approval_id: Seq, decision: Verdict, *, details: object = None
    ) -> ApprovalOutcome:
        """Grant or deny what waits for a person; the first decision counts (D17, AQ-06).

        Who decided is stored as the subject of this caller's token.

        Raises:
            Rejected: `not_found`; `unknown_target` for a task of another kind; `busy` while it is
                not announced yet; `invariant` for anything but grant and deny.
        """
        body = {"decision": decision, "details": details, "drive": False}
        path = f"{self._path}/approvals/{approval_id}/decision"
        # Twice does no harm, but the second answer would say that another decision stands.
        return await self._asker.record("POST", path, ApprovalOutcome, body)

    def watch(self, *, limit: int = 50, after: Seq | None = None) -> RemoteWatch:
        """Watch every conversation; the base is the root's, its tasks are the session's.

        `limit` and `after` as in `RemoteConversation.watch`.
        """
        return RemoteWatch(self._asker, path_of(f"{self._path}/events", {"limit": limit}), after)

    # Values, the journal.

    async def set_value(self, address: SessionValue[Any], value: object) -> None:
        """Set the label of an entry: the one session value that a server lets a caller set.

        Raises:
            Rejected: `invariant` for another address, `not_found` for no entry.
        """
        await self._label(address, value)

    async def delete_value(self, address: SessionValue[Any]) -> None:
        """Remove the label of an entry; raises as `set_value` does."""
        await self._label(address, None)

    async def _label(self, address: SessionValue[Any], label: object) -> None:
        key = address.key
        if not key.isdigit() or address != entry_label(Seq(int(key))):
            raise Rejected("invariant", f"a server sets no {address!r}; it sets entry labels")
        await self._asker.ask("POST", f"{self._path}/labels/{key}", {"label": label})

    async def commits(self, *, after: Seq = NO_SEQ, limit: int = 100) -> Sequence[Commit]:
        """Answer main commits in order (BR-10)."""
        fields = await self._asker.get(f"{self._path}/commits", after=after, limit=limit)
        return [
            Commit(
                first_seq=one.first_seq,
                last_seq=one.last_seq,
                time_ms=one.time_ms,
                writes=tuple(write.change for write in one.writes),
            )
            for one in read(fields["commits"], list[WatchCommit])
        ]

    async def usage_totals(
        self, conv_id: Seq | None = None, *, as_of: Seq | None = None
    ) -> UsageTotals:
        """Answer what a conversation, or the session, used; unknown attempts apart (US-10)."""
        fields = await self._asker.get(f"{self._path}/usage", conversation=conv_id, as_of=as_of)
        return usage_of(fields["usage"])
