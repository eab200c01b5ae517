"""`perdure approve`: list what waits for a decision, and decide it (CM-25)."""

from collections.abc import Sequence

import click

import perdure
from perdure.cli.asking.words import Waiting, age_words, decided_words, waiting
from perdure.cli.choices import store_of
from perdure.cli.driving.drive import drive
from perdure.cli.driving.plan import Plan
from perdure.cli.endings import Ending, UsageProblem
from perdure.cli.forwarding.change import named, opening_of
from perdure.cli.forwarding.reach import reached
from perdure.cli.last import all_sessions
from perdure.cli.reading import container, reading
from perdure.cli.surface import Flags, Surface, surfaced
from perdure.cli.visible import one_line
from perdure.cli.work import Work, by_of, places_of, prepare
from perdure.errors import PerdureError
from perdure.harness.approvals import list_approvals
from perdure.opening import system_ports
from perdure.ports import Storage
from perdure.records.approvals import ApprovalOutcome, Verdict
from perdure.records.seqs import Seq


@click.command(
    help="""List the approvals that wait, or decide one of them by its ID.

    What is shown is what runs: the arguments in full. Deciding goes to the process that has the
    session open, which then goes on; when none has, the decision is stored and --drive goes on.
    """
)
@surfaced("store", "session", "timeout", "config")
@click.argument("approval", type=click.IntRange(min=1), required=False, metavar="[ID]")
@click.option(
    "--deny",
    "reason",
    is_flag=False,
    flag_value="",
    metavar="[TEXT]",
    help="Refuse the call; the model reads TEXT.",
)
@click.option("--all", "everywhere", is_flag=True, help="List those of every session of the store.")
@click.option("--drive", "goes_on", is_flag=True, help="Then go on with the session, as `resume`.")
def command(
    surface: Surface,
    *,
    approval: int | None,
    reason: str | None,
    everywhere: bool,
    goes_on: bool,
) -> Ending:
    """List or decide."""
    if approval is None:
        if reason is not None or goes_on:
            raise UsageProblem("--deny and --drive need the ID of an approval")
        return _shown(surface, perdure.run(_list(surface, everywhere=everywhere)))
    verdict: Verdict = "grant" if reason is None else "deny"
    return decide(surface, Seq(approval), verdict, reason=reason or None, goes_on=goes_on)


def decide(
    surface: Surface,
    approval: Seq,
    verdict: Verdict,
    *,
    reason: str | None = None,
    details: object = None,
    goes_on: bool = False,
) -> Ending:
    """Decide an approval, here or at the session's owner, and say what stands now."""

    async def run() -> Ending:
        url, name = await named(surface)
        said = reason if details is None else details
        async with reached(opening_of(url, name), name) as session:
            outcome = await session.decide(approval, verdict, said, by=by_of("cli"))
            is_here = session.is_here
        ending = _decided(surface, name, approval, outcome)
        if not (goes_on and is_here):
            return ending
        surface.terminal.say(_words(approval, outcome))
        ready = await prepare(surface, Work(), session=name)
        plan = Plan(
            opening=ready.opening(session=name, create=False),
            url=url,
            session=name,
            continuing=ready.continuing,
            again=ready.again,
            places=ready.places,
        )
        return await drive(surface, plan)

    return perdure.run(run())


def _decided(surface: Surface, name: str, approval: Seq, outcome: ApprovalOutcome) -> Ending:
    return Ending(
        session=name,
        data={
            "id": approval,
            "status": outcome.status,
            "applied": outcome.applied,
            "decision": outcome.decision,
        },
        text=_words(approval, outcome) + "\n",
    )


def _words(approval: Seq, outcome: ApprovalOutcome) -> str:
    stands = decided_words(outcome.status, outcome.decision)
    return f"approval {approval}: {stands}" + ("" if outcome.applied else " (decided before)")


async def _list(surface: Surface, *, everywhere: bool) -> Sequence[Waiting]:
    if not everywhere:
        url, name = await named(surface)
        async with reading(url, name) as storage:
            return await _waiting(storage, name, surface.flags)
    found: list[Waiting] = []
    async with container(store_of(surface)) as sessions:
        for info in [] if sessions is None else await all_sessions(sessions):
            assert sessions is not None
            if info.damaged is not None:
                continue
            try:
                storage = await sessions.open(info.name, create=False, read_only=True)
            except PerdureError as error:
                surface.terminal.complain(f"session {info.name!r}: {error}", "warn")
                continue
            try:
                found += await _waiting(storage, info.name, surface.flags)
            finally:
                await storage.close()
    return found


async def _waiting(storage: Storage, name: str, flags: Flags) -> Sequence[Waiting]:
    now_ms = system_ports().clock.now_ms()
    words = places_of(flags)
    return [
        waiting(view, now_ms=now_ms, words=words, session=name)
        for view in await list_approvals(storage)
    ]


def _shown(surface: Surface, found: Sequence[Waiting]) -> Ending:
    if not found:
        surface.terminal.say("nothing waits for a decision")
    return Ending(
        session=surface.flags.session,
        data={"approvals": found},
        text="\n".join(_block(one) for one in found),
    )


def _block(one: Waiting) -> str:
    where = " > ".join(str(conv) for conv in one.path)
    head = f"{one.id}  {one_line(one.tool or one.prompt)}"
    age = age_words(one.age_ms)
    lines = [f"{head}  session {one_line(one.session)}, conversation {where}, waiting for {age}"]
    if one.arguments is not None:
        lines.append(f"    {one_line(one.arguments)}")
    if one.tool is not None and one.prompt:
        lines.append(f"    {one_line(one.prompt)}")
    lines.append(f"    {one.command}")
    return "".join(f"{line}\n" for line in lines)
