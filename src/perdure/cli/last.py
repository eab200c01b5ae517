"""This folder's last committed session, which `-c` and `resume` mean (CM-18, CM-21)."""

import difflib
import os
from typing import Final

from perdure.cli.endings import UsageProblem
from perdure.cli.places import exists
from perdure.errors import Rejected
from perdure.opening import open_store, system_ports
from perdure.ports import Sessions, Storage
from perdure.records.addresses import SessionValue
from perdure.records.codec import decode_json
from perdure.records.sessions import SessionInfo

FOLDER: Final[SessionValue[str]] = SessionValue("cli.folder")
"""The folder a session was made in; `-c` and `resume` look for it."""

PAGE: Final = 1_000
"""Sessions read at a time."""


async def last_of_folder(url: str) -> str:
    """Name the session made in this folder that has the newest commit.

    Raises:
        UsageProblem: there is none.
    """
    here = os.getcwd()  # noqa: PTH109 - compared with stored text
    if exists(url):
        sessions = open_store(url, system_ports())
        try:
            for info in sorted(await all_sessions(sessions), key=_newest_first):
                if info.damaged is None and await folder_of(sessions, info.name) == here:
                    return info.name
        finally:
            await sessions.close()
    raise UsageProblem(
        f"no session was made in {here!r}", "name one with --session; see: perdure sessions"
    )


async def known_sessions(url: str) -> list[SessionInfo]:
    """Answer the sessions of a store, the one with the newest commit first."""
    if not exists(url):
        return []
    sessions = open_store(url, system_ports())
    try:
        return sorted(await all_sessions(sessions), key=_newest_first)
    finally:
        await sessions.close()


async def not_found(error: Rejected, url: str, name: str) -> Rejected:
    """Answer the same refusal, with the nearest session there is when the name is unknown."""
    if error.code != "not_found":
        return error
    names = [info.name for info in await known_sessions(url)]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "see: perdure sessions"
    return Rejected("not_found", f"there is no session named {name!r}", {"hint": hint})


async def all_sessions(sessions: Sessions) -> list[SessionInfo]:
    """Answer every session of a container."""
    found: list[SessionInfo] = []
    while True:
        page = await sessions.page(after=found[-1].name if found else None, limit=PAGE)
        found += page
        if len(page) < PAGE:
            return found


async def folder_of(sessions: Sessions, name: str) -> str | None:
    """Answer the folder a session was made in, None when nothing says so."""
    storage = await sessions.open(name, create=False, read_only=True)
    try:
        return await folder_in(storage)
    finally:
        await storage.close()


async def folder_in(storage: Storage) -> str | None:
    """Answer the folder an open session was made in."""
    stored = await storage.value(FOLDER.address())
    folder = None if stored is None else decode_json(stored.value_json)
    return folder if isinstance(folder, str) else None


def _newest_first(info: SessionInfo) -> tuple[int, str]:
    return -info.last_commit_ms, info.name
