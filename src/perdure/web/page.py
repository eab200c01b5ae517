"""The inspector page's files: static, small, without a build step (WB-23)."""

from collections.abc import Awaitable, Callable
from pathlib import Path as File
from types import MappingProxyType
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from perdure.ports import Threads

FOLDER: Final = File(__file__).with_name("inspector")

TYPES: Final = MappingProxyType(
    {
        ".html": "text/html",
        ".css": "text/css",
        ".js": "text/javascript",
        ".svg": "image/svg+xml",
        ".ico": "image/x-icon",
    }
)
"""The files that are served, by suffix; no other file of the folder is."""

INDEX: Final = "index.html"


def page_paths(threads: Threads) -> list[Path]:
    """Answer a path for each file of the page; the index stands at `/` too. Blocks briefly."""
    files = sorted(file for file in FOLDER.rglob("*") if file.suffix in TYPES)
    paths = [
        Path(f"/inspector/{file.relative_to(FOLDER).as_posix()}", _served(file, threads))
        for file in files
    ]
    if FOLDER / INDEX in files:
        paths.append(Path("/", _served(FOLDER / INDEX, threads)))
    return paths


def _served(file: File, threads: Threads) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        data = await threads.run("page", file.read_bytes)
        return Response(data, media_type=TYPES[file.suffix], headers={"Cache-Control": "no-cache"})

    return answer
