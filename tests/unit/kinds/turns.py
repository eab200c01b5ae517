"""Short ways to look at a turn: its commits, tasks and entries."""

import asyncio
from collections.abc import Sequence
from typing import Any

from perdure.errors import FailureCode
from perdure.harness.conversation import Conversation
from perdure.kinds.states import GenerationState, PostToolsState, ToolState
from perdure.providers.script import END, Failure, Reply, say
from perdure.records.addresses import USAGE
from perdure.records.codec import decode
from perdure.records.entries import Entry
from perdure.records.messages import (
    AssistantMessage,
    AssistantPayload,
    ToolResultMessage,
    ToolResultPayload,
    Usage,
    UsageElement,
    read_payload,
)
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage
from perdure.records.tasks import Task
from perdure.records.writes import Commit, SettleTask
from tests.engine import Engine

USED = Usage(input=100, output=20, cache_read=5, cache_write=0, reasoning=None, cost=None)


def failing(code: FailureCode, *pieces: Any, usage: Usage | None = None, **facts: Any) -> Reply:
    """Make a reply that fails after its pieces, with what the provider reported."""
    reply = {name: facts.pop(name) for name in ("gates", "usage_early") if name in facts}
    facts.setdefault("at", END if pieces else 0)
    return say(*pieces, usage=usage, failure=Failure(code=code, **facts), **reply)


async def tasks_of(conv: Conversation, kind: str) -> list[Task]:
    """Answer a conversation's tasks of a kind, by id."""
    return [task for task in await conv.tasks(limit=1000) if task.kind == kind]


async def generations(conv: Conversation) -> list[Task]:
    """Answer the generations."""
    return await tasks_of(conv, "generation")


def generation(task: Task) -> GenerationState:
    """Decode a generation's state."""
    return decode(task.state_json, GenerationState)


def tool(task: Task) -> ToolState:
    """Decode a call's state."""
    return decode(task.state_json, ToolState)


def join(task: Task) -> PostToolsState:
    """Decode a join's state."""
    return decode(task.state_json, PostToolsState)


async def kinds(conv: Conversation) -> list[str]:
    """Answer the kinds of all entries in order."""
    return [entry.kind for entry in await conv.entries(limit=1000)]


async def results(conv: Conversation) -> list[Entry]:
    """Answer tool results in stored order."""
    return [entry for entry in await conv.entries(limit=1000) if entry.kind == "tool_result"]


async def outcomes(conv: Conversation) -> list[str]:
    """Answer the outcomes of all calls, in call order of each exchange."""
    found = sorted(await results(conv), key=lambda one: (one.meta.answers, one.call_index))
    return [str(one.meta.outcome) for one in found]


def result_message(entry: Entry) -> ToolResultMessage:
    """Decode a result."""
    assert entry.payload_json
    return read_payload(entry.payload_json, ToolResultPayload).message


def result_text(entry: Entry) -> str:
    """Join a result's texts."""
    return "\n".join(getattr(part, "text", "") for part in result_message(entry).content)


def answer_message(entry: Entry) -> AssistantMessage:
    """Decode an assistant entry."""
    assert entry.payload_json
    return read_payload(entry.payload_json, AssistantPayload).message


async def usage_of(engine: Engine) -> list[UsageElement]:
    """Answer every usage record."""
    page = await engine.harness.read_list(USAGE, ListPage(limit=1000))
    return [decode(element.value_json, UsageElement) for element in page]


def settles(task_id: Seq, commit: Commit) -> bool:
    """Say whether a commit settles a task."""
    return any(
        isinstance(write, SettleTask) and write.task_id == task_id for write in commit.writes
    )


async def settlement(engine: Engine, task_id: Seq) -> Commit:
    """Answer the commit that settled a task."""
    (found,) = [commit for commit in await engine.commits() if settles(task_id, commit)]
    return found


def kinds_of(writes: Sequence[Any]) -> list[str]:
    """Name the writes of a commit."""
    return [type(write).__name__ for write in writes]


async def advance_until(engine: Engine, work: Any, *, step_ms: int = 70_000) -> Any:
    """Move time on whenever everybody sleeps, until `work` is done; answers what it answers."""
    while not work.done():
        waiter = engine.begin(engine.clock.until_asleep())
        await asyncio.wait({waiter, work}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if not work.done():
            engine.clock.advance(step_ms)
            await asyncio.sleep(0)
    return work.result()
