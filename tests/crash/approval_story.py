"""A person decides three held calls of one session, as one process lives it.

The calls have the same name, and two of them the same arguments. Witnesses outside the store, one
synced line each: `decided` (decisions that were answered) and `effects` (calls that ran).
"""

import asyncio
import os
import signal
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

import perdure
from perdure.harness.approvals import list_approvals
from perdure.harness.harness import Harness
from perdure.opening import OpenSession, open_store, system_ports
from perdure.ports import Sessions, Storage, ToolContext
from perdure.records.approvals import Verdict
from perdure.records.codec import canonical, decode_json
from perdure.records.seqs import Seq
from perdure.records.writes import Commit, PatchTask, SettleTask
from perdure.testing.crash_rig.audit import Journal
from perdure.testing.scripted_model import Reply, ScriptedModels, call, say
from perdure.toolkits.define import tool

SESSION: Final = "desk"
AMOUNTS: Final = (10, 99, 10)

Place: TypeAlias = Literal["decision", "intent", "outcome"]
"""A commit of one call's life: its decision, the intent to run it, its outcome."""

STATUSES: Final[dict[Place, tuple[type, frozenset[str]]]] = {
    "decision": (SettleTask, frozenset({"granted", "denied"})),
    "intent": (PatchTask, frozenset({"running"})),
    "outcome": (SettleTask, frozenset({"done"})),
}


class Death(Struct, frozen=True, kw_only=True):
    """Where a life ends by itself: on one side of the nth commit of a kind becoming durable."""

    place: Place
    nth: int
    side: Literal["before", "after"]


class Plan(Struct, frozen=True, kw_only=True):
    """What the person decides, call by call, in which order, and where this life ends."""

    verdicts: tuple[Verdict, ...]
    order: tuple[int, ...]
    death: Death | None = None


class Seen(Struct, frozen=True, kw_only=True):
    """One held call as the store tells it; `shown` is the text of its arguments."""

    call: str
    status: str
    shown: str
    decision: str | None


class Report(Struct, frozen=True, kw_only=True):
    """What the last life found when it opened the session, and what it left.

    `outcomes` are those of the results, by call; `said` is the answer to a last input.
    """

    found: tuple[Seen, ...]
    left: tuple[Seen, ...]
    outcomes: tuple[tuple[str, str], ...]
    faults: tuple[str, ...]
    said: str


def note(file: Path, line: str) -> None:
    """Write one line that outlives everything."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, f"{line}\n".encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def noted(file: Path) -> Counter[str]:
    """Count the lines of a witness."""
    return Counter(file.read_text().splitlines() if file.exists() else [])


class Dying:
    """A storage whose process ends at a planned commit."""

    def __init__(self, inner: Storage, death: Death) -> None:
        self._inner = inner
        self._death = death
        self._left = death.nth

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, commit: Commit, *, barrier: bool) -> None:
        """Commit, or die on one side of it."""
        kind, statuses = STATUSES[self._death.place]
        for write in commit.writes:
            self._left -= isinstance(write, kind) and getattr(write, "status", None) in statuses
        if self._left > 0:
            await self._inner.commit(commit, barrier=barrier)
            return
        if self._death.side == "after":
            await self._inner.commit(commit, barrier=barrier)
        os.kill(os.getpid(), signal.SIGKILL)


class DyingSessions:
    """A container that hands out storages that die."""

    def __init__(self, inner: Sessions, death: Death) -> None:
        self._inner = inner
        self._death = death

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def open(self, *args: Any, **options: Any) -> Any:
        """Open a session."""
        return Dying(await self._inner.open(*args, **options), self._death)


def opening(folder: Path, replies: list[Reply], death: Death | None = None) -> OpenSession:
    """Open the session, with the one tool there is."""

    @tool(replay="never", approval="ask")
    async def pay(amount: int, ctx: ToolContext) -> str:
        """Pay an amount."""
        args = canonical({"amount": amount}).decode()
        await asyncio.to_thread(note, folder / "effects", f"{ctx.call_id} {args}")
        return f"paid {amount}"

    url = f"sqlite:{folder / 'store.db'}"
    sessions = None
    if death is not None:
        sessions = cast("Sessions", DyingSessions(open_store(url, system_ports()), death))
    return perdure.open(
        url,
        session=SESSION,
        model="scripted:x",
        models=ScriptedModels(replies),
        tools=[pay],
        sessions=sessions,
        control=False,
    )


async def ask(folder: Path) -> None:
    """Live until all three calls are held."""
    calls = [call("pay", {"amount": amount}, call_id=f"c{at}") for at, amount in enumerate(AMOUNTS)]
    async with opening(folder, [say(*calls)]) as harness:
        root = await harness.root()
        await root.accept("pay them")
        await root.drive()


def live(folder: Path, plan: Plan, parent: Connection) -> None:
    """Decide and drive until killed; whoever is not answers a `Report`."""
    asyncio.run(_live(folder, plan, parent))


async def _live(folder: Path, plan: Plan, parent: Connection) -> None:
    session = opening(folder, [say("fine"), say("fine")], plan.death)
    async with session as harness:
        root = await harness.root()
        found = await _seen(session)
        parent.send(None)
        drives = [asyncio.create_task(root.drive())]
        for at in plan.order:
            approval, seen = found[at]
            if seen.decision is None:
                await _decide(folder, harness, approval, seen, plan.verdicts[at])
                drives.append(asyncio.create_task(root.drive()))
        await asyncio.gather(*drives)
        await root.drive()
        if await root.tasks(live=True):
            return
        said = await root.prompt("and now?")
        journal = Journal().fold(await harness.commits(limit=1_000))
        names = {result.id: f"c{result.call_index}" for result in journal.results}
        parent.send(
            Report(
                found=tuple(seen for _, seen in found),
                left=tuple(seen for _, seen in await _seen(session)),
                outcomes=tuple((names[one.id], one.outcome) for one in journal.results),
                faults=tuple(journal.faults),
                said=said.text,
            )
        )


async def _decide(
    folder: Path, harness: Harness, approval: Seq, seen: Seen, verdict: Verdict
) -> None:
    outcome = await harness.decide_approval(approval, verdict, by="person")
    assert outcome.decision is not None
    await asyncio.to_thread(note, folder / "decided", f"{seen.call} {outcome.decision.decision}")


async def _seen(session: OpenSession) -> list[tuple[Seq, Seen]]:
    storage = await session.reader()
    found: list[tuple[Seq, Seen]] = []
    for view in await list_approvals(storage, waiting_only=False):
        assert view.tool_task is not None
        task = (await storage.tasks([view.tool_task]))[view.tool_task]
        seen = Seen(
            call=decode_json(task.state_json)["callId"],
            status=view.status,
            shown=view.args_text or "",
            decision=None if view.decision is None else view.decision.decision,
        )
        found.append((view.id, seen))
    await storage.close()
    return found
