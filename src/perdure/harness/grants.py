"""Grants as people meet them: list what runs without a question, and take it back (AQ-10)."""

from collections.abc import Sequence

from perdure.errors import Rejected
from perdure.harness.harness import Harness
from perdure.kinds.grants import StandingGrant, read_grants
from perdure.line.command import Command
from perdure.ports import Storage
from perdure.records.addresses import GRANTS
from perdure.records.approvals import Revocation
from perdure.records.seqs import Seq


async def list_grants(storage: Storage) -> Sequence[StandingGrant]:
    """Answer every grant of a session by id, revoked and expired ones too; needs no lock."""
    return await read_grants(storage.elements)


async def revoke_grant(harness: Harness, grant_id: Seq, *, by: str = "api") -> bool:
    """End a grant for calls to come, in one barrier commit; False when it was revoked before.

    Raises:
        Rejected: `not_found`; `invariant` for an empty `by`.
    """
    if not by:
        raise Rejected("invariant", f"by is {by!r}; it says who revokes, such as 'api:ada'")
    core = harness._core  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # its own room
    revoked: list[bool] = []

    async def build(tx: Command) -> None:
        known = {one.id: one for one in await read_grants(core.line.elements)}
        if grant_id not in known:
            raise Rejected("not_found", f"there is no grant {grant_id}")
        revoked.append(known[grant_id].revoked is None)
        if revoked[0]:
            now_ms = core.services.clock.now_ms()
            ended = Revocation(v=1, grant=grant_id, by=by, timestamp=now_ms)
            tx.append_list(GRANTS.address(), ended)

    await core.submit(build, barrier=True)
    return revoked[0]
