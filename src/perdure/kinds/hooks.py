"""Hooks: six points where a host's code edits, decides or observes (seed 10 and 20, D22).

A handler is a function of one input, async or not; one that is not runs on a thread of its own, as
tools do. Handlers run outside the line and may commit; nothing of them is stored, so after a
restart only those registered again act (HK-08, HK-10).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args, overload

from msgspec import UNSET, Struct, UnsetType

from perdure.errors import Rejected
from perdure.ports import ConversationReader
from perdure.records.messages import (
    AssistantMessage,
    ImagePart,
    InputContent,
    Message,
    Part,
    TextPart,
)
from perdure.records.models import ToolSpec
from perdure.records.seqs import Seq
from perdure.records.tasks import Task

HookPoint: TypeAlias = Literal[
    "before_request", "after_response", "before_tool", "after_tool", "on_yield", "before_collapse"
]
"""The six points (HK-01)."""

POINTS: Final[tuple[HookPoint, ...]] = get_args(HookPoint)

HOOK_SECONDS: Final = 60
"""How long a handler may take (K30)."""

YIELDS_MAX: Final = 16
"""How often one input may be continued by on_yield (D01)."""

NO_META: Final[Mapping[str, Any]] = MappingProxyType({})


class Allow(Struct, frozen=True, kw_only=True):
    """No objection; at before_collapse `meta` goes into the summary's meta, the last one wins."""

    meta: Mapping[str, Any] = NO_META


class Block(Struct, frozen=True):
    """Refuse the call; the model reads the text."""

    text: str


class Hold(Struct, frozen=True):
    """Ask a person first; without a prompt the tool is named and no argument is shown (X23)."""

    prompt: str | None = None


class Pass(Struct, frozen=True):
    """Let the run end."""


class Continue(Struct, frozen=True):
    """Go on with one more message of the user's role."""

    message: InputContent


class Decline(Struct, frozen=True):
    """Collapse nothing now."""


class ProviderRequest(Struct, frozen=True, kw_only=True):
    """What an attempt is about to send, as far as a handler may change it."""

    system_prompt: str | None
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    stream_options: Mapping[str, Any]


class ToolResult(Struct, frozen=True, kw_only=True):
    """What a call ended with; `details` is plain JSON, None when there is none."""

    content: Sequence[Part]
    details: Any
    is_error: bool


class ToolResultPatch(Struct, frozen=True, kw_only=True):
    """Whole fields of a result to replace; a text is one part (D22)."""

    content: str | Sequence[TextPart | ImagePart] | UnsetType = UNSET
    details: Any = UNSET
    is_error: bool | UnsetType = UNSET


class BeforeRequest(Struct, frozen=True, kw_only=True):
    """An attempt is about to be sent: answer the request to send, or None to leave it."""

    conv: ConversationReader
    generation: Task
    request: ProviderRequest


class AfterResponse(Struct, frozen=True, kw_only=True):
    """A reply was stored; answers nothing."""

    generation: Task
    message: AssistantMessage


class BeforeTool(Struct, frozen=True, kw_only=True):
    """A call with valid arguments is about to run; changing `args` changes nothing (D22)."""

    call: Task
    args: Mapping[str, Any]


class AfterTool(Struct, frozen=True, kw_only=True):
    """A call ran to its end: answer a patch of its result, or None."""

    call: Task
    result: ToolResult


class OnYield(Struct, frozen=True, kw_only=True):
    """A final answer is about to be stored, and nothing is queued: end here, or go on."""

    conv: ConversationReader
    generation: Task
    message: AssistantMessage


class BeforeCollapse(Struct, frozen=True, kw_only=True):
    """The context's prefix through an entry is about to give way to a summary."""

    conv: ConversationReader
    through: Seq
    prefix_version: int


BeforeToolAnswer: TypeAlias = Allow | Block | Hold | None
OnYieldAnswer: TypeAlias = Pass | Continue | None
BeforeCollapseAnswer: TypeAlias = Allow | Decline | None

AnyHandler: TypeAlias = Callable[[Any], Any]


class Hooks:
    """Handlers by point, in ascending priority; those of one priority in order of registration."""

    def __init__(self) -> None:
        """Start with none."""
        self._handlers: dict[HookPoint, list[tuple[int, AnyHandler]]] = {
            point: [] for point in POINTS
        }

    @overload
    def on(
        self,
        point: Literal["before_request"],
        handler: Callable[
            [BeforeRequest], ProviderRequest | Awaitable[ProviderRequest | None] | None
        ],
        *,
        priority: int = 0,
    ) -> Callable[[], None]: ...
    @overload
    def on(
        self,
        point: Literal["after_response"],
        handler: Callable[[AfterResponse], Awaitable[None] | None],
        *,
        priority: int = 0,
    ) -> Callable[[], None]: ...
    @overload
    def on(
        self,
        point: Literal["before_tool"],
        handler: Callable[[BeforeTool], BeforeToolAnswer | Awaitable[BeforeToolAnswer]],
        *,
        priority: int = 0,
    ) -> Callable[[], None]: ...
    @overload
    def on(
        self,
        point: Literal["after_tool"],
        handler: Callable[[AfterTool], ToolResultPatch | Awaitable[ToolResultPatch | None] | None],
        *,
        priority: int = 0,
    ) -> Callable[[], None]: ...
    @overload
    def on(
        self,
        point: Literal["on_yield"],
        handler: Callable[[OnYield], OnYieldAnswer | Awaitable[OnYieldAnswer]],
        *,
        priority: int = 0,
    ) -> Callable[[], None]: ...
    @overload
    def on(
        self,
        point: Literal["before_collapse"],
        handler: Callable[[BeforeCollapse], BeforeCollapseAnswer | Awaitable[BeforeCollapseAnswer]],
        *,
        priority: int = 0,
    ) -> Callable[[], None]: ...
    def on(self, point: HookPoint, handler: AnyHandler, *, priority: int = 0) -> Callable[[], None]:
        """Register a handler; answers the way out (HK-02).

        Raises:
            Rejected: `invariant`, for an unknown point and for what cannot be called.
        """
        if point not in POINTS:
            raise Rejected(
                "invariant", f"no hook is named {point!r}; there are: {', '.join(POINTS)}"
            )
        if not callable(handler):
            raise Rejected(
                "invariant", f"{handler!r} cannot be called; give a function of one input"
            )
        registered = (priority, handler)
        self._handlers[point].append(registered)
        self._handlers[point].sort(key=lambda one: one[0])

        def unregister() -> None:
            kept = [one for one in self._handlers[point] if one is not registered]
            self._handlers[point] = kept

        return unregister

    def at(self, point: HookPoint) -> tuple[AnyHandler, ...]:
        """Answer the handlers of a point in the order they run."""
        return tuple(handler for _, handler in self._handlers[point])
