"""What the local model is sent, and in which form it may answer (PV-24). Pure functions.

Small models know no tools: their chat templates leave them out. They do obey a JSON schema, since
the runtime samples only text that fits it. So tools are offered as a schema: one object a tool,
`{"tool": …, "arguments": {…}}`, and `{"answer": …}` for a plain reply, with every text and list in
it bounded. `local_reply` reads the answer back.

A `Profile` says how much a model is trusted with. The built-in one has 135 million parameters and
is often wrong, so it is helped along: only the tools that the newest request's own words point at
are offered; when they point at one, that one is called; names and paths standing in the request
are the values its arguments may take; and after one round of calls it answers in plain text. A
model brought as a file gets every tool, and may answer instead of calling, for several rounds.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct

from perdure.records.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    UserMessage,
)
from perdure.records.models import ModelRequest, ToolSpec

Schema: TypeAlias = dict[str, Any]


class Profile(Struct, frozen=True, kw_only=True):
    """How much a local model is trusted with.

    Attributes:
        is_small: help it along, as the module says.
        rounds_max: exchanges of calls and results after one user message; then it must answer.
        result_characters_max: how much of one tool result it is shown.
        output_tokens: how long a reply may become unless the options say otherwise.
    """

    is_small: bool
    rounds_max: int
    result_characters_max: int
    output_tokens: int


SMALL: Final = Profile(is_small=True, rounds_max=1, result_characters_max=2_000, output_tokens=192)
"""The built-in model; it copies well from 2,000 characters, and loops in long replies."""

BROUGHT: Final = Profile(
    is_small=False, rounds_max=8, result_characters_max=8_000, output_tokens=1_024
)
"""A model the user brought as a file."""

TEXT_CHARACTERS_MAX: Final = 400
"""Longest text argument; the grammar unrolls a bound, so it is kept small."""

ANSWER_CHARACTERS_MAX: Final = 2_000
"""Longest `answer`; the runtime's grammars refuse longer repetitions."""

ITEMS_MAX: Final = 16
SCHEMA_DEPTH_MAX: Final = 6
TOOLS_OFFERED_MAX: Final = 16
LITERALS_MAX: Final = 8

NAME_POINTS: Final = 3
"""A word of the request that is a tool's name outweighs one that stands in its description."""

_STOP_TEXT: Final = """
a about all an and are as at be by can do does for from give have here how i if in into is it its me
my not of on one or please that the their them then there this to tool up use was what when which
who why will with you your
"""
STOP_WORDS: Final = frozenset(_STOP_TEXT.split())
"""Words of a request that point at no tool."""

_WORD: Final = re.compile(r"[a-z0-9]+")
_LITERAL: Final = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|(?<!\w)'([^'\n]+)'|(\S*[/.]\S*\w/?)")


class Asked(Struct, frozen=True, kw_only=True):
    """A request in the runtime's terms: chat messages, and the answer's schema (None: text)."""

    messages: tuple[dict[str, str], ...]
    schema: Schema | None = None


def asked(request: ModelRequest, profile: Profile) -> Asked:
    """Turn a request into chat messages and the schema its answer has to fit."""
    offered = offered_tools(request, profile)
    messages = list(_chat(request, profile))
    if not offered:
        return Asked(messages=tuple(messages))
    must_call = profile.is_small and len(offered) == 1
    literals = literals_of(_newest_user_text(request.messages)) if profile.is_small else ()
    forms = [_call_schema(tool, profile, literals) for tool in offered]
    if not must_call:
        forms.append(_ANSWER_SCHEMA)
    # Appended to the newest message: what stands before it stays the same and stays cached.
    messages[-1] = {
        "role": messages[-1]["role"],
        "content": messages[-1]["content"] + _instruction(offered, must_call=must_call),
    }
    schema = forms[0] if len(forms) == 1 else {"anyOf": forms}
    return Asked(messages=tuple(messages), schema=schema)


def offered_tools(request: ModelRequest, profile: Profile) -> tuple[ToolSpec, ...]:
    """Choose the tools to offer: none once the rounds are used up, few to a small model."""
    if not request.messages or _rounds(request.messages) >= profile.rounds_max:
        return ()
    if not profile.is_small:
        return request.tools[:TOOLS_OFFERED_MAX]
    wanted = set(_words(_newest_user_text(request.messages)))
    points = [(_points(tool, wanted), tool) for tool in request.tools]
    best = max((score for score, _ in points), default=0)
    return tuple(tool for score, tool in points if score == best > 0)


def _points(tool: ToolSpec, wanted: set[str]) -> int:
    named = set(_words(tool.name.replace("_", " ")))
    described = set(_words(tool.description.partition("\n")[0]))
    return NAME_POINTS * len(named & wanted) + len((described - named) & wanted)


def _words(text: str) -> Iterator[str]:
    for word in _WORD.findall(text.lower()):
        if word not in STOP_WORDS:
            yield word[:-1] if len(word) > 3 and word.endswith("s") else word


def literals_of(text: str) -> tuple[str, ...]:
    """List what a request quotes, and its words that look like paths or file names."""
    found: dict[str, None] = {}
    for match in _LITERAL.finditer(text):
        word = next(group for group in match.groups() if group)
        found.setdefault(word[:TEXT_CHARACTERS_MAX], None)
    return tuple(found)[:LITERALS_MAX]


def _rounds(messages: Sequence[Message]) -> int:
    rounds = 0
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            break
        if isinstance(message, AssistantMessage) and message.calls:
            rounds += 1
    return rounds


def _newest_user_text(messages: Sequence[Message]) -> str:
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return _text(message.content)
    return ""


def _text(parts: Sequence[Part]) -> str:
    texts: list[str] = []
    for part in parts:
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, ImagePart):
            texts.append("[an image, which this model cannot see]")
    return "\n".join(texts)


# ------------------------------------------------------------------------------ chat messages


def _chat(request: ModelRequest, profile: Profile) -> Iterator[dict[str, str]]:
    """Yield chat messages; neighbours of one role are joined, as strict templates demand."""
    role, texts = "system", [request.system] if request.system else []
    last = len(request.messages) - 1
    for index, message in enumerate(request.messages):
        spoken, text = _spoken(message, profile, is_last=index == last)
        if spoken != role:
            if texts:
                yield {"role": role, "content": "\n\n".join(texts)}
            role, texts = spoken, []
        texts.append(text)
    if texts:
        yield {"role": role, "content": "\n\n".join(texts)}


def _spoken(message: Message, profile: Profile, *, is_last: bool) -> tuple[str, str]:
    match message:
        case UserMessage(content=content):
            return "user", _text(content)
        case AssistantMessage(content=content):
            texts = [part.text for part in content if isinstance(part, TextPart)]
            texts += [_said(part, profile) for part in content if isinstance(part, ToolCallPart)]
            return "assistant", "\n".join(texts)
        case _:
            text = _shortened(_text(message.content), profile.result_characters_max)
            # Found by trying: without a last word about it, the small model invents a result.
            ask = "\nTell me the result." if profile.is_small and is_last else ""
            return "user", f"Result of {message.tool_name}:\n{text}{ask}"


def _said(part: ToolCallPart, profile: Profile) -> str:
    if profile.is_small:  # which would repeat JSON it sees in its own words
        return f"I use the tool {part.name}."
    args = part.args_text if part.args is UNSET else part.args
    return msgspec.json.encode({"tool": part.name, "arguments": args}).decode()


def _shortened(text: str, characters_max: int) -> str:
    if len(text) <= characters_max:
        return text
    return f"{text[:characters_max]}\n[{len(text) - characters_max} more characters]"


def _instruction(tools: Sequence[ToolSpec], *, must_call: bool) -> str:
    lines = ['\n\nReply with JSON: {"tool": name, "arguments": {...}} to use a tool']
    if not must_call:
        lines[0] += ', or {"answer": text}'
    lines[0] += ". Tools:"
    for tool in tools:
        names = ", ".join(_properties(tool.parameters))
        lines.append(f"- {tool.name}({names}): {tool.description.partition(chr(10))[0]}")
    return "\n".join(lines)


# ------------------------------------------------------------------------------ schemas


def _properties(schema: Mapping[str, Any]) -> dict[str, Schema]:
    return cast("dict[str, Schema]", dict(schema.get("properties") or {}))


def _object(properties: Mapping[str, Schema], required: Sequence[str]) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


_ANSWER_SCHEMA: Final = _object(
    {"answer": {"type": "string", "maxLength": ANSWER_CHARACTERS_MAX}}, ["answer"]
)


def _call_schema(tool: ToolSpec, profile: Profile, literals: Sequence[str]) -> Schema:
    definitions = cast("dict[str, Schema]", tool.parameters.get("$defs") or {})
    required = [str(name) for name in tool.parameters.get("required") or ()]
    properties = {
        name: bounded(schema, definitions) for name, schema in _properties(tool.parameters).items()
    }
    if profile.is_small:
        properties = _hinted(properties, required, literals)
    arguments = _object(properties, required)
    return _object({"tool": {"const": tool.name}, "arguments": arguments}, ["tool", "arguments"])


def _hinted(
    properties: Mapping[str, Schema], required: Sequence[str], literals: Sequence[str]
) -> dict[str, Schema]:
    """Keep required arguments, and optional texts only when the request names what they may be."""
    texts = [name for name in required if properties.get(name, {}).get("type") == "string"]
    kept: dict[str, Schema] = {}
    for name, schema in properties.items():
        is_text = schema.get("type") == "string" and "enum" not in schema
        named = bool(literals) and is_text
        if name not in required:
            if named and not texts:
                kept[name] = {"enum": list(literals)}
        else:
            kept[name] = {"enum": list(literals)} if named and len(texts) == 1 else schema
    return kept


def bounded(schema: Mapping[str, Any], definitions: Mapping[str, Schema], depth: int = 0) -> Schema:
    """Rewrite a tool's schema: every text and list is bounded, and nothing refers out of it."""
    if depth > SCHEMA_DEPTH_MAX:
        return {"type": "null"}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return bounded(definitions.get(reference.rpartition("/")[2], {}), definitions, depth + 1)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            forms = cast("list[Schema]", schema[word])
            return {"anyOf": [bounded(form, definitions, depth + 1) for form in forms]}
    if "enum" in schema or "const" in schema:
        return {word: schema[word] for word in ("enum", "const") if word in schema}
    return _bounded_type(schema, definitions, depth)


def _bounded_type(
    schema: Mapping[str, Any], definitions: Mapping[str, Schema], depth: int
) -> Schema:
    match schema.get("type"):
        case list():
            kinds = cast("list[str]", schema["type"])
            forms = [{**schema, "type": kind} for kind in kinds]
            return {"anyOf": [bounded(form, definitions, depth + 1) for form in forms]}
        case "string":
            longest = min(int(schema.get("maxLength", TEXT_CHARACTERS_MAX)), TEXT_CHARACTERS_MAX)
            return {"type": "string", "maxLength": longest}
        case "array":
            items = bounded(cast("Schema", schema.get("items") or {}), definitions, depth + 1)
            longest = min(int(schema.get("maxItems", ITEMS_MAX)), ITEMS_MAX)
            return {"type": "array", "items": items, "maxItems": longest}
        case "object":
            properties = {
                name: bounded(form, definitions, depth + 1)
                for name, form in _properties(schema).items()
            }
            return _object(properties, [str(name) for name in schema.get("required") or ()])
        case "integer" | "number" | "boolean" | "null" as kind:
            return {"type": kind}
        case _:
            return {"type": "string", "maxLength": TEXT_CHARACTERS_MAX}
