"""Running hooks: each point's handlers in order, and how their answers combine (HK-03 to HK-07).

Nothing here commits. What a faulty or hung handler means is said once for each point, in its
function; every fault is reported as well. A signal ends the wait with `Interrupted`, and the caller
drops what was decided until then (HK-12).
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, cast, get_args

import msgspec
from msgspec import UNSET, Struct

from perdure.drive.context import TaskContext
from perdure.errors import Interrupted, ProviderError, Rejected, text_of
from perdure.kinds.hooks import (
    AfterResponse,
    AfterTool,
    Allow,
    AnyHandler,
    BeforeCollapse,
    BeforeRequest,
    BeforeTool,
    Block,
    Continue,
    Decline,
    Hold,
    HookPoint,
    OnYield,
    Pass,
    ProviderRequest,
    ToolResult,
    ToolResultPatch,
)
from perdure.kinds.projection import Source
from perdure.kinds.reader import ConversationView
from perdure.kinds.request import Asked, fixed_tokens
from perdure.kinds.services import Services
from perdure.kinds.steps import held_loop, stepped
from perdure.records.codec import checked_raw, decode_json, encode
from perdure.records.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    Part,
    TextPart,
    UserMessage,
    normalize_input,
)
from perdure.records.models import ToolSpec
from perdure.records.strict_json import repair_text
from perdure.records.tasks import Task


class Fault(Struct, frozen=True, kw_only=True):
    """A handler raised, hung, or answered what means nothing at its point."""

    text: str


ANSWERS: Final[Mapping[HookPoint, tuple[type[Any], ...]]] = MappingProxyType(
    {
        "before_request": (ProviderRequest,),
        "after_response": (),
        "before_tool": (Allow, Block, Hold),
        "after_tool": (ToolResultPatch,),
        "on_yield": (Pass, Continue),
        "before_collapse": (Allow, Decline),
    }
)
"""What a handler may answer besides nothing."""


def name_of(handler: AnyHandler) -> str:
    """Name a handler for people."""
    return str(getattr(handler, "__qualname__", None) or type(handler).__name__)


async def _answer(
    ctx: TaskContext, services: Services, point: HookPoint, handler: AnyHandler, given: Struct
) -> Any | Fault:
    """Answer what one handler says, or its fault, which is reported here."""
    try:
        with ctx.span("hook", point=point, name=name_of(handler)) as span:
            said = await ctx.outside(limited(services, f"{point} hook", handler, given))
            _check_made(said, (type(None), *ANSWERS[point]))
            span.set(decision=type(said).__name__)
    except Interrupted:
        raise
    except Exception as error:  # noqa: BLE001 - hook: whatever it raises is its own fault (HK-07)
        services.report(error, ctx.task_id)
        words = f"the {point} hook {name_of(handler)} failed: {type(error).__name__}: "
        return Fault(text=repair_text(words + text_of(error))[0])
    return said


async def limited(
    services: Services, what: str, function: Callable[[Any], Any], given: object
) -> Any:
    """Run a host's function of one input, at most `hook_seconds` long (K30).

    A function that is not async runs on a thread of its own. What has not returned in time is
    cancelled and left behind: its later answer is ignored.

    Raises:
        TimeoutError: it took too long.
        Exception: what it raised.
    """
    seconds = services.hook_seconds
    work = asyncio.create_task(_run(services, what, function, given))  # noqa: TID251 - left behind when it hangs (K30)
    timer = asyncio.create_task(services.clock.sleep(seconds * 1000))  # noqa: TID251 - cancelled below
    try:
        await asyncio.wait({work, timer}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise TimeoutError(f"it did not return within {seconds} s")
        if work.cancelled():
            raise RuntimeError("it was cancelled from inside")
        return work.result()
    finally:
        for one in (work, timer):
            one.cancel()
            one.add_done_callback(_forget)


def _forget(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


async def _run(services: Services, what: str, function: Callable[[Any], Any], given: object) -> Any:
    if _is_async(function):
        return await stepped(
            partial(function, given),
            services.clock,
            lambda held_ms: services.report(held_loop(f"the {what}", held_ms), None),
        )
    said = await services.threads.run(what, partial(function, given))
    return await said if inspect.isawaitable(said) else said


def _is_async(function: object) -> bool:
    whole = getattr(type(function), "__call__", None)  # noqa: B004 - is calling it async?
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(whole)


# The points.


async def before_request(
    ctx: TaskContext, services: Services, generation: Task, asked: Asked
) -> Asked:
    """Answer the request as the handlers edit it, each seeing the one before (HK-03).

    Raises:
        ProviderError: `hook`, when a handler failed or answered what cannot be sent.
    """
    handlers = services.hooks.at("before_request")
    if not handlers:
        return asked
    conv = ConversationView(ctx.line, ctx.conv_id)
    request = ProviderRequest(
        system_prompt=asked.request.system,
        messages=asked.request.messages,
        tools=asked.request.tools,
        stream_options=decode_json(asked.request.options),
    )
    for handler in handlers:
        given = BeforeRequest(conv=conv, generation=generation, request=request)
        said = await _answer(ctx, services, "before_request", handler, given)
        if isinstance(said, Fault):
            raise ProviderError("hook", said.text)
        request = request if said is None else said
    try:
        return _edited(asked, request)
    except (Rejected, TypeError) as error:
        raise ProviderError("hook", f"a before_request hook made a bad request: {error}") from None


def _edited(asked: Asked, request: ProviderRequest) -> Asked:
    """Put an edited request in the place of the built one; what stayed keeps its source."""
    known = {
        id(message): source
        for message, source in zip(asked.request.messages, asked.sources, strict=True)
    }
    sources: list[Source | None] = [known.get(id(message)) for message in request.messages]
    for message, source in zip(request.messages, sources, strict=True):
        if source is None:
            _check_made(message, cast("tuple[type[Any], ...]", get_args(Message)))
            checked_raw(message)
    for tool in request.tools:
        _check_made(tool, (ToolSpec,))
    if not request.messages:
        raise Rejected("invariant", "it has no message")
    if request.system_prompt is not None:
        _check_made(request.system_prompt, (str,))
    tools = tuple(request.tools)
    return msgspec.structs.replace(
        asked,
        sources=sources,
        fixed_tokens=fixed_tokens(request.system_prompt, tools),
        tools_edited=(
            None if tools == asked.request.tools else frozenset(tool.name for tool in tools)
        ),
        request=msgspec.structs.replace(
            asked.request,
            system=request.system_prompt,
            messages=request.messages,
            tools=tools,
            options=checked_raw(request.stream_options),
        ),
    )


def _check_made(value: object, accepted: tuple[type[Any], ...]) -> None:
    if not isinstance(value, accepted):
        names = ", ".join(kind.__name__ for kind in accepted)
        raise TypeError(f"{type(value).__name__} means nothing here; accepted is: {names}")


async def after_response(
    ctx: TaskContext, services: Services, generation: Task, message: AssistantMessage
) -> None:
    """Tell every handler of a stored reply; their faults change nothing (HK-06)."""
    given = AfterResponse(generation=generation, message=message)
    for handler in services.hooks.at("after_response"):
        await _answer(ctx, services, "after_response", handler, given)


async def before_tool(
    ctx: TaskContext, services: Services, call: Task, args: Mapping[str, Any]
) -> Block | Hold | None:
    """Answer the first objection; a faulty handler blocks with its text (HK-04, HK-07)."""
    for handler in services.hooks.at("before_tool"):
        given = BeforeTool(call=call, args=decode_json(encode(args)))
        said = await _answer(ctx, services, "before_tool", handler, given)
        if isinstance(said, Fault):
            return Block(said.text)
        if isinstance(said, Block | Hold):
            return said
    return None


async def after_tool(
    ctx: TaskContext, services: Services, call: Task, result: ToolResult
) -> ToolResult:
    """Answer the result as the handlers patch it; a faulty one's patch is ignored (D22)."""
    for handler in services.hooks.at("after_tool"):
        given = AfterTool(call=call, result=result)
        said = await _answer(ctx, services, "after_tool", handler, given)
        if isinstance(said, ToolResultPatch):
            try:
                result = _patched(result, said)
            except (Rejected, TypeError) as error:
                services.report(error, ctx.task_id)
    return result


def _patched(result: ToolResult, patch: ToolResultPatch) -> ToolResult:
    changes: dict[str, Any] = {}
    if patch.content is not UNSET:
        changes["content"] = _content(patch.content)
    if patch.details is not UNSET:
        changes["details"] = decode_json(checked_raw(patch.details))
    if patch.is_error is not UNSET:
        _check_made(patch.is_error, (bool,))
        changes["is_error"] = patch.is_error
    return msgspec.structs.replace(result, **changes)


def _content(content: str | Sequence[TextPart | ImagePart]) -> tuple[Part, ...]:
    """Answer the parts of a patch, as clean as a tool's own (VD-16)."""
    if not content:
        return ()
    given = (TextPart(text=content),) if isinstance(content, str) else tuple(content)
    for part in given:
        _check_made(part, (TextPart, ImagePart))
    (message,), _ = normalize_input(UserMessage(content=given))
    return message.content


async def on_yield(
    ctx: TaskContext, services: Services, generation: Task, message: AssistantMessage
) -> tuple[UserMessage, ...]:
    """Answer the messages of the first handler that goes on; none when the run ends (HK-05)."""
    conv = ConversationView(ctx.line, ctx.conv_id)
    given = OnYield(conv=conv, generation=generation, message=message)
    for handler in services.hooks.at("on_yield"):
        said = await _answer(ctx, services, "on_yield", handler, given)
        if isinstance(said, Continue):
            try:
                return normalize_input(said.message, now_ms=services.clock.now_ms())[0]
            except Rejected as error:
                services.report(error, ctx.task_id)
    return ()


async def before_collapse(
    ctx: TaskContext, services: Services, given: BeforeCollapse
) -> Mapping[str, Any] | None:
    """Answer the merged metas, None when a handler declined or failed (HK-05, HK-07)."""
    merged: dict[str, Any] = {}
    for handler in services.hooks.at("before_collapse"):
        said = await _answer(ctx, services, "before_collapse", handler, given)
        if isinstance(said, Fault | Decline):
            return None
        if isinstance(said, Allow):
            try:
                merged.update(decode_json(checked_raw(said.meta)))
            except Rejected as error:
                services.report(error, ctx.task_id)
                return None
    return merged
