"""A tool from a JSON Schema checks its arguments by it."""

from collections.abc import Mapping
from typing import Any

import pytest

from perdure.errors import InvalidArguments, Rejected
from perdure.ports import Tool, ToolContext
from perdure.toolkits.json_schema import raw_tool
from tests.unit.toolkits.context import Context

SCHEMA = {
    "type": "object",
    "properties": {"at": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
    "required": ["at"],
    "additionalProperties": False,
}


async def run(args: Mapping[str, Any], ctx: ToolContext) -> object:
    ctx.out.write(str(args["at"]))
    return None


async def test_arguments_that_fit_are_passed_unchanged() -> None:
    tool: Tool = raw_tool("place", "Place things.", SCHEMA, run)
    args = {"at": [1, 2]}
    assert tool.check(args) is args
    ctx = Context()
    assert await tool.execute(args, ctx) is None
    assert ctx.out.text == "[1, 2]"
    assert (tool.replay, tool.approval, tool.parameters) == ("never", "allow", SCHEMA)


@pytest.mark.parametrize(
    ("args", "path"), [({}, "at"), ({"at": [1, -1]}, "$.at[1]"), ({"at": [], "x": 1}, "'x'")]
)
def test_a_misfit_names_the_path(args: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        raw_tool("place", "Place things.", SCHEMA, run).check(args)
    assert "place" in str(refused.value)
    assert path in str(refused.value)


@pytest.mark.parametrize("schema", [{"type": "nothing"}, {"type": "array"}, {}])
def test_a_schema_that_describes_no_object_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match="place"):
        raw_tool("place", "Place things.", schema, run)
