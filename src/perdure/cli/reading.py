"""Reading a store without lock and without writing a byte (SN-10)."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from perdure.cli.last import not_found
from perdure.cli.places import check_url, exists
from perdure.errors import Rejected
from perdure.opening import open_store, system_ports
from perdure.ports import Sessions, Storage


@asynccontextmanager
async def container(url: str) -> AsyncGenerator[Sessions | None]:
    """Open a store; None when its file is not there, for reading makes none."""
    if not exists(url):
        check_url(url)
        yield None
        return
    sessions = open_store(url, system_ports())
    try:
        yield sessions
    finally:
        await sessions.close()


@asynccontextmanager
async def reading(url: str, name: str) -> AsyncGenerator[Storage]:
    """Open a session for reading.

    Raises:
        Rejected: `not_found`, naming the nearest session there is.
    """
    async with container(url) as sessions:
        if sessions is None:
            raise Rejected(
                "not_found", f"there is no session {name!r}: the store {url!r} is not there"
            )
        try:
            storage = await sessions.open(name, create=False, read_only=True)
        except Rejected as error:
            raise await not_found(error, url, name) from None
        try:
            yield storage
        finally:
            await storage.close()
