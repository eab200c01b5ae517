"""The one place that opens a session, or else reaches its owner (CM-15, CM-17).

A command that changes a session asks `reached` for it. Whoever owns the session may begin or end
meanwhile, so both ways are tried in turn until one works or the time is over.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from perdure.cli.forwarding.here import Here
from perdure.cli.forwarding.there import There
from perdure.cli.reading import reading
from perdure.errors import Closed, StorageBusy, Unreachable
from perdure.hosts.control_socket import token_of
from perdure.opening import OpenSession
from perdure.records.sessions import Owner
from perdure.storage.owners import busy

ANSWER_S: Final = 5.0
"""How long an owner has to answer (CM-17)."""

TRY_AGAIN_S: Final = 0.05


@asynccontextmanager
async def reached(opening: OpenSession, session: str) -> AsyncGenerator[Here | There]:
    """Open a session, or reach the process that has it open; closes what it opened.

    Raises:
        StorageBusy: its owner does not answer; nothing was changed.
        Rejected: as opening says.
    """
    found = await reach(opening, session)
    try:
        yield found
    finally:
        if isinstance(found, Here):
            await opening.__aexit__(None, None, None)


async def reach(opening: OpenSession, session: str | None) -> Here | There:
    """Open a session, which the caller closes then, or reach its owner; raises as `reached`."""
    clock = asyncio.get_running_loop().time
    end = clock() + ANSWER_S
    while True:
        try:
            return Here(await opening.__aenter__())
        except StorageBusy as error:
            refusal = error
        owner = owner_of(refusal.holder)
        if owner is not None and owner.host != os.uname().nodename:
            raise unanswered(refusal, "that is another host") from None
        there = None if session is None else await answering(owner, session, end - clock())
        if there is not None:
            return there
        if clock() >= end:
            raise unanswered(refusal, f"it did not answer in {ANSWER_S:.0f} s") from None
        await asyncio.sleep(TRY_AGAIN_S)


async def owner_there(url: str, session: str) -> There | None:
    """Reach the process that has a session open; None when none has, or it has just ended.

    Raises:
        StorageBusy: it does not answer.
        Rejected: `not_found`.
    """
    clock = asyncio.get_running_loop().time
    end = clock() + ANSWER_S
    while True:
        async with reading(url, session) as storage:
            owner = storage.info.owner
        if owner is None:
            return None
        error = busy(f"the session {session!r}", owner)
        if owner.host != os.uname().nodename:
            raise unanswered(error, "that is another host")
        there = await answering(owner, session, end - clock())
        if there is not None:
            return there
        if clock() >= end:
            raise unanswered(error, f"it did not answer in {ANSWER_S:.0f} s")
        await asyncio.sleep(TRY_AGAIN_S)


async def answering(owner: Owner | None, session: str, wait_s: float) -> There | None:
    """Ask an owner which session it has; None when it does not say, or has another one."""
    if owner is None or owner.control is None:
        return None
    try:
        async with asyncio.timeout(max(wait_s, TRY_AGAIN_S)):
            return await There.of(owner.control, token_of(owner.control), session)
    except (OSError, TimeoutError, Closed, Unreachable):
        return None


def owner_of(holder: Mapping[str, object]) -> Owner | None:
    """Read an owner from a refusal; None when the refusal does not name one."""
    try:
        return msgspec.convert(dict(holder), Owner)
    except msgspec.ValidationError:
        return None


def unanswered(error: StorageBusy, why: str) -> StorageBusy:
    """Word that an owner does not answer; who it is stands in the refusal already (CM-17)."""
    return StorageBusy(f"{error}; {why}", error.holder)
