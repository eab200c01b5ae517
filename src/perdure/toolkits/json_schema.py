"""A tool from a JSON Schema: for tools that come from elsewhere, already described.

The only module that imports `jsonschema`, which the core does not need.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from msgspec import Struct

from perdure.errors import InvalidArguments, Rejected
from perdure.ports import Approval, ApprovalFunction, OutputPolicy, Replay, ToolContext
from perdure.toolkits.define import Output

Execute = Callable[[Mapping[str, Any], ToolContext], Awaitable[object]]


class RawTool(Struct, frozen=True, kw_only=True):
    """A tool with a schema of its own; `run` gets the arguments as they came."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Execute
    validator: Any
    replay: Replay = "never"
    approval: Approval | ApprovalFunction = "allow"
    output: OutputPolicy = Output()

    def check(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer the arguments unchanged when they fit the schema.

        Raises:
            InvalidArguments: naming the path of the first misfit.
        """
        fault = next(self.validator.iter_errors(dict(args)), None)
        if fault is not None:
            raise InvalidArguments(
                f"arguments of {self.name}: {fault.message[:500]} - at `{fault.json_path}`"
            )
        return args

    async def execute(self, args: Mapping[str, Any], ctx: ToolContext) -> object:
        """Run; what it answers is for the tool kind to judge (TL-32)."""
        return await self.run(args, ctx)


def raw_tool(
    name: str,
    description: str,
    parameters: Mapping[str, Any],
    run: Execute,
    *,
    replay: Replay = "never",
    approval: Approval | ApprovalFunction = "allow",
    output: OutputPolicy | None = None,
) -> RawTool:
    """Make a tool of a JSON Schema (draft 2020-12) and an async function.

    Raises:
        Rejected: `invariant` when the schema is none, or does not describe an object.
    """
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        raise Rejected("invariant", f"schema of tool {name!r}: {error.message}") from error
    if parameters.get("type") != "object":
        raise Rejected(
            "invariant",
            f"schema of tool {name!r} has type {parameters.get('type')!r}; accepted: 'object'",
        )
    return RawTool(
        name=name,
        description=description,
        parameters=parameters,
        run=run,
        validator=Draft202012Validator(parameters),
        replay=replay,
        approval=approval,
        output=Output() if output is None else output,
    )
