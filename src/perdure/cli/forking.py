"""What `perdure fork` and `perdure rewind` share: the target, the fork, and what stays (CM-24)."""

import secrets
from collections.abc import Sequence
from typing import Final

import click
import msgspec

import perdure
from perdure.cli.endings import Ending, UsageProblem
from perdure.cli.forwarding.change import named, opening_of
from perdure.cli.forwarding.reach import reached
from perdure.cli.reading import reading
from perdure.cli.surface import COMMIT, POSITION, Surface
from perdure.cli.tables import table
from perdure.cli.work import Work, prepare
from perdure.errors import Closed
from perdure.harness.effects import Effect, effects_after
from perdure.harness.forks import ForkRequest, beginning
from perdure.harness.overview import root_of
from perdure.opening import OpenSession
from perdure.ports import Storage
from perdure.records.seqs import Seq

REQUEST_BYTES: Final = 8

TRIES: Final = 3
"""How often a fork is asked for when owners end over it."""

AT = click.option(
    "--at", type=POSITION, metavar="ENTRY", help="The commit that this entry belongs to."
)
AS_OF = click.option("--as-of", type=COMMIT, metavar="COMMIT", help="The end of this commit.")
LABEL = click.option("--label", metavar="TEXT", help="A name for the new conversation.")
REQUEST_ID = click.option(
    "--request-id",
    metavar="KEY",
    help="A name for this request: repeating it gives the first answer, not a second one.",
)
DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Change nothing; print only what would stay in the world."
)


def forked(surface: Surface, request: ForkRequest, *, dry_run: bool) -> Ending:
    """Fork or rewind, here or at the session's owner; prints the new conversation's id.

    The calls that ran after the point are told beside it: a fork takes nothing back.
    """
    if request.at is not None and request.as_of is not None:
        raise UsageProblem("--at and --as-of exclude each other")

    async def run() -> tuple[str, Seq | None, Sequence[Effect]]:
        url, name = await named(surface)
        async with reading(url, name) as storage:
            meant = await _meant(storage, surface, request)
            boundary = await _boundary(storage, meant)
            if dry_run:
                return name, None, await effects_after(storage, meant.conv_id, boundary)
        made = await _made(surface, url, name, meant)
        async with reading(url, name) as storage:
            return name, made, await effects_after(storage, meant.conv_id, boundary)

    name, made, effects = perdure.run(run())
    words = _words(effects)
    if made is not None:
        surface.terminal.say(words.rstrip("\n"))
    return Ending(
        session=name,
        conversation=made,
        data={"conversation": made, "effects": effects},
        text=words if made is None else f"{made}\n",
    )


async def _made(surface: Surface, url: str, name: str, request: ForkRequest) -> Seq:
    """Make it here or at the owner; an owner that ends over it is followed by another try.

    A `perdure run` whose input is cancelled by a rewind ends, and may close before it has forked.
    The request id makes a second try answer what the first one did.
    """
    tries = 0
    while True:
        tries += 1
        async with reached(await _opening(surface, url, name, request), name) as session:
            try:
                return await session.fork(request)
            except (Closed, OSError):
                if session.is_here or tries == TRIES:
                    raise


async def _opening(surface: Surface, url: str, name: str, request: ForkRequest) -> OpenSession:
    """Answer the session to open; what is cancelled may need its model or its tools to end."""
    if request.verb == "rewind" and not request.keep_running:
        ready = await prepare(surface, Work(), session=name, url=url)
        return ready.opening(session=name, create=False)
    return opening_of(url, name)


async def _meant(storage: Storage, surface: Surface, request: ForkRequest) -> ForkRequest:
    """Answer the request with its conversation, the root unless one is named, and an id."""
    conv_id = surface.flags.conversation
    if conv_id is None:
        root = await root_of(storage)
        assert root is not None, "a session with commits has a root"
        conv_id = root.id
    request_id = request.request_id or f"cli-{secrets.token_hex(REQUEST_BYTES)}"
    return msgspec.structs.replace(request, conv_id=Seq(conv_id), request_id=request_id)


async def _boundary(storage: Storage, request: ForkRequest) -> Seq:
    """Answer the boundary of a target, refused here as it would be there."""
    at, as_of = request.at, request.as_of
    if at is None and as_of is None:
        as_of = await storage.boundary_at(storage.info.last_commit_ms)
    return (await beginning(storage, request.conv_id, at=at, as_of=as_of)).link.as_of


def _words(effects: Sequence[Effect]) -> str:
    if not effects:
        return "no call ran after that point\n"
    rows = [(one.result or one.task, one.tool, one.outcome, _args(one)) for one in effects]
    return "stays in the world:\n" + table(
        ("entry", "tool", "outcome", "arguments"), [[str(row[0]), *row[1:]] for row in rows]
    )


def _args(effect: Effect) -> str | None:
    return None if effect.args is None else msgspec.json.encode(effect.args).decode()
