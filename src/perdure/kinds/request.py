"""A request: projection, system prompt, captured model and tools; nothing else (GN-07)."""

import inspect
from collections.abc import Sequence

from msgspec import Raw, Struct

from perdure.drive.context import TaskContext
from perdure.errors import ProviderError
from perdure.kinds.projection import Source
from perdure.kinds.services import Services
from perdure.records.codec import decode_json, encode, to_raw
from perdure.records.conversations import ConversationState
from perdure.records.messages import TOKEN_CHARACTERS
from perdure.records.models import ModelRequest, ToolSpec
from perdure.records.seqs import Seq
from perdure.records.settings import GenerationSettings


class Asked(Struct, frozen=True, gc=False, kw_only=True):
    """A request with the facts its outcome's entry will carry (FM-02).

    `sources` stand beside the messages; None is a message that a hook made. `tools_edited` names
    the offered tools when a hook changed them.
    """

    request: ModelRequest
    sources: Sequence[Source | None] = ()
    as_of: Seq
    prefix_version: int
    fixed_tokens: int
    tools_edited: frozenset[str] | None = None


def offered_tools(settings: GenerationSettings, services: Services) -> tuple[ToolSpec, ...]:
    """Answer the captured tools that are registered, in captured order."""
    return tuple(
        ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
        for name in settings.active_tools
        if (tool := services.tools.get(name)) is not None
    )


async def resolve_system(ctx: TaskContext, services: Services) -> str | None:
    """Resolve the system prompt for this request (GN-41)."""
    prompt = services.system_prompt
    if prompt is None or isinstance(prompt, str):
        return prompt
    answer = prompt()
    if inspect.isawaitable(answer):

        async def resolve() -> str:
            return await answer

        return await ctx.outside(resolve())
    return answer


async def build_request(
    ctx: TaskContext,
    services: Services,
    settings: GenerationSettings,
    state: ConversationState,
    *,
    attempt: int,
    output_limit: int | None = None,
) -> Asked:
    """Build the request for a conversation at the boundary `state` was read at.

    `output_limit` is what a budget lowers the output to, None when it leaves it alone.

    Raises:
        ProviderError: `invalid_request`, when nothing is left to send; nobody is asked then.
    """
    projected = services.projections.project(
        state, ctx.line.residency.entry, provider=settings.model.provider
    )
    if not projected.messages:
        raise ProviderError(
            "invalid_request", "the context is empty: there is no message to ask a model about"
        )
    tools = offered_tools(settings, services)
    system = await resolve_system(ctx, services)
    return Asked(
        request=ModelRequest(
            model=settings.model,
            system=system,
            messages=projected.messages,
            tools=tools,
            thinking=settings.thinking,
            options=_options(settings.stream_options, output_limit),
            cache_key=f"{services.session_id}-{state.id}",
            task_id=ctx.task_id,
            attempt=attempt,
        ),
        sources=projected.sources,
        as_of=state.commit_end,
        prefix_version=state.prefix_version,
        fixed_tokens=fixed_tokens(system, tools),
    )


def _options(options: Raw, output_limit: int | None) -> Raw:
    if output_limit is None:
        return options
    return to_raw({**decode_json(options), "max_tokens": output_limit})


def fetched(
    settings: GenerationSettings, conversation: ConversationState | None, *, as_of: Seq
) -> Asked:
    """Answer what is still known of a request whose answer was fetched later (GN-28)."""
    return Asked(
        request=ModelRequest(model=settings.model, messages=()),
        as_of=as_of,
        prefix_version=0 if conversation is None else conversation.prefix_version,
        fixed_tokens=0,
    )


def fixed_tokens(system: str | None, tools: Sequence[ToolSpec]) -> int:
    """Estimate system prompt and tool schemas: characters / 4, rounded up (CL-21)."""
    characters = len(system or "") + sum(
        len(tool.name) + len(tool.description) + len(encode(tool.parameters)) for tool in tools
    )
    return -(-characters // TOKEN_CHARACTERS)
