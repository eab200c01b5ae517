"""`perdure acp`: the agent of an editor that speaks the Agent Client Protocol."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import click
from msgspec import structs

import perdure
from perdure.acp.hosting import Listed, Opened
from perdure.cli.choices import store_of
from perdure.cli.commands.run import NEW_PREFIX
from perdure.cli.endings import Ending, UsageProblem
from perdure.cli.last import FOLDER, folder_of
from perdure.cli.reading import container
from perdure.cli.stopping import Stop
from perdure.cli.surface import Surface, surfaced
from perdure.cli.work import Work, prepare, working
from perdure.errors import Rejected
from perdure.opening import load


@click.command(
    help="""Be the agent of an editor: speak the Agent Client Protocol on standard input and output.

    Each session of the editor is a durable one in the store: it can be loaded again, continued with
    `perdure run`, and is never lost with the editor. Calls that ask a person ask in the editor.
    """
)
@surfaced("store", "config")
@working
def command(surface: Surface, work: Work) -> Ending:
    """Serve one connection until its input ends."""
    if find_spec("acp") is None:
        raise UsageProblem(
            "the package agent-client-protocol is not installed",
            "run: pip install 'perdure[acp]'",
            code="missing_extra",
        )
    return perdure.run(_serve(surface, work))


async def _serve(surface: Surface, work: Work) -> Ending:
    agent = load("perdure.acp.agent").EditorAgent(_Store(surface, work), surface.terminal.say)
    stop = Stop(surface.terminal)
    with stop.listening(None):
        serving = asyncio.create_task(agent.serve())
        told = asyncio.create_task(stop.told.wait())
        await asyncio.wait({serving, told}, return_when=asyncio.FIRST_COMPLETED)
        for task in (serving, told):
            task.cancel()
        await asyncio.gather(serving, told, return_exceptions=True)
        await agent.close()
        if not serving.cancelled() and (error := serving.exception()) is not None:
            raise error
    return Ending(outcome=stop.outcome or "done")


class _Store:
    """The sessions of the command's store, opened with the command's flags."""

    def __init__(self, surface: Surface, work: Work) -> None:
        self._surface = surface
        self._work = work

    @asynccontextmanager
    async def open(self, session_id: str | None, folder: Path) -> AsyncGenerator[Opened]:
        """Open a session by id, or make one; its tools work in the editor's folder."""
        name = None if session_id is None else await self._name_of(session_id)
        work = structs.replace(self._work, root=self._work.root or folder)
        ready = await prepare(self._surface, work, session=name)
        opening = ready.opening(
            session=NEW_PREFIX if name is None else name,
            named_by_id=name is None,
            create=name is None,
        )
        async with opening as harness:
            if name is None:
                await harness.set_value(FOLDER, str(folder))
            yield Opened(harness=harness, reader=opening.reader)

    async def page(self, *, after: str | None, limit: int) -> Sequence[Listed]:
        """Read a page of sessions, with the folder each was made in; damaged ones have none."""
        async with container(store_of(self._surface)) as sessions:
            if sessions is None:
                return []
            return [
                Listed(
                    id=info.id,
                    name=info.name,
                    folder=None if info.damaged else await folder_of(sessions, info.name),
                    last_commit_ms=info.last_commit_ms,
                )
                for info in await sessions.page(after=after, limit=limit)
            ]

    async def _name_of(self, session_id: str) -> str:
        async with container(store_of(self._surface)) as sessions:
            if sessions is None:
                raise Rejected("not_found", f"there is no session with the id {session_id!r}")
            return (await sessions.find(session_id)).name
