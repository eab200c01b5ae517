"""A tool from a Python function: `@perdure.tool`.

The schema comes from the signature, the description from the docstring, and arguments are
coerced to the annotated types before the function sees them (KT-02).
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, cast, overload

import msgspec
from msgspec import UNSET, Struct

from perdure.errors import InvalidArguments, Rejected
from perdure.ports import Approval, ApprovalFunction, OutputPolicy, Replay, ToolContext
from perdure.records.codec import canonical
from perdure.records.strict_json import repair
from perdure.toolkits.returns import to_json
from perdure.toolkits.signature import Signature, read_signature

OUTPUT_BYTES_MAX: Final = 64 * 1024
"""Bytes of text a tool's result keeps unless it says otherwise (TL-20)."""

GIVEN_CHARACTERS_MAX: Final = 200
"""Characters of a refused argument that its error quotes."""

_ARGUMENT: Final = re.compile(r"at `\$\.(\w+)")


class Output(Struct, frozen=True, kw_only=True):
    """Keep `bytes_max` bytes of a tool's text, from the `head` or the `tail` (TL-20)."""

    retain: Literal["head", "tail"] = "tail"
    bytes_max: int = OUTPUT_BYTES_MAX


class FunctionTool:
    """A function as a tool; calling it calls the function."""

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        *,
        replay: Replay,
        approval: Approval | ApprovalFunction,
        output: OutputPolicy,
    ) -> None:
        self._function = function
        self._signature = signature
        self._replay: Replay = replay
        self._approval: Approval | ApprovalFunction = approval
        self._output = output
        self._is_async = _is_async(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it were not a tool."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}: replay {self._replay}, approval {self._approval}>"

    @property
    def name(self) -> str:
        """Answer the name the model calls."""
        return self._signature.name

    @property
    def description(self) -> str:
        """Answer the docstring."""
        return self._signature.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Answer the JSON Schema made from the signature."""
        return self._signature.parameters

    @property
    def replay(self) -> Replay:
        """Say whether it may run again after an interruption; `never` unless declared (TL-28)."""
        return self._replay

    @property
    def approval(self) -> Approval | ApprovalFunction:
        """Say whether its calls run, ask a person, or are refused."""
        return self._approval

    @property
    def output(self) -> OutputPolicy:
        """Answer its output cap."""
        return self._output

    def check(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer the arguments as plain JSON values of the annotated types.

        Raises:
            InvalidArguments: naming the path, what stands there and what is accepted.
        """
        return cast("dict[str, Any]", msgspec.to_builtins(self._converted(args)))

    def _converted(self, args: Mapping[str, Any]) -> Struct:
        try:
            return msgspec.convert(dict(args), self._signature.model, strict=False)
        except msgspec.ValidationError as error:
            given = _given(args, str(error))
            raise InvalidArguments(f"arguments of {self.name}: {error}{given}") from error

    async def execute(self, args: Mapping[str, Any], ctx: ToolContext) -> object:
        """Call the function and put what it returns into the sink (TL-32).

        Text is written; None writes nothing; any other value that converts to JSON becomes the
        details and, as canonical JSON, the text. A function that is not async runs on a daemon
        thread named after the tool (SC-26).

        Raises:
            InvalidArguments: for arguments that `check` would refuse.
            ToolFailed: when the returned value does not convert, naming path and type.
        """
        typed = self._converted(args)
        named = {
            field: value
            for field in self._signature.fields
            if (value := getattr(typed, field)) is not UNSET
        }
        if self._signature.context is not None:
            named[self._signature.context] = ctx
        call = partial(self._function, **named)
        result = await call() if self._is_async else await ctx.threads.run(self.name, call)
        if inspect.isawaitable(result):
            result = await cast("Awaitable[object]", result)
        _put(result, ctx)
        return None


def _given(args: Mapping[str, Any], message: str) -> str:
    """Quote the argument a message is about, cut to what a model needs to recognise it."""
    argument = _ARGUMENT.search(message)
    if argument is None or argument[1] not in args:
        return ""
    return f", given {repr(args[argument[1]])[:GIVEN_CHARACTERS_MAX]}"


def _put(result: object, ctx: ToolContext) -> None:
    if result is None:
        return
    if isinstance(result, str):
        ctx.out.write(result)
        return
    value = to_json(result)
    ctx.out.details(value)
    ctx.out.write(canonical(repair(value)[0]).decode())


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - asks how it is called, not whether
    )


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    replay: Replay = "never",
    approval: Approval | ApprovalFunction = "allow",
    output: OutputPolicy | None = None,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    replay: Replay = "never",
    approval: Approval | ApprovalFunction = "allow",
    output: OutputPolicy | None = None,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool of a function: `@tool`, or `@tool(replay="safe")`.

    Args:
        function: sync or async; every parameter annotated; one parameter annotated `ToolContext`
            receives the context and is not shown to the model.
        name: what the model calls it; the function's name unless given.
        replay: "safe" when running it a second time does no harm (TL-28).
        approval: whether its calls run ("allow"), ask a person, or are refused; or a function of
            the arguments, async or not, that answers one of the three for each call (AQ-01).
        output: which end of its text is kept, and how much; the last 64 KiB unless given.

    Raises:
        Rejected: `invariant`, naming function and parameter, for what no schema can express.
    """
    policy = Output() if output is None else output
    for what, given, accepted in (
        ("replay", replay, ("safe", "never")),
        ("approval", approval, ("allow", "ask", "deny")),
    ):
        if given not in accepted and not (what == "approval" and callable(given)):
            raise Rejected("invariant", f"{what}={given!r} of a tool; accepted: {accepted!r}")

    def decorate(function: Callable[..., Any]) -> FunctionTool:
        signature = read_signature(function, name=name)
        return FunctionTool(function, signature, replay=replay, approval=approval, output=policy)

    return decorate if function is None else decorate(function)
