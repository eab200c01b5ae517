"""`perdure acp` with the protocol package's own client: prompts, permissions, cancel, load."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import acp
import pytest
from acp.schema import (
    AgentMessageChunk,
    AgentThoughtChunk,
    AllowedOutcome,
    DeniedOutcome,
    RequestPermissionResponse,
    TextContentBlock,
    ToolCallProgress,
    ToolCallStart,
    UserMessageChunk,
)

from tests.surfaces.desk import PERDURE, WAIT_S, Desk

WRITE = {"name": "write", "args": {"path": "a.txt", "content": "seven\n"}}


class Editor:
    """An editor that notes what it is told, and answers permission requests as it was set to."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.asked: list[Any] = []
        self.asking = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.answer: str | None = "allow"

    def on_connect(self, conn: Any) -> None:
        """Nothing: the connection is used by the test."""

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> RequestPermissionResponse:
        self.asked.append((tool_call, options))
        self.asking.set()
        await self.may_answer.wait()
        if self.answer is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(
            outcome=AllowedOutcome(option_id=self.answer, outcome="selected")
        )

    def said(self, kind: type[Any] = AgentMessageChunk) -> str:
        """Join the text of one kind of chunk."""
        return "".join(
            update.content.text
            for update in self.updates
            if isinstance(update, kind) and isinstance(update.content, TextContentBlock)
        )

    def calls(self) -> list[tuple[str, str]]:
        """Answer the id and status of everything told about calls, in order."""
        return [
            (update.tool_call_id, str(update.status))
            for update in self.updates
            if isinstance(update, ToolCallStart | ToolCallProgress)
        ]


@asynccontextmanager
async def attached(
    desk: Desk, editor: Editor, model: str, *more: str
) -> AsyncGenerator[tuple[Any, Any]]:
    """Start the agent as an editor does, and answer the connection and its process."""
    async with acp.spawn_agent_process(
        editor,  # type: ignore[arg-type]  # it answers what the agent asks
        PERDURE,
        "acp",
        "--model",
        model,
        *more,
        env=desk.env,
        cwd=desk.folder,
        use_unstable_protocol=True,
    ) as (connection, process):
        await connection.initialize(
            protocol_version=acp.PROTOCOL_VERSION,
            client_info=acp.schema.Implementation(name="tester", version="1"),
        )
        yield connection, process


async def prompted(connection: Any, session_id: str, text: str) -> str:
    """Run one turn and answer its stop reason."""
    async with asyncio.timeout(WAIT_S):
        answer = await connection.prompt(session_id=session_id, prompt=[acp.text_block(text)])
    return str(answer.stop_reason)


async def test_a_prompt_streams_and_a_call_asks_first(desk: Desk) -> None:
    editor = Editor()
    editor.may_answer.set()
    # The pause lets the first words be streamed before the reply is whole.
    slow = {"text": "I write it.", "calls": [WRITE], "chunk": 3, "delaysMs": {"2": 300}}
    model = desk.script(slow, {"text": "Done."})
    async with attached(desk, editor, model) as (connection, _):
        made = await connection.new_session(cwd=str(desk.folder), mcp_servers=[])
        assert await prompted(connection, made.session_id, "Write seven.") == "end_turn"
    assert (desk.folder / "a.txt").read_text() == "seven\n"
    assert editor.said() == "I write it.Done."
    assert sum(isinstance(update, AgentMessageChunk) for update in editor.updates) > 2, "streamed"
    ((call, options),) = editor.asked
    ids = {call_id for call_id, _ in editor.calls()}
    assert ids == {call.tool_call_id}, "the question names the call that was told"
    assert [status for _, status in editor.calls()] == ["pending", "in_progress", "completed"]
    assert call.raw_input == WRITE["args"], "what is shown is what runs"
    assert {option.kind for option in options} == {"allow_once", "allow_always", "reject_once"}


@pytest.mark.spec("AQ-10")
async def test_a_call_allowed_for_good_is_not_asked_about_again_but_another_is(desk: Desk) -> None:
    editor = Editor()
    editor.answer = "always"
    editor.may_answer.set()
    other = {"name": "write", "args": {"path": "b.txt", "content": "eight\n"}}
    model = desk.script(*({"calls": [one]} for one in (WRITE, WRITE, other)), {"text": "Done."})
    async with attached(desk, editor, model) as (connection, _):
        made = await connection.new_session(cwd=str(desk.folder), mcp_servers=[])
        assert await prompted(connection, made.session_id, "Write.") == "end_turn"
    assert [call.raw_input for call, _ in editor.asked] == [WRITE["args"], other["args"]]
    assert (desk.folder / "b.txt").read_text() == "eight\n"


async def test_a_denied_call_is_told_as_failed_and_does_nothing(desk: Desk) -> None:
    editor = Editor()
    editor.answer = "deny"
    editor.may_answer.set()
    model = desk.script({"calls": [WRITE]}, {"text": "As you wish."})
    async with attached(desk, editor, model) as (connection, _):
        made = await connection.new_session(cwd=str(desk.folder), mcp_servers=[])
        assert await prompted(connection, made.session_id, "Write.") == "end_turn"
    assert not (desk.folder / "a.txt").exists()
    assert editor.calls()[-1][1] == "failed"


async def test_a_cancel_ends_the_turn_while_a_call_is_held(desk: Desk) -> None:
    editor = Editor()
    model = desk.script({"calls": [WRITE]}, {"text": "Never said."})
    async with attached(desk, editor, model) as (connection, _):
        made = await connection.new_session(cwd=str(desk.folder), mcp_servers=[])
        turn = asyncio.create_task(prompted(connection, made.session_id, "Write."))
        await asyncio.wait_for(editor.asking.wait(), WAIT_S)
        await connection.cancel(session_id=made.session_id)
        editor.answer = None
        editor.may_answer.set()
        assert await turn == "cancelled"
        assert await prompted(connection, made.session_id, "And now?") == "end_turn"
    assert not (desk.folder / "a.txt").exists()


async def test_a_held_call_is_asked_again_when_the_session_is_loaded(desk: Desk) -> None:
    first, second = Editor(), Editor()
    second.may_answer.set()
    model = desk.script({"text": "I write.", "calls": [WRITE]})
    async with attached(desk, first, model) as (connection, process):
        made = await connection.new_session(cwd=str(desk.folder), mcp_servers=[])
        turn = asyncio.create_task(prompted(connection, made.session_id, "Write."))
        await asyncio.wait_for(first.asking.wait(), WAIT_S)
        process.kill()
        turn.cancel()
    done = asyncio.Event()
    second.session_update = _noting(second, done)
    model = desk.script({"text": "Done."}, name="second.json")
    async with attached(desk, second, model) as (connection, _):
        await connection.load_session(
            cwd=str(desk.folder), session_id=made.session_id, mcp_servers=[]
        )
        assert second.said(UserMessageChunk) == "Write.", "the transcript is told"
        await asyncio.wait_for(done.wait(), WAIT_S)
    assert (desk.folder / "a.txt").read_text() == "seven\n"
    ((call, _options),) = second.asked
    assert (call.tool_call_id, call.title) == (second.calls()[0][0], "write a.txt")


def _noting(editor: Editor, done: asyncio.Event) -> Any:
    async def session_update(session_id: str, update: Any, **_: Any) -> None:
        editor.updates.append(update)
        if editor.said().endswith("Done."):
            done.set()

    return session_update


async def test_sessions_are_listed_with_their_folder_and_unknown_ones_refused(desk: Desk) -> None:
    editor = Editor()
    model = desk.script({"text": "Hello.", "uses": 0})
    async with attached(desk, editor, model) as (connection, _):
        made = await connection.new_session(cwd=str(desk.folder), mcp_servers=[])
        listed = await connection.list_sessions(cwd=str(desk.folder))
        assert [(one.session_id, one.cwd) for one in listed.sessions] == [
            (made.session_id, str(desk.folder))
        ]
        assert (await connection.list_sessions(cwd="/")).sessions == []
        with pytest.raises(acp.RequestError, match="there is no session"):
            await connection.load_session(cwd=str(desk.folder), session_id="0" * 32, mcp_servers=[])
        with pytest.raises(acp.RequestError, match="no absolute path"):
            await connection.new_session(cwd="not/there", mcp_servers=[])


async def test_thinking_and_failure_are_told(desk: Desk) -> None:
    editor = Editor()
    model = desk.script(
        {"thinking": "Hm.", "text": "Yes."},
        {"error": {"code": "auth", "message": "the key was refused"}},
    )
    async with attached(desk, editor, model) as (connection, _):
        made = await connection.new_session(cwd=str(desk.folder), mcp_servers=[])
        assert await prompted(connection, made.session_id, "Think.") == "end_turn"
        assert editor.said(AgentThoughtChunk) == "Hm."
        with pytest.raises(acp.RequestError, match="the key was refused"):
            await prompted(connection, made.session_id, "Again.")


def test_the_agent_ends_with_its_input_and_says_nothing_else_on_standard_output(
    desk: Desk,
) -> None:
    ended = desk.run("acp", "--model", desk.script({"text": "x"}), typed="")
    assert (ended.code, ended.out) == (0, "")
