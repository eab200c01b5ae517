"""perdure as an agent of the Agent Client Protocol: each session of the editor is a durable one.

The protocol's session id is the session's permanent id, so a session that one editor made can be
loaded by another, or continued with `perdure run`. A session is opened when the editor makes or
loads it, and closed with the connection.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, cast

from acp import PROTOCOL_VERSION, RequestError, run_agent
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    ClientCapabilities,
    CloseSessionResponse,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionResumeCapabilities,
)

from perdure.acp.blocks import Block
from perdure.acp.hosting import Host
from perdure.acp.session import EditorSession, TurnFailed
from perdure.errors import PerdureError, Rejected

PAGE: Final = 100
"""Sessions of one page of a list."""


class EditorAgent:
    """The agent's side of one connection to an editor."""

    def __init__(self, host: Host, note: Callable[[str], None]) -> None:
        """Open sessions of `host`; `note` takes what the person at the editor's log should know."""
        self._host = host
        self._note = note
        self._client: Client | None = None
        self._client_name = "editor"
        self._sessions: dict[str, EditorSession] = {}
        self._stacks: dict[str, AsyncExitStack] = {}

    def on_connect(self, conn: Client) -> None:
        """Take the editor's side."""
        self._client = conn

    async def serve(self) -> None:
        """Serve standard input and output until the input ends."""
        # Methods are looked up by name; one that this agent has not is refused as not found.
        await run_agent(cast("Any", self))

    async def close(self) -> None:
        """Close every session; what runs can be continued later."""
        for session_id in tuple(self._sessions):
            await self.close_session(session_id)

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: ClientCapabilities | None = None,
        client_info: Implementation | None = None,
        **_: Any,
    ) -> InitializeResponse:
        """Say what this agent can do."""
        if client_info is not None:
            self._client_name = client_info.name
        return InitializeResponse(
            protocol_version=min(protocol_version, PROTOCOL_VERSION),
            agent_info=Implementation(name="perdure", title="perdure", version=version("perdure")),
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(image=True, embedded_context=True),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    resume=SessionResumeCapabilities(),
                    close=SessionCloseCapabilities(),
                ),
            ),
        )

    async def new_session(
        self, cwd: str, mcp_servers: list[Any] | None = None, **_: Any
    ) -> NewSessionResponse:
        """Make a session that works in a folder."""
        self._note_servers(mcp_servers)
        async with _refusals():
            session = await self._open(None, cwd)
            await session.start()
        return NewSessionResponse(session_id=session.id)

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: list[Any] | None = None, **_: Any
    ) -> LoadSessionResponse:
        """Open a session again: tell its transcript, then ask again what still waits."""
        self._note_servers(mcp_servers)
        async with _refusals():
            session = await self._reopened(session_id, cwd)
            await session.replay()
            await session.start()
        return LoadSessionResponse()

    async def resume_session(
        self, cwd: str, session_id: str, mcp_servers: list[Any] | None = None, **_: Any
    ) -> ResumeSessionResponse:
        """Open a session again without telling its transcript."""
        self._note_servers(mcp_servers)
        async with _refusals():
            session = await self._reopened(session_id, cwd)
            await session.start()
        return ResumeSessionResponse()

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> ListSessionsResponse:
        """Answer a page of sessions, those of a folder when one is given."""
        async with _refusals():
            page = await self._host.page(after=cursor, limit=PAGE)
        return ListSessionsResponse(
            sessions=[
                SessionInfo(
                    session_id=one.id,
                    cwd=one.folder,
                    title=one.name,
                    updated_at=datetime.fromtimestamp(one.last_commit_ms / 1000, UTC).isoformat(),
                )
                for one in page
                if one.folder is not None and cwd in (None, one.folder)
            ],
            next_cursor=page[-1].name if len(page) == PAGE else None,
        )

    async def prompt(self, session_id: str, prompt: list[Block], **_: Any) -> PromptResponse:
        """Run one turn."""
        async with _refusals():
            return PromptResponse(stop_reason=await self._held(session_id).prompt(prompt))

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Abort the turn that runs."""
        session = self._sessions.get(session_id)
        if session is not None:
            await session.cancel()

    async def close_session(self, session_id: str, **_: Any) -> CloseSessionResponse:
        """Close a session; it can be loaded again."""
        self._sessions.pop(session_id, None)
        stack = self._stacks.pop(session_id, None)
        if stack is not None:
            await stack.aclose()
        return CloseSessionResponse()

    # Sessions.

    def _held(self, session_id: str) -> EditorSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise Rejected("not_found", f"the session {session_id!r} is not open; load it first")
        return session

    async def _reopened(self, session_id: str, cwd: str) -> EditorSession:
        """Open a session again; one that is open here is closed first."""
        await self.close_session(session_id)
        return await self._open(session_id, cwd)

    async def _open(self, session_id: str | None, cwd: str) -> EditorSession:
        assert self._client is not None
        async with AsyncExitStack() as stack:
            opened = await stack.enter_async_context(self._host.open(session_id, _folder(cwd)))
            root = await opened.harness.root()
            session = EditorSession(opened, root, self._client, by=f"api:acp:{self._client_name}")
            stack.push_async_callback(session.close)
            self._sessions[session.id] = session
            self._stacks[session.id] = stack.pop_all()
        return session

    def _note_servers(self, servers: list[Any] | None) -> None:
        if servers:
            names = ", ".join(repr(server.name) for server in servers)
            self._note(f"the MCP servers {names} are left out: this release does not start any")


def _folder(cwd: str) -> Path:
    folder = Path(cwd)
    if not folder.is_absolute() or not folder.is_dir():
        raise Rejected("invariant", f"the folder {cwd!r} is no absolute path of a folder")
    return folder


@asynccontextmanager
async def _refusals() -> AsyncGenerator[None]:
    """Turn what perdure refuses into the protocol's errors."""
    try:
        yield
    except TurnFailed as error:
        raise RequestError(-32603, str(error), {"code": error.code}) from None
    except Rejected as error:
        if error.code == "not_found":
            raise RequestError(-32002, error.message, {"code": error.code}) from None
        raise RequestError(-32602, error.message, {"code": error.code}) from None
    except PerdureError as error:
        raise RequestError(-32603, str(error), {"code": type(error).__name__}) from None
