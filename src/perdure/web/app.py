"""The application: doors, routes and a house become one ASGI program.

The order of what may refuse a request is fixed: host, origin, token, route, method, query, body,
then perdure itself. Nothing has an effect before all of them agreed.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path
from starlette.routing import Router

from perdure.ports import Threads
from perdure.web.auth import Doors
from perdure.web.calls import Call, Reply, read_body, read_query
from perdure.web.entrance import NO_HOOKS, Entrance, Hooks
from perdure.web.house import House
from perdure.web.openapi import document
from perdure.web.page import page_paths
from perdure.web.refusals import Refusal
from perdure.web.routes import OPEN_PATHS, ROUTES, Route
from perdure.web.wire import render

JSON: Final = "application/json"

FRESH: Final[Mapping[str, str]] = MappingProxyType({"Cache-Control": "no-store"})


def make_app(
    house: House,
    doors: Doors,
    threads: Threads,
    *,
    hooks: Hooks = NO_HOOKS,
    has_page: bool = True,
) -> Entrance:
    """Answer the program that serves a house behind its doors.

    Args:
        house: the sessions; closing it is the caller's.
        doors: who may come in.
        threads: where files are read and large bodies parsed.
        hooks: who hears of answers and of defects.
        has_page: serve the inspector page's files as well.
    """
    served = _Served(house, doors, threads)
    pages = page_paths(threads) if has_page else []
    router = Router([*served.paths(), *pages], redirect_slashes=False)
    open_paths = OPEN_PATHS | {page.path for page in pages}
    return Entrance(router, doors, hooks, open_paths)


class _Served:
    """Routes over one house."""

    def __init__(self, house: House, doors: Doors, threads: Threads) -> None:
        self._house = house
        self._doors = doors
        self._threads = threads

    def paths(self) -> list[Path]:
        """Answer one path for each, with all its methods."""
        by_path: dict[str, dict[str, Route]] = {}
        for route in ROUTES:
            by_path.setdefault(route.path, {})[route.method] = route
        return [
            Path("/health", self._health, methods=["GET"]),
            Path("/openapi.json", self._openapi, methods=["GET"]),
            Path("/v1/cookie", self._cookie, methods=["POST"]),
            *(
                Path(path, self._endpoint(methods), methods=list(methods))
                for path, methods in by_path.items()
            ),
        ]

    def _endpoint(self, methods: Mapping[str, Route]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            route = methods["GET" if request.method == "HEAD" else request.method]
            call = Call(
                request=request,
                house=self._house,
                by=f"{self._doors.by}:{request.scope['perdure.subject']}",
                query=read_query(request, route.query),
                body=await read_body(request, route.body, self._threads),
            )
            reply = await route.handler(call)
            if isinstance(reply.content, Response):
                return reply.content
            return _json(reply)

        return answer

    async def _health(self, _: Request) -> Response:
        """Say whether every session that is open here works."""
        faults = sorted(self._house.faults)
        if not faults:
            return _json(Reply(content={"status": "ok"}))
        return _json(Reply(content={"status": "faulted", "sessions": faults}, status=503))

    async def _openapi(self, _: Request) -> Response:
        # No answer but a description of answers: nothing in it stands for a value.
        return Response(msgspec.json.encode(document()), headers=FRESH, media_type=JSON)

    async def _cookie(self, request: Request) -> Response:
        cookie = self._doors.cookie_of(request.headers)
        if cookie is None:
            raise Refusal("invariant", "send the token itself: Authorization: Bearer TOKEN")
        reply = Reply(
            content={"subject": request.scope["perdure.subject"]}, headers={"Set-Cookie": cookie}
        )
        return _json(reply)


def _json(reply: Reply) -> Response:
    return Response(
        render(reply.content),
        status_code=reply.status,
        headers={**FRESH, **reply.headers},
        media_type=JSON,
    )
