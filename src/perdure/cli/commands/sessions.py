"""`perdure sessions`: list, show, rename and delete (CM-23)."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import click
from msgspec import Struct

import perdure
from perdure.cli.choices import store_of
from perdure.cli.commands.inspect import as_document, as_words, state_of
from perdure.cli.endings import Ending, Spent, UsageProblem
from perdure.cli.forwarding.reach import owner_there
from perdure.cli.groups import DefaultGroup
from perdure.cli.last import folder_in, not_found
from perdure.cli.names import session_names
from perdure.cli.reading import container, reading
from perdure.cli.spending import spent_of, spent_words
from perdure.cli.surface import Surface, surfaced
from perdure.cli.tables import facts, table, when
from perdure.cli.terminal import stdin_is_terminal
from perdure.errors import PerdureError, Rejected
from perdure.harness.overview import Overview, overview
from perdure.hosts.launch_places import remove_launches
from perdure.ports import Sessions
from perdure.records.sessions import Owner, SessionInfo

LIMIT_DEFAULT = 100
LIMIT_MAX = 1_000
"""Sessions of one page (CM-23)."""


class Row(Struct, frozen=True, kw_only=True):
    """One session of a list; a damaged one has its reason and nothing that would need reading."""

    name: str
    id: str
    folder: str | None
    created_ms: int
    last_commit_ms: int
    last_seq: int
    state: str
    owner: Owner | None
    approvals: int
    spent: Spent | None
    damaged: str | None


@click.group(cls=DefaultGroup, help="List, show, rename and delete sessions.")
def command() -> None:
    """Hold the subcommands."""


@command.command("list", help="List the sessions of a store by name.")
@surfaced("store", "config")
@click.option("--after", metavar="NAME", help="Begin after this name.")
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=LIMIT_DEFAULT,
    show_default=True,
    help="How many at most.",
)
def list_sessions(surface: Surface, *, after: str | None, limit: int) -> Ending:
    """Read a page and print it."""

    async def run() -> list[Row]:
        async with container(store_of(surface)) as sessions:
            if sessions is None:
                return []
            page = await sessions.page(after=after, limit=limit)
            return [await _row(sessions, info) for info in page]

    rows = perdure.run(run())
    shown = [
        (row.name, row.state, when(row.last_commit_ms), row.approvals, _spent(row), row.folder)
        for row in rows
    ]
    text = table(("name", "state", "last commit", "approvals", "spent", "folder"), shown)
    if not rows:
        surface.terminal.say("there are no sessions")
    elif len(rows) == limit:
        surface.terminal.say(f"more may follow: --after {rows[-1].name!r}", "dim")
    return Ending(data=rows, text=text if rows else "")


@command.command("show", help="Show one session: what `inspect` shows, and where it was made.")
@surfaced("store", "config")
@click.argument("name", shell_complete=session_names)
def show_session(surface: Surface, *, name: str) -> Ending:
    """Read and print."""

    async def run() -> tuple[Overview, str | None, int]:
        async with reading(store_of(surface), name) as storage:
            openings = await storage.openings(limit=1)
            epoch = openings[0].epoch if openings else 0
            return await overview(storage), await folder_in(storage), epoch

    found, folder, epoch = perdure.run(run())
    more: list[tuple[str, object]] = [
        ("folder", folder),
        ("created", when(found.info.created_ms)),
        ("openings", epoch),
    ]
    return Ending(
        session=name,
        conversation=found.conversation,
        usage=spent_of(found.usage),
        data={**as_document(found), "folder": folder, "openings": epoch},
        text=facts(more) + as_words(found),
    )


@command.command("rename", help="Give a session a new name; nothing else changes.")
@surfaced("store", "config")
@click.argument("old", shell_complete=session_names)
@click.argument("new")
def rename_session(surface: Surface, *, old: str, new: str) -> Ending:
    """Rename."""

    async def run() -> None:
        there = await owner_there(store_of(surface), old)
        if there is not None:
            await there.rename(new)
            return
        async with _writable(surface, old) as sessions:
            await sessions.rename(old, new)

    perdure.run(run())
    surface.terminal.say(f"{old!r} is now {new!r}")
    return Ending(session=new, data={"old": old, "new": new})


@command.command("delete", help="Delete a session: its transcript, files and launch folders.")
@surfaced("store", "config")
@click.argument("name", shell_complete=session_names)
@click.option("--yes", is_flag=True, help="Delete without asking.")
def delete_session(surface: Surface, *, name: str, yes: bool) -> Ending:
    """Show what goes, ask, delete."""
    url = store_of(surface)

    async def look() -> Overview:
        async with reading(url, name) as storage:
            return await overview(storage)

    async def delete() -> None:
        there = await owner_there(url, name)
        if there is not None:
            await there.delete()
            return
        async with _writable(surface, name) as sessions:
            await sessions.delete(name)

    found = perdure.run(look())
    surface.terminal.say(as_words(found).rstrip("\n"))
    if not yes and not _confirmed(surface, name):
        raise UsageProblem(f"{name!r} was not deleted", "pass --yes to delete it without asking")
    perdure.run(delete())
    remove_launches(url, found.info.id)
    surface.terminal.say(f"{name!r} is deleted")
    return Ending(session=name, data={"deleted": name, "id": found.info.id})


def _confirmed(surface: Surface, name: str) -> bool:
    """Ask a person; without one the answer is no."""
    terminal = surface.terminal
    if surface.flags.machine != "no" or not (stdin_is_terminal() and terminal.err_is_terminal):
        return False
    terminal.complain(f"delete {name!r} and all of the above? [y/N]")
    terminal.flush()
    answer: str = click.prompt("", default="n", show_default=False, prompt_suffix="", err=True)
    return answer.strip().lower() in ("y", "yes")


@asynccontextmanager
async def _writable(surface: Surface, name: str) -> AsyncGenerator[Sessions]:
    """Open a store to change a session of it that exists."""
    url = store_of(surface)
    async with container(url) as sessions:
        if sessions is None:
            raise Rejected("not_found", f"there is no session {name!r}: the store is not there")
        try:
            yield sessions
        except Rejected as error:
            raise await not_found(error, url, name) from None


async def _row(sessions: Sessions, info: SessionInfo) -> Row:
    """Read what a page does not say; a session that cannot be read says why."""
    folder, state, spent, damaged = None, "damaged", None, info.damaged
    if damaged is None:
        try:
            storage = await sessions.open(info.name, create=False, read_only=True)
            try:
                found = await overview(storage)
                folder = await folder_in(storage)
                state, spent = state_of(info, is_idle=found.is_idle), spent_of(found.usage)
            finally:
                await storage.close()
        except PerdureError as error:
            damaged = str(error)
    return Row(
        name=info.name,
        id=info.id,
        folder=folder,
        created_ms=info.created_ms,
        last_commit_ms=info.last_commit_ms,
        last_seq=info.last_seq,
        state=state,
        owner=info.owner,
        approvals=0,
        spent=spent,
        damaged=damaged,
    )


def _spent(row: Row) -> str:
    return row.damaged if row.damaged is not None else spent_words(row.spent)
