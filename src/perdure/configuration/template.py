"""The commented file of `perdure config init`: every key at its default (CG-10)."""

import inspect
from collections.abc import Iterator
from typing import Any, Final, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from perdure.configuration.tables import NAMED, File

OPENING: Final = """\
# Configuration of perdure. Every key stands here with its default; one that starts with a number
# sign has none. A secret is named as env:NAME or file:PATH, it never stands in this file.
"""


def template() -> str:
    """Write the file."""
    hints = get_type_hints(File)
    parts = [OPENING]
    for name, hint in hints.items():
        if name in NAMED:
            parts.append("".join(_commented(name, NAMED[name])))
        elif isinstance(hint, type) and issubclass(hint, Struct):
            parts.append("".join(_table(name, hint)))
    return "\n".join(parts)


def _table(name: str, kind: type[Any]) -> Iterator[str]:
    yield f"# {_first_line(kind)}\n[{name}]\n"
    if name == "mcp":
        return  # its one key takes nothing yet
    defaults = kind()
    for key, hint in get_type_hints(kind, include_extras=True).items():
        value = getattr(defaults, key)
        mark = "# " if value is None else ""
        written = '""' if value is None else _value(value)
        yield f"{mark}{key} = {written}{_described(hint)}\n"


def _commented(name: str, kind: type[Any]) -> Iterator[str]:
    yield f"# {_first_line(kind)}\n# [{name}.NAME]\n"
    for key, hint in get_type_hints(kind, include_extras=True).items():
        yield f"# {key} ={_described(hint)}\n"


def _first_line(kind: type[Any]) -> str:
    return (inspect.getdoc(kind) or "").splitlines()[0]


def _described(hint: Any) -> str:
    for extra in get_args(hint):
        if isinstance(extra, Meta) and extra.description:
            return f"  # {extra.description}"
    return ""


def _value(value: Any) -> str:
    """Write a default as TOML: texts, numbers, booleans and lists are JSON's, a table is {}."""
    return msgspec.json.encode(value).decode()
