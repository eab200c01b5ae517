"""What the local model is sent: tools as bounded schemas, and the help a small model gets."""

from collections.abc import Mapping
from typing import Any

import pytest

from perdure.providers.local_prompt import (
    BROUGHT,
    SMALL,
    TEXT_CHARACTERS_MAX,
    Asked,
    Profile,
    asked,
    bounded,
    literals_of,
    offered_tools,
)
from perdure.records.entries import ModelId
from perdure.records.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    text_message,
)
from perdure.records.models import ModelRequest, ToolSpec

MODEL = ModelId(provider="local", model_id="smollm2")
TEXT = {"type": "string"}


def tool(name: str, description: str, required: Mapping[str, Any], **optional: Any) -> ToolSpec:
    """Make a tool of required and optional arguments."""
    parameters = {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
    }
    return ToolSpec(name=name, description=description, parameters=parameters)


LIST = tool("list", "List a folder: files and folders.", {}, path=TEXT, depth={"type": "integer"})
READ = tool("read", "Read a text file.", {"path": TEXT}, offset={"type": "integer"})
WRITE = tool("write", "Write a file.", {"path": TEXT, "content": TEXT})
SHELL = tool("shell", "Run a shell command.\nNever twice.", {"command": TEXT})
TOOLS = (READ, WRITE, LIST, SHELL)


def ask(*messages: Message | str, tools: tuple[ToolSpec, ...] = TOOLS) -> ModelRequest:
    """Make a request."""
    said = [text_message(each) if isinstance(each, str) else each for each in messages]
    return ModelRequest(model=MODEL, messages=said, tools=tools)


def offered(text: str, profile: Profile = SMALL) -> list[str]:
    """Name the tools a request's words bring."""
    return [each.name for each in offered_tools(ask(text), profile)]


def called(name: str, **args: Any) -> AssistantMessage:
    """Make a message of one call."""
    part = ToolCallPart(call_id="c", name=name, args=args)
    return AssistantMessage(content=(part,), api="x", model=MODEL, stop="toolUse")


def result(name: str, text: str) -> ToolResultMessage:
    """Make a result."""
    content = (TextPart(text=text),)
    return ToolResultMessage(call_id="c", tool_name=name, content=content, is_error=False)


def form(question: Asked) -> dict[str, Any]:
    """Answer the schema."""
    assert question.schema is not None
    return question.schema


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("List the files in this folder.", ["list"]),
        ("Read README.md", ["read"]),
        ("Run a command: ls", ["shell"]),
        ("Why is the sky blue?", []),
        ("Hello!", []),
        ("a file, please", ["read", "write", "list"]),
    ],
)
def test_a_small_model_is_offered_what_the_words_point_at(text: str, names: list[str]) -> None:
    assert offered(text) == names


def test_a_brought_model_is_offered_every_tool() -> None:
    assert offered("Why is the sky blue?", BROUGHT) == ["read", "write", "list", "shell"]


@pytest.mark.spec("PV-24")
def test_one_tool_pointed_at_has_to_be_called() -> None:
    question = asked(ask("List the files in this folder."), SMALL)
    assert form(question)["properties"] == {
        "tool": {"const": "list"},
        "arguments": {
            "type": "object",
            "properties": {},
            "required": [],
            "additionalProperties": False,
        },
    }
    assert "- list(path, depth): List a folder" in question.messages[-1]["content"]


def test_several_tools_leave_the_choice_and_an_answer() -> None:
    forms = form(asked(ask("a file, please"), SMALL))["anyOf"]
    assert [each["properties"].get("tool", {}).get("const") for each in forms] == [
        "read",
        "write",
        "list",
        None,
    ]
    assert list(forms[-1]["properties"]) == ["answer"]


@pytest.mark.parametrize(
    ("text", "argument", "accepted"),
    [
        ("list src/perdure", "path", {"enum": ["src/perdure"]}),
        ("read `my notes`", "path", {"enum": ["my notes"]}),
        ("read it", "path", {"type": "string", "maxLength": TEXT_CHARACTERS_MAX}),
    ],
)
def test_what_a_request_names_is_what_an_argument_may_be(
    text: str, argument: str, accepted: object
) -> None:
    arguments = form(asked(ask(text), SMALL))["properties"]["arguments"]
    assert arguments["properties"] == {argument: accepted}


def test_two_required_texts_are_not_guessed() -> None:
    arguments = form(asked(ask("write hello into a.txt"), SMALL))["properties"]["arguments"]
    assert [each["type"] for each in arguments["properties"].values()] == ["string", "string"]


def test_literals_are_quoted_words_and_paths() -> None:
    text = "Look at `a b`, \"c d\", 'e f', src/x.py and README.md. It's 5 o'clock."
    assert literals_of(text) == ("a b", "c d", "e f", "src/x.py", "README.md")


@pytest.mark.spec("PV-24")
def test_after_one_round_a_small_model_answers_in_text() -> None:
    exchange = (called("list"), result("list", "a.txt"))
    question = asked(ask("List the files.", *exchange), SMALL)
    assert question.schema is None
    assert [message["role"] for message in question.messages] == ["user", "assistant", "user"]
    assert question.messages[1]["content"] == "I use the tool list."
    assert question.messages[2]["content"] == "Result of list:\na.txt\nTell me the result."
    again = asked(ask("List the files.", *exchange, "List the files again."), SMALL)
    assert again.schema is not None


def test_a_brought_model_may_call_for_several_rounds() -> None:
    rounds = [called("list"), result("list", "x")] * (BROUGHT.rounds_max - 1)
    assert asked(ask("go", *rounds), BROUGHT).schema is not None
    rounds += rounds[:2]
    assert asked(ask("go", *rounds), BROUGHT).schema is None


def test_a_brought_model_sees_its_calls_as_it_made_them() -> None:
    exchange = (called("list", path="src"), result("list", "x"))
    question = asked(ask("go", *exchange), BROUGHT)
    assert question.messages[1]["content"] == '{"tool":"list","arguments":{"path":"src"}}'


def test_neighbours_of_one_role_are_joined_and_the_system_text_leads() -> None:
    request = ModelRequest(
        model=MODEL, system="Be brief.", messages=(text_message("a"), text_message("b"))
    )
    assert asked(request, SMALL).messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\n\nb"},
    )


def test_a_long_result_is_cut_and_says_so() -> None:
    request = ask("List", called("list"), result("list", "x" * 9_000))
    content = asked(request, SMALL).messages[-1]["content"]
    assert len(content) < 2_200
    assert "[7000 more characters]" in content


def test_an_image_is_named_in_text() -> None:
    picture = UserMessage(
        content=(TextPart(text="see"), ImagePart(mime="image/png", sha256="0", data="AA=="))
    )
    assert "cannot see" in asked(ask(picture, tools=()), SMALL).messages[0]["content"]


def test_the_front_of_a_request_stays_the_same_when_tools_are_offered() -> None:
    with_tools = asked(ask("old", called("list"), result("list", "x"), "List it."), SMALL)
    without = asked(ask("old", called("list"), result("list", "x"), "Hello"), SMALL)
    assert with_tools.messages[:-1] == without.messages[:-1]


def test_every_text_and_list_of_a_schema_is_bounded() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "long", "maxLength": 9_999},
            "tags": {"type": "array", "items": {"type": "string"}},
            "mode": {"enum": ["a", "b"]},
            "kind": {"const": "k"},
            "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "several": {"type": ["string", "null"]},
            "deep": {"$ref": "#/$defs/Deep"},
            "any": {},
        },
        "required": ["name"],
    }
    deep: dict[str, Any] = {"type": "object", "properties": {"self": {"$ref": "#/$defs/Deep"}}}
    made = bounded(schema, {"Deep": deep})
    assert made["required"] == ["name"]
    properties = made["properties"]
    text = {"type": "string", "maxLength": TEXT_CHARACTERS_MAX}
    assert properties["name"] == text
    assert properties["tags"] == {"type": "array", "items": text, "maxItems": 16}
    assert (properties["mode"], properties["kind"]) == ({"enum": ["a", "b"]}, {"const": "k"})
    assert properties["either"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert properties["several"] == {"anyOf": [text, {"type": "null"}]}
    assert properties["any"] == text
    assert "$ref" not in str(made), "a schema that refers to itself ends at its depth"
