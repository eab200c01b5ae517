"""Session names for a shell that completes (CM-13): no lock, no file, no words of our own."""

from typing import Final

import click

import perdure
from perdure.cli.places import exists, store_url
from perdure.errors import PerdureError
from perdure.opening import open_store, system_ports

NAMES_MAX: Final = 100
"""Session names offered to a shell."""


def session_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete a session name; a store that is not there, or cannot be read, has none."""
    try:
        config = perdure.load_config(ctx.params.get("config"))
        url = store_url(ctx.params.get("store"), config)
        return perdure.run(_names(url, incomplete)) if exists(url) else []
    except (PerdureError, OSError):
        return []


async def _names(url: str, start: str) -> list[str]:
    sessions = open_store(url, system_ports())
    try:
        page = await sessions.page(after=None, limit=1_000)
    finally:
        await sessions.close()
    return [info.name for info in page if info.name.startswith(start)][:NAMES_MAX]
