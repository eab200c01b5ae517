"""A session that this command has opened: the acts of a person, done on it."""

from msgspec import Struct

from perdure.errors import Rejected
from perdure.harness.cancellation import AbortReport
from perdure.harness.conversation import Conversation
from perdure.harness.forks import ForkRequest
from perdure.harness.harness import Harness
from perdure.records.approvals import ApprovalOutcome, Verdict
from perdure.records.budgets import Budget
from perdure.records.inputs import Accepted, InputMode
from perdure.records.seqs import Seq


class Sent(Struct, frozen=True, kw_only=True):
    """A text that was accepted or queued."""

    input_id: Seq
    conversation: Seq
    duplicate: bool = False


class Here:
    """Acts on an open harness; the face is that of `There`."""

    is_here = True

    def __init__(self, harness: Harness) -> None:
        self.harness = harness

    async def conversation(self, conv_id: Seq | None) -> Conversation:
        """Answer a conversation, the root for None; raises Rejected `unknown_target`."""
        return await conversation_of(self.harness, conv_id)

    async def send(
        self,
        conv_id: Seq | None,
        mode: InputMode,
        text: str,
        request_id: str | None,
        budget: Budget | None = None,
    ) -> Sent:
        """Accept or queue a text."""
        conversation = await self.conversation(conv_id)
        accepted = await give(conversation, mode, text, request_id, budget)
        return Sent(
            input_id=accepted.input_id,
            conversation=conversation.id,
            duplicate=accepted.duplicate,
        )

    async def abort(self, conv_id: Seq | None, only_if: Seq | None) -> AbortReport:
        """Mark what runs, withdraw what is queued, and finish the cancellation."""
        conversation = await self.conversation(conv_id)
        report = await conversation.abort(only_if=only_if)
        if report.marked or report.joined:
            await conversation.drive(wait_timers=False)
        return report

    async def fork(self, request: ForkRequest) -> Seq:
        """Fork, or rewind; answers the new conversation."""
        conversation = await self.conversation(request.conv_id)
        if request.verb == "rewind":
            made = await conversation.rewind(
                at=request.at,
                as_of=request.as_of,
                keep_running=request.keep_running,
                label=request.label,
                request_id=request.request_id,
            )
        else:
            made = await conversation.fork(
                at=request.at,
                as_of=request.as_of,
                context=request.context,
                label=request.label,
                request_id=request.request_id,
            )
        return made.id

    async def decide(
        self, approval: Seq, verdict: Verdict, details: object, *, by: str
    ) -> ApprovalOutcome:
        """Decide an approval."""
        return await self.harness.decide_approval(approval, verdict, details=details, by=by)


async def conversation_of(harness: Harness, conv_id: Seq | None) -> Conversation:
    """Answer a conversation of a session, the root for None.

    Raises:
        Rejected: `unknown_target`.
    """
    if conv_id is None:
        return await harness.root()
    found = await harness.conversation(conv_id)
    if found is None:
        raise Rejected("unknown_target", f"there is no conversation {conv_id}")
    return found


async def give(
    conversation: Conversation,
    mode: InputMode,
    text: str,
    request_id: str | None,
    budget: Budget | None = None,
) -> Accepted:
    """Accept a text with its budget, or queue it where the mode says."""
    match mode:
        case "steer":
            return await conversation.steer(text, request_id=request_id)
        case "followUp":
            return await conversation.follow_up(text, request_id=request_id)
        case "nextRun":
            return await conversation.next_run(text, request_id=request_id)
        case _:
            return await conversation.accept(text, request_id=request_id, budget=budget)
