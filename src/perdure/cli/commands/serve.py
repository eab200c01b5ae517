"""`perdure serve`: the HTTP API and the inspector page over a store (CM-34, WB-01 to WB-04)."""

import asyncio
import os
import secrets
import tempfile
import webbrowser
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click
import msgspec

import perdure
from perdure.cli.endings import Ending, UsageProblem
from perdure.cli.stopping import GRACE_S, Stop
from perdure.cli.surface import Surface, surfaced
from perdure.cli.work import Ready, Work, check_extra, prepare, working
from perdure.errors import Rejected
from perdure.hosts.launch_places import remove_launches
from perdure.opening import OpenSession, open_store, system_ports
from perdure.ports import Sessions, Threads
from perdure.providers.plain_files import read_plain
from perdure.records.entries import ModelId
from perdure.records.sessions import SessionInfo
from perdure.web.app import make_app
from perdure.web.auth import LOCAL_SUBJECT, LOOPBACK, TOKEN_BYTES, read_tokens, tcp_doors
from perdure.web.entrance import Access, Hooks
from perdure.web.house import House
from perdure.web.serving import PortTaken, listen, serving

PORT: Final = 7470
HOST: Final = "127.0.0.1"


TOKENS_BYTES_MAX: Final = 1 << 20
"""Largest token file."""


@click.command(
    help="""Serve sessions over HTTP, with the inspector page.

    Prints one address with its token on standard error; open it in a browser, or send the token as
    `Authorization: Bearer`. Listens on this machine only unless --host says otherwise. Ctrl-C ends
    it: requests end, sessions are closed, nothing is aborted.
    """
)
@surfaced("store", "config", "timeout")
@working
@click.option("--host", default=HOST, show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="The port; 0 takes a free one.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Lines `subject token`; needed for an address beyond this machine.  [default: a new "
    "token for the subject local]",
)
@click.option(
    "--allow-host", multiple=True, metavar="HOST", help="Serve under this name too.  Repeatable."
)
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages of this origin ask.  Repeatable.",
)
@click.option("--open", "opens", is_flag=True, help="Open the address in a browser.")
@click.option("--access-log", is_flag=True, help="Print one line for each answer.")
def command(
    surface: Surface,
    work: Work,
    *,
    host: str,
    port: int,
    token_file: Path | None,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    opens: bool,
    access_log: bool,
) -> Ending:
    """Find out who may come in, listen, serve until told to end."""
    tokens = _tokens(host, token_file)

    async def run() -> Ending:
        ready = await prepare(surface, work, session=None)
        try:
            listener = listen(host, port)
        except PortTaken as error:
            raise UsageProblem(str(error), "choose another --port, or --port 0") from None
        bound: int = listener.getsockname()[1]
        ports = system_ports()
        sessions = await ports.threads.run("open", partial(open_store, ready.url, ports))
        house = House(
            sessions,
            partial(_opening, ready, work, sessions),
            removed=_removed(ready, ports.threads),
        )
        doors = tcp_doors(tokens, host, bound, allow_hosts=allow_host, allow_origins=allow_origin)
        hooks = Hooks(
            access=partial(_print, surface) if access_log else None,
            defect=partial(_report, surface, ports.threads),
        )
        app = await ports.threads.run(
            "page", partial(make_app, house, doors, ports.threads, hooks=hooks)
        )
        stop = Stop(surface.terminal)
        with stop.listening(surface.flags.timeout):
            async with serving(app, [listener]):
                url = _address(host, bound, None if token_file else next(iter(tokens)))
                _say(surface, url)
                if opens:
                    await ports.threads.run("browser", partial(webbrowser.open, url))
                await stop.told.wait()
                house.stop()
            await house.close(grace=GRACE_S)
            await sessions.close()
        return Ending(outcome=stop.outcome or "done")

    return perdure.run(run())


def _tokens(host: str, file: Path | None) -> Mapping[str, str]:
    """Read the tokens, or make one; an address beyond this machine needs a file (WB-03)."""
    if file is None:
        if host not in LOOPBACK:
            raise UsageProblem(
                f"--host {host!r} is reached from other machines, and that needs --token-file",
                "write a file of lines `subject token`, or leave --host out",
            )
        return MappingProxyType({secrets.token_urlsafe(TOKEN_BYTES): LOCAL_SUBJECT})
    try:
        return read_tokens(read_plain(file, TOKENS_BYTES_MAX).decode(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageProblem(f"the token file {str(file)!r} cannot be read: {error}") from None
    except Rejected as error:
        raise UsageProblem(error.message) from None


def _opening(
    ready: Ready, work: Work, sessions: Sessions, info: SessionInfo, model: ModelId | None
) -> OpenSession:
    """Answer a session to be opened: with its own model, unless a flag names another."""
    options = dict(ready.options)
    if work.model is None and model is not None:
        options["model"] = str(model)
        try:
            check_extra(str(model))
        except UsageProblem as error:
            raise Rejected("invariant", f"{error.message}; {error.hint}") from None
    return perdure.open(ready.url, session=info.name, sessions=sessions, create=False, **options)


def _removed(ready: Ready, threads: Threads) -> Callable[[SessionInfo], Awaitable[None]]:
    async def remove(info: SessionInfo) -> None:
        await threads.run("delete", partial(remove_launches, ready.url, info.id))

    return remove


def _address(host: str, port: int, token: str | None) -> str:
    """Write the address; the token is its fragment, which no browser sends (WB-02)."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + ("" if token is None else f"#{token}")


def _say(surface: Surface, url: str) -> None:
    is_plain = surface.flags.machine == "no"
    surface.terminal.say(url if is_plain else msgspec.json.encode({"url": url}).decode())
    surface.terminal.flush()


def _print(surface: Surface, line: Access) -> None:
    surface.terminal.complain(
        f"{line.method} {line.route} {line.status} {line.bytes} B {line.ms} ms {line.request_id}"
    )


def _report(surface: Surface, threads: Threads, report: str, text: str) -> None:
    """Write a defect's traceback to a file of its owner alone, and name it."""

    def write() -> str:
        handle, name = tempfile.mkstemp(prefix=f"perdure-fault-{report}-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        return name

    async def keep() -> None:
        try:
            where = await threads.run("report", write)
        except OSError as error:
            where = f"nowhere: {error}"
        surface.terminal.complain(f"perdure has a defect; report {report} is in {where}", "bad")

    task = asyncio.ensure_future(keep())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
