"""Grants: what a person let run once and for all, narrowly, in one tree of a session (AQ-10).

A grant is an element of the protected session list `perdure.grants`; so is its revocation. It
covers calls of one tool, by globs over arguments or by the digest of exactly one call's arguments,
until it ends. It is only asked where a person would be: it never covers a deny.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, Struct

from perdure.errors import Rejected
from perdure.kinds.policy import covers, said
from perdure.line.line import Line
from perdure.records.addresses import GRANTS, Address
from perdure.records.approvals import Grant, GrantElement, Remember, Revocation
from perdure.records.codec import decoder, digest
from perdure.records.conversations import ConversationState
from perdure.records.seqs import Seq
from perdure.records.sessions import ListElement, ListPage
from perdure.records.tasks import Task

PAGE: Final = 1_000
"""Elements read at a time."""


class StandingGrant(Struct, frozen=True, kw_only=True):
    """A grant with its id, and how it was revoked if it was."""

    id: Seq
    grant: Grant
    revoked: Revocation | None = None

    def is_active(self, now_ms: int) -> bool:
        """Say whether it still covers anything."""
        ends = self.grant.expires_at_ms
        return self.revoked is None and (ends is UNSET or now_ms < ends)


async def read_grants(
    elements: Callable[[Address, ListPage], Awaitable[Sequence[ListElement]]],
) -> Sequence[StandingGrant]:
    """Answer every grant ever given, by id."""
    found: dict[Seq, StandingGrant] = {}
    after: Seq | None = None
    while True:
        page = await elements(GRANTS.address(), ListPage(after=after, limit=PAGE))
        for element in page:
            _note(found, element)
        if len(page) < PAGE:
            return list(found.values())
        after = page[-1].seq


def _note(found: dict[Seq, StandingGrant], element: ListElement) -> None:
    one: GrantElement = decoder(GrantElement).decode(element.value_json)
    if isinstance(one, Grant):
        found[element.seq] = StandingGrant(id=element.seq, grant=one)
    elif one.grant in found:
        found[one.grant] = StandingGrant(id=one.grant, grant=found[one.grant].grant, revoked=one)


async def granted(
    line: Line, conv_id: Seq, tool: str, args: Mapping[str, Any], *, now_ms: int
) -> StandingGrant | None:
    """Answer the first grant that covers a call."""
    grants = await read_grants(line.elements)
    if not any(one.grant.tool == tool for one in grants):
        return None
    root = await root_of_tree(line.conversation, line.task, conv_id)
    for one in grants:
        if (
            one.grant.conv_id == root
            and one.is_active(now_ms)
            and is_covered(one.grant, tool, args)
        ):
            return one
    return None


def is_covered(grant: Grant, tool: str, args: Mapping[str, Any]) -> bool:
    """Say whether a grant speaks of a call with these arguments."""
    if grant.tool != tool:
        return False
    if grant.digest is not UNSET:
        return grant.digest == args_digest(args)
    return covers(tool, {} if grant.arguments is UNSET else grant.arguments, args, allows=True)


def args_digest(args: Mapping[str, Any]) -> str:
    """Digest one call's arguments."""
    return digest({"v": 1, "args": dict(args)})


async def root_of_tree(
    conversation: Callable[[Seq], Awaitable[ConversationState | None]],
    task: Callable[[Seq], Awaitable[Task | None]],
    conv_id: Seq,
) -> Seq:
    """Answer the conversation at the top, by who owns whom; a fork is its own (AQ-10)."""
    while True:
        state = await conversation(conv_id)
        if state is None or state.owner is UNSET:
            return conv_id
        owner = await task(state.owner)
        if owner is None:
            return conv_id
        conv_id = owner.conv_id


def make_grant(
    remember: Remember, tool: str, args: Mapping[str, Any], *, root: Seq, by: str, now_ms: int
) -> Grant:
    """Make the grant of a decision on one call: those very arguments, unless globs widen it.

    Raises:
        Rejected: `invariant`, for globs that do not cover the call itself, or an end that is past.
    """
    if remember.expires_at_ms is not None and remember.expires_at_ms <= now_ms:
        raise Rejected(
            "invariant", f"the grant would end at {remember.expires_at_ms}, before now ({now_ms})"
        )
    globs = remember.arguments
    grant = Grant(
        v=1,
        tool=tool,
        conv_id=root,
        arguments=UNSET if globs is None else dict(globs),
        digest=args_digest(args) if globs is None else UNSET,
        by=by,
        timestamp=now_ms,
        expires_at_ms=UNSET if remember.expires_at_ms is None else remember.expires_at_ms,
    )
    if not is_covered(grant, tool, args):
        raise Rejected(
            "invariant",
            f"a grant for {said(tool, globs)} does not cover the call it is given for; "
            f"a shell command that runs more than one matches no glob",
        )
    return grant
