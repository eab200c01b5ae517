"""What the next request of a conversation would say, read from storage alone (CM-22).

The same projection as a real request, over the same stored facts; the tools are the host's. Calls
that have no result yet are counted: their results will stand in the request before it is sent.
"""

from collections.abc import Sequence

from msgspec import Struct

from perdure.harness.overview import entries_of, root_of
from perdure.kinds.content import CORE_CONTENT
from perdure.kinds.projection import Projected, Projections
from perdure.kinds.refusals import load_refused
from perdure.kinds.request import fixed_tokens
from perdure.ports import Storage, Tool
from perdure.records.addresses import ACTIVE_TOOLS, MODEL
from perdure.records.codec import decode
from perdure.records.conversations import ConversationState
from perdure.records.entries import ModelId
from perdure.records.messages import (
    AssistantMessage,
    Message,
    ToolResultMessage,
    estimated_tokens,
)
from perdure.records.models import ToolSpec
from perdure.records.seqs import Seq
from perdure.records.settings import ALL_TOOLS


class SourceTokens(Struct, frozen=True, kw_only=True):
    """How much of the request one source is; `entry` is None for tools and system prompt."""

    source: str
    entry: Seq | None
    tokens: int


class NextRequest(Struct, frozen=True, kw_only=True):
    """A request as it would be sent; tokens are estimates."""

    conversation: Seq
    model: ModelId | None
    system: str | None
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    tokens: Sequence[SourceTokens]
    open_calls: int


async def next_request(
    storage: Storage,
    state: ConversationState,
    *,
    tools: Sequence[Tool] = (),
    system: str | None = None,
    as_of: Seq | None = None,
) -> NextRequest:
    """Project a conversation as it was read; `as_of` is the boundary of the read."""
    stored = await storage.value(MODEL.bind(state.id), as_of=as_of)
    model = None if stored is None else decode(stored.value_json, ModelId)
    projected = await _projected(storage, state, "" if model is None else model.provider)
    offered = await _offered(storage, state, tools, as_of)
    messages = tuple(projected.messages)
    by_source = [
        SourceTokens(
            source=_role(message),
            entry=source.entry,
            tokens=estimated_tokens(message.content),
        )
        for message, source in zip(messages, projected.sources, strict=True)
    ]
    fixed = [
        SourceTokens(source="system prompt", entry=None, tokens=fixed_tokens(system, ())),
        SourceTokens(source="tools", entry=None, tokens=fixed_tokens(None, offered)),
    ]
    return NextRequest(
        conversation=state.id,
        model=model,
        system=system,
        messages=messages,
        tools=offered,
        tokens=[*fixed, *by_source],
        open_calls=_open_calls(messages),
    )


async def conversation_of(
    storage: Storage, conv_id: Seq | None, as_of: Seq | None
) -> ConversationState | None:
    """Answer a conversation, the root when none is named; None when it is not there."""
    if conv_id is None:
        return await root_of(storage, as_of=as_of)
    return (await storage.conversations([conv_id], as_of=as_of)).get(conv_id)


async def _projected(storage: Storage, state: ConversationState, provider: str) -> Projected:
    projections = Projections(CORE_CONTENT)
    await load_refused(storage, projections)
    found = {entry.id: entry for entry in await entries_of(storage, list(state.context))}
    return projections.project(state, found.get, provider=provider)


async def _offered(
    storage: Storage, state: ConversationState, tools: Sequence[Tool], as_of: Seq | None
) -> tuple[ToolSpec, ...]:
    """Answer the active ones of the host's tools, in the order a generation would capture them."""
    stored = await storage.value(ACTIVE_TOOLS.bind(state.id), as_of=as_of)
    active = [ALL_TOOLS] if stored is None else decode(stored.value_json, list[str])
    by_name = {tool.name: tool for tool in tools}
    return tuple(
        ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
        for name in (by_name if ALL_TOOLS in active else active)
        if (tool := by_name.get(name)) is not None
    )


def _role(message: Message) -> str:
    return str(message.__struct_config__.tag)


def _open_calls(messages: Sequence[Message]) -> int:
    """Count the calls of the last assistant message that no result answers yet."""
    asked = answered = 0
    for message in messages:
        if isinstance(message, AssistantMessage):
            asked, answered = len(message.calls), 0
        elif isinstance(message, ToolResultMessage):
            answered += 1
    return asked - answered
