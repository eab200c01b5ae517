"""A function becomes a tool: its signature is the schema, its docstring the description."""

import dataclasses
import enum
import threading
from typing import Annotated, Any, Literal

import pytest
from msgspec import Struct

from perdure.errors import InvalidArguments, Rejected, ToolFailed
from perdure.ports import OutputPolicy, Tool, ToolContext
from perdure.records.strict_json import DEPTH_MAX
from perdure.toolkits.define import FunctionTool, Output, tool
from tests.unit.toolkits.context import Context


class Unit(enum.Enum):
    CELSIUS = "c"
    KELVIN = "k"


@dataclasses.dataclass
class Place:
    lat: float
    lon: float = 0.0


class Span(Struct):
    first: int
    last: int


@tool(replay="safe")
async def weather(
    city: Annotated[str, "name of the city"],
    days: int = 3,
    unit: Unit = Unit.CELSIUS,
    place: Place | None = None,
    spans: list[Span] = [],  # noqa: B006 - a default that a schema shows
    mode: Literal["now", "later"] = "now",
) -> dict[str, Any]:
    """Tell the weather of a city."""
    return {"city": city, "days": days, "unit": unit, "place": place, "spans": spans, "mode": mode}


def is_tool(one: Tool) -> Tool:
    return one


def test_a_decorated_function_is_a_tool() -> None:
    assert is_tool(weather).name == "weather"
    assert weather.description == "Tell the weather of a city."


@pytest.mark.spec("KT-02")
def test_the_schema_comes_from_the_signature() -> None:
    schema = weather.parameters
    assert schema["type"] == "object"
    assert schema["required"] == ["city"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["city"] == {"type": "string", "description": "name of the city"}
    assert schema["properties"]["days"] == {"type": "integer", "default": 3}
    assert schema["properties"]["unit"] == {"$ref": "#/$defs/Unit", "default": "c"}
    assert schema["properties"]["mode"] == {"enum": ["later", "now"], "default": "now"}
    assert set(schema["$defs"]) == {"Unit", "Place", "Span"}


def test_a_function_without_parameters_has_an_empty_object_schema() -> None:
    @tool
    def ping() -> None:
        """Say nothing."""

    assert ping.parameters["properties"] == {}
    assert ping.check({}) == {}


@pytest.mark.spec("KT-02")
async def test_arguments_are_coerced_before_the_function_sees_them() -> None:
    args = weather.check({"city": "Paris", "days": "5", "place": {"lat": "1"}, "unit": "k"})
    assert args == {
        "city": "Paris",
        "days": 5,
        "place": {"lat": 1.0},
        "unit": "k",
    }
    ctx = Context()
    await weather.execute(args, ctx)
    assert ctx.out.kept_details == {
        "city": "Paris",
        "days": 5,
        "unit": "k",
        "place": {"lat": 1.0, "lon": 0.0},
        "spans": [],
        "mode": "now",
    }


@pytest.mark.spec("KT-02")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, ["city"]),
        ({"city": 1}, ["$.city", "str", "given 1"]),
        ({"city": "x", "days": "many"}, ["$.days", "'many'"]),
        ({"city": "x", "place": {"lat": "north"}}, ["$.place.lat"]),
        ({"city": "x", "colour": 1}, ["colour"]),
        ({"city": "x", "mode": "never"}, ["$.mode", "'never'"]),
    ],
)
def test_a_refusal_names_the_path(args: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidArguments) as refused:
        weather.check(args)
    assert all(word in str(refused.value) for word in ["weather", *words])


def star(*args: int) -> None:
    """Take any."""


def stars(**kwargs: int) -> None:
    """Take any."""


def position(at: int, /) -> None:
    """Take one."""


def bare(at) -> None:
    """Take one."""


def foreign(at: threading.Thread) -> None:
    """Take one."""


def silent(at: int) -> None: ...


def ambiguous(at: Place | Span) -> None:
    """Take one of two that look alike."""


def unknown(at: "Nowhere") -> None:  # noqa: F821  # pyright: ignore[reportUndefinedVariable] # the case
    """Take one."""


@pytest.mark.spec("KT-02")
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (star, "'args'"),
        (stars, "'kwargs'"),
        (position, "'at'"),
        (bare, "'at'"),
        (foreign, "'at'"),
        (ambiguous, "'at'"),
        (silent, "docstring"),
        (unknown, "Nowhere"),
    ],
)
def test_what_no_schema_can_express_fails_at_decoration(function: Any, words: str) -> None:
    with pytest.raises(Rejected) as refused:
        tool(function)
    assert refused.value.code == "invariant"
    assert function.__name__ in str(refused.value)
    assert words in str(refused.value)


@pytest.mark.parametrize("bad", [{"replay": "maybe"}, {"approval": "perhaps"}, {"name": "a b"}])
def test_a_declaration_outside_the_words_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match=repr(next(iter(bad.values())))):
        tool(**bad)(weather)


@pytest.mark.spec("TL-28")
def test_declarations_default_to_never_and_the_tail() -> None:
    @tool
    def act() -> None:
        """Act."""

    policy: OutputPolicy = act.output
    assert (act.replay, act.approval) == ("never", "allow")
    assert (policy.retain, policy.bytes_max) == ("tail", 65_536)


def test_declarations_are_kept() -> None:
    @tool(
        name="do_it",
        replay="safe",
        approval="ask",
        output=Output(retain="head", bytes_max=10),
    )
    def act() -> None:
        """Act."""

    assert (act.name, act.replay, act.approval) == ("do_it", "safe", "ask")
    assert act.output == Output(retain="head", bytes_max=10)


@pytest.mark.spec("SC-26")
async def test_a_blocking_function_runs_on_a_thread_named_after_the_tool() -> None:
    @tool
    def where() -> str:
        """Name the thread."""
        thread = threading.current_thread()
        return f"{thread.name} {thread.daemon}"

    ctx = Context()
    await where.execute({}, ctx)
    assert ctx.out.text == "where True"


async def test_the_context_is_given_and_not_shown() -> None:
    @tool
    async def call_of(word: str, ctx: ToolContext) -> str:
        """Say which call it is."""
        return f"{word} {ctx.call_id}"

    ctx = Context()
    await call_of.execute({"word": "this is"}, ctx)
    assert ctx.out.text == "this is call-1"
    assert list(call_of.parameters["properties"]) == ["word"]


async def run_returning(value: object) -> Context:
    @tool
    async def give() -> object:
        """Give it."""
        return value

    ctx = Context()
    assert await give.execute({}, ctx) is None
    return ctx


@pytest.mark.spec("TL-32")
@pytest.mark.parametrize(
    ("value", "text", "details"),
    [
        ("plain", "plain", None),
        (None, "", None),
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}', {"b": 1, "a": [True, None]}),
        (Place(1.5), '{"lat":1.5,"lon":0.0}', {"lat": 1.5, "lon": 0.0}),
        (Span(1, 2), '{"first":1,"last":2}', {"first": 1, "last": 2}),
        ({1: (Unit.KELVIN,)}, '{"1":["k"]}', {"1": ["k"]}),
        (False, "false", False),
        (b"\x00\x01", '"AAE="', "AAE="),
    ],
)
async def test_a_returned_value_becomes_the_result(
    value: object, text: str, details: object
) -> None:
    ctx = await run_returning(value)
    assert (ctx.out.text, ctx.out.kept_details) == (text, details)


async def test_a_number_that_is_not_finite_is_named_in_text() -> None:
    ctx = await run_returning({"ratio": float("nan")})
    assert ctx.out.text == '{"ratio":"NaN"}'


def endless() -> list[object]:
    loop: list[object] = []
    loop.append(loop)
    return loop


@pytest.mark.spec("TL-32")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [1, threading.Lock()]}, ["$.a[1]", "lock"]),
        ({(1, 2): 1}, ["$", "tuple"]),
        (object(), ["$", "object"]),
        (endless(), ["$[0][0]", str(DEPTH_MAX)]),
    ],
)
async def test_a_value_that_does_not_convert_is_named(value: object, words: list[str]) -> None:
    with pytest.raises(ToolFailed) as failed:
        await run_returning(value)
    assert all(word in str(failed.value) for word in words)


def test_a_tool_is_still_its_function() -> None:
    @tool
    def double(n: int) -> int:
        """Double it."""
        return 2 * n

    assert isinstance(double, FunctionTool)
    assert double(4) == 8
