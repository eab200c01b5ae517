"""Every route there is: the router and the OpenAPI document are made from this table (WB-07)."""

from typing import Final

from msgspec import Struct

from perdure.web import acting, approvals, history, reading, sessions, stream
from perdure.web.calls import Handler, NoQuery

OPEN_PATHS: Final = frozenset({"/health"})
"""Paths that need no token; the page's own files need none either."""


class Route(Struct, frozen=True, kw_only=True):
    """One method of one path: what it does, what it reads, how it answers."""

    method: str
    path: str
    handler: Handler
    query: type[Struct] = NoQuery
    body: type[Struct] | None = None
    statuses: tuple[int, ...] = (200,)
    is_stream: bool = False

    @property
    def name(self) -> str:
        """Answer the route's name: its handler's."""
        return self.handler.__name__

    @property
    def says(self) -> str:
        """Answer its one sentence: its handler's."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]


SESSION: Final = "/v1/sessions/{session}"
CONVERSATION: Final = SESSION + "/conversations/{conv}"


def _get(path: str, handler: Handler, query: type[Struct] = reading.AtQuery) -> Route:
    return Route(method="GET", path=path, handler=handler, query=query)


def _post(
    path: str,
    handler: Handler,
    body: type[Struct] | None = None,
    *,
    query: type[Struct] = acting.ActQuery,
    statuses: tuple[int, ...] = (200,),
) -> Route:
    return Route(
        method="POST", path=path, handler=handler, query=query, body=body, statuses=statuses
    )


ROUTES: Final[tuple[Route, ...]] = (
    _get("/v1/sessions", sessions.list_sessions, sessions.SessionsQuery),
    _post(
        "/v1/sessions",
        sessions.make_session,
        sessions.NewSession,
        query=NoQuery,
        statuses=(201, 200),
    ),
    _get("/v1/approvals", approvals.list_all_approvals, approvals.AllApprovalsQuery),
    _get(SESSION, sessions.get_session, NoQuery),
    Route(method="PATCH", path=SESSION, handler=sessions.rename_session, body=sessions.NewName),
    Route(
        method="DELETE",
        path=SESSION,
        handler=sessions.delete_session,
        query=sessions.DeleteQuery,
    ),
    _get(SESSION + "/conversations", reading.list_conversations, reading.ConversationsQuery),
    _get(CONVERSATION, reading.get_conversation),
    _get(CONVERSATION + "/entries", reading.list_entries, reading.EntriesQuery),
    _get(CONVERSATION + "/tasks", reading.list_tasks, reading.TasksQuery),
    _get(CONVERSATION + "/context", reading.get_context),
    _get(CONVERSATION + "/queue", reading.get_queue),
    _get(CONVERSATION + "/values", reading.list_values, reading.ValuesQuery),
    _get(CONVERSATION + "/lists", reading.list_elements, reading.ListQuery),
    _get(SESSION + "/usage", history.get_usage, history.UsageQuery),
    _get(SESSION + "/commits", history.list_commits, history.CommitsQuery),
    _get(SESSION + "/openings", history.list_openings, history.OpeningsQuery),
    Route(
        method="GET",
        path=SESSION + "/events",
        handler=stream.stream_events,
        query=stream.EventsQuery,
        is_stream=True,
    ),
    _get(SESSION + "/inputs/{input}", reading.get_input, reading.WaitQuery),
    _post(SESSION + "/inputs", acting.post_input, acting.NewInput, statuses=(202,)),
    _post(SESSION + "/queue/{input}/cancel", acting.cancel_input, query=NoQuery),
    _post(SESSION + "/abort", acting.abort, acting.Abort),
    _post(SESSION + "/shutdown", acting.shutdown),
    _post(SESSION + "/flush", acting.flush, acting.Flush),
    _post(SESSION + "/configure", acting.configure, acting.Configure),
    _post(SESSION + "/reset", acting.reset, acting.Reset),
    _post(SESSION + "/fork", acting.fork, acting.Fork, statuses=(201,)),
    _post(SESSION + "/rewind", acting.rewind, acting.Rewind, statuses=(201,)),
    _post(SESSION + "/labels/{entry}", acting.label, acting.Label, query=NoQuery),
    _get(SESSION + "/approvals", approvals.list_approvals, approvals.ApprovalsQuery),
    _post(
        SESSION + "/approvals/{task}/decision",
        approvals.decide,
        approvals.NewDecision,
        query=NoQuery,
    ),
    _post(
        SESSION + "/drive",
        acting.drive,
        acting.Drive,
        query=reading.WaitQuery,
        statuses=(200, 202),
    ),
)
