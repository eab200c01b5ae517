"""What stays in the world when a conversation goes back: calls that ran after the boundary (CM-24).

A fork forgets them; files, mails and money do not. Read from storage alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import UNSET, Struct

from perdure.errors import Rejected
from perdure.harness.transcript import read_transcript
from perdure.kinds.states import ToolState
from perdure.kinds.tool import ToolCall
from perdure.ports import Storage
from perdure.records.codec import decode
from perdure.records.entries import Entry
from perdure.records.messages import AssistantPayload, ToolResultPayload, read_payload
from perdure.records.seqs import Seq
from perdure.records.sessions import EntryScan, TaskScan
from perdure.records.tasks import Role, Task

PAGE: Final = 500

Ran: TypeAlias = Literal["finished", "interrupted", "running"]


class Effect(Struct, frozen=True, kw_only=True):
    """A call that may have changed the world; `result` is its entry, None while it runs.

    `args` are the arguments it ran with, None when they could not be read as JSON.
    """

    conversation: Seq
    result: Seq | None
    task: Seq | None
    tool: str
    args: Mapping[str, Any] | None
    outcome: Ran


async def effects_after(storage: Storage, conv_id: Seq, as_of: Seq) -> Sequence[Effect]:
    """Answer the calls in a conversation's history after a boundary that ran, or still run.

    Raises:
        Rejected: `unknown_target`.
    """
    state = (await storage.conversations([conv_id])).get(conv_id)
    if state is None:
        raise Rejected("unknown_target", f"there is no conversation {conv_id}")
    found: list[Effect] = []
    after = as_of
    while True:
        scan = EntryScan(after=after, limit=PAGE, kind="tool_result")
        page = await read_transcript(storage, state, scan)
        for entry in page:
            outcome = entry.meta.outcome
            if outcome is not UNSET and outcome in ("finished", "interrupted"):
                found.append(await _ended(storage, entry, outcome))
        if len(page) < PAGE:
            break
        after = page[-1].id
    return [*found, *await _running(storage, conv_id)]


async def _ended(storage: Storage, entry: Entry, outcome: Ran) -> Effect:
    task_id = None if entry.written_by is UNSET else entry.written_by
    task = None if task_id is None else (await storage.tasks([task_id])).get(task_id)
    assert entry.payload_json is not UNSET
    return Effect(
        conversation=entry.conv_id,
        result=entry.id,
        task=task_id,
        tool=read_payload(entry.payload_json, ToolResultPayload).message.tool_name,
        args=None if task is None else await _args(storage, task),
        outcome=outcome,
    )


async def _running(storage: Storage, conv_id: Seq) -> list[Effect]:
    scan = TaskScan(conv_id=conv_id, kind=ToolCall.facts.name, live=True, limit=PAGE)
    return [
        Effect(
            conversation=conv_id,
            result=None,
            task=task.id,
            tool=decode(task.state_json, ToolState).name,
            args=await _args(storage, task),
            outcome="running",
        )
        for task in await storage.scan_tasks(scan)
        if ToolCall.facts.roles.get(task.status) is Role.INFLIGHT
    ]


async def _args(storage: Storage, task: Task) -> Mapping[str, Any] | None:
    """Answer the arguments a call ran with: its own, unless others were stored in their place."""
    state = decode(task.state_json, ToolState)
    if state.args is not UNSET:
        return state.args
    if task.at_entry is UNSET:
        return None
    entry = (await storage.entries([task.at_entry]))[task.at_entry]
    if entry.payload_json is UNSET:
        return None
    args = read_payload(entry.payload_json, AssistantPayload).message.calls[state.call_index].args
    return None if args is UNSET else args
