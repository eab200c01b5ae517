"""What a function's signature says to a model: name, description, JSON Schema, argument types."""

import inspect
import keyword
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NoReturn, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from perdure.errors import Rejected
from perdure.ports import ToolContext

NAME_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""Tool names that every provider accepts."""

_EXPRESSIBLE: Final = (
    "str, int, float, bool, None, list, dict, Literal, enums, unions, dataclasses, Structs, and "
    "Annotated with a text"
)


class Signature(Struct, frozen=True, kw_only=True):
    """A function's face: `model` converts arguments, `context` names the context parameter."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    model: type[Struct]
    fields: tuple[str, ...]
    context: str | None = None


def read_signature(function: Callable[..., Any], *, name: str | None = None) -> Signature:
    """Read a function's signature and docstring (KT-02).

    Raises:
        Rejected: `invariant`, naming function and parameter: a missing docstring or annotation,
            `*args`, a positional-only parameter, or a type without a JSON Schema.
    """
    own_name = getattr(function, "__name__", type(function).__name__)
    shown = own_name if name is None else name
    if not NAME_PATTERN.fullmatch(shown):
        _refuse(own_name, f"the tool name {shown!r}; accepted: {NAME_PATTERN.pattern}")
    description = inspect.getdoc(function)
    if not description:
        _refuse(own_name, "no docstring; its docstring is what the model reads about the tool")
    hints = _hints(function, own_name)
    parameters = inspect.signature(function).parameters.values()
    context = [one.name for one in parameters if hints.get(one.name) is ToolContext]
    if len(context) > 1:
        _refuse(own_name, f"parameters {context!r} all take the ToolContext; one may")
    shown_to_model = [one for one in parameters if one.name not in context]
    fields = [_field(one, hints, own_name) for one in shown_to_model]
    model = msgspec.defstruct(shown, fields, kw_only=True, forbid_unknown_fields=True)
    return Signature(
        name=shown,
        description=description,
        parameters=_schema(model, shown_to_model),
        model=model,
        fields=tuple(one.name for one in shown_to_model),
        context=context[0] if context else None,
    )


def _refuse(function: str, what: str) -> NoReturn:
    raise Rejected("invariant", f"{function} cannot become a tool: {what}", {"function": function})


def _hints(function: Callable[..., Any], own_name: str) -> Mapping[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as error:
        _refuse(own_name, f"an annotation names something unknown: {error}")


def _field(one: inspect.Parameter, hints: Mapping[str, Any], own_name: str) -> Any:
    where = f"parameter {one.name!r}"
    if one.kind in {one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY}:
        _refuse(own_name, f"{where} is {one.kind.description}; a model passes arguments by name")
    if one.name not in hints:
        _refuse(own_name, f"{where} has no annotation; accepted: {_EXPRESSIBLE}")
    if keyword.iskeyword(one.name) or one.name.startswith("__"):
        _refuse(own_name, f"{where}: a name a model cannot pass")
    kind = _described(hints[one.name])
    try:
        msgspec.json.schema(kind)
        msgspec.json.Decoder(kind)
    except (TypeError, ValueError) as error:
        _refuse(
            own_name,
            f"{where} is annotated {hints[one.name]!r}, which has no JSON Schema ({error}); "
            f"accepted: {_EXPRESSIBLE}",
        )
    # A parameter with a default is left out when the model leaves it out: the function's own
    # default then applies, also one that JSON cannot express.
    return (one.name, kind) if one.default is one.empty else (one.name, kind | UnsetType, UNSET)


def _described(annotation: Any) -> Any:
    """Turn `Annotated[T, "text"]` into a description; leave every other annotation alone."""
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, *extras = get_args(annotation)
    for extra in extras:
        if isinstance(extra, str):
            kind = Annotated[kind, Meta(description=extra)]
        elif isinstance(extra, Meta):
            kind = Annotated[kind, extra]
    return kind


def _schema(model: type[Struct], parameters: list[inspect.Parameter]) -> Mapping[str, Any]:
    """Answer the model's own schema at the top, with only the definitions it refers to."""
    whole = msgspec.json.schema(model, ref_template="#/$defs/{name}")
    definitions = dict(whole["$defs"])
    top = dict(definitions.pop(whole["$ref"].rpartition("/")[2]))
    top.pop("title", None)
    properties = cast("dict[str, dict[str, Any]]", top.setdefault("properties", {}))
    for one in parameters:
        if one.default is not one.empty:
            default = _plain(one.default)
            if default is not UNSET:
                properties[one.name] = {**properties[one.name], "default": default}
    if definitions:
        top["$defs"] = definitions
    return top


def _plain(default: object) -> object:
    try:
        return msgspec.to_builtins(default)
    except (TypeError, ValueError):
        return UNSET
