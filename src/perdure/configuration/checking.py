"""The check of one file: every fault at once, with its line and what is accepted (CG-03 to CG-05).

A secret that stands in the file is refused without being shown (CG-07).
"""

import difflib
import hashlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from perdure.configuration.positions import line_at, lines_of
from perdure.configuration.tables import NAMED, UNBUILT, File
from perdure.errors import Rejected
from perdure.providers.config import HOSTED, UNHOSTED
from perdure.providers.plain_files import read_plain
from perdure.records.models import parse_model

FILE_BYTES_MAX: Final = 1 << 20
"""Largest configuration file (CG-04)."""

PROVIDERS: Final = tuple(sorted({*HOSTED, *UNHOSTED}))
STORES: Final = ("memory:", "sqlite:")

SHOWN_MAX: Final = 80
"""How much of a wrong value is shown."""

SECRETS: Final = frozenset({"key"})
"""Keys whose value is never shown."""

Keys: TypeAlias = tuple[str, ...]


class Fault(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and where."""

    file: str
    line: int | None
    key: str
    message: str

    def __str__(self) -> str:
        """Write it the way compilers do."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.message}"


class Read(Struct, frozen=True, kw_only=True):
    """One file's values by table and key, where each stands, and everything wrong with it."""

    file: Path
    digest: str
    values: Mapping[str, Any]
    lines: Mapping[Keys, int]
    faults: tuple[Fault, ...]


def read_file(file: Path) -> Read:
    """Read and check one file.

    Raises:
        Rejected: `invariant`, when the file cannot be read at all, with its place.
    """
    try:
        data = read_plain(file, FILE_BYTES_MAX)
    except OSError as error:
        raise Rejected("invariant", f"the configuration {str(file)!r}: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise Rejected(
            "invariant", f"{file}: more than the {FILE_BYTES_MAX:,} bytes that are read at most"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Rejected("invariant", f"{file}: byte {error.start} is not UTF-8") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Rejected("invariant", f"{file}: {error}") from None
    lines = lines_of(text)
    found = [
        Fault(
            file=str(file),
            line=line_at(lines, keys),
            key=".".join(keys),
            message=message,
        )
        for keys, message in (*_check_table(values, File, ()), *_check_names(values, file))
    ]
    return Read(
        file=file,
        digest=hashlib.sha256(data).hexdigest(),
        values=MappingProxyType(values),
        lines=lines,
        faults=tuple(found),
    )


Finding: TypeAlias = tuple[Keys, str]


def _check_table(values: Mapping[str, Any], kind: type[Any], at: Keys) -> Iterator[Finding]:
    """Find unknown keys and values that do not fit."""
    hints = get_type_hints(kind, include_extras=True)
    for key, value in values.items():
        keys = (*at, key)
        if key not in hints:
            what = f"key {key!r} in [{_dotted(at)}]" if at else f"table {key!r}"
            yield keys, _unknown(what, key, list(hints))
        elif kind is File:
            yield from _check_top(keys, value, hints[key])
        else:
            yield from _check_value(keys, value, hints[key])


def _check_top(keys: Keys, value: object, hint: Any) -> Iterator[Finding]:
    name = keys[0]
    if not isinstance(value, dict):
        yield keys, f"[{name}] is a table, not {value!r}"
        return
    table = cast("dict[str, Any]", value)
    if name in NAMED:
        for entry, inner in table.items():
            yield from _check_named((*keys, entry), inner)
    elif name in UNBUILT:
        if table:
            yield (*keys, next(iter(table))), f"[{name}] has no keys in this release; leave it out"
    else:
        yield from _check_table(table, hint, keys)


def _check_named(keys: Keys, value: object) -> Iterator[Finding]:
    if isinstance(value, dict):
        yield from _check_table(cast("dict[str, Any]", value), NAMED[keys[0]], keys)
    else:
        yield keys, f"[{_dotted(keys)}] is a table, not {value!r}"


def _check_value(keys: Keys, value: object, hint: Any) -> Iterator[Finding]:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        shown = "a text that is not shown" if keys[-1] in SECRETS else repr(value)[:SHOWN_MAX]
        accepted = _accepted(hint)
        said = f"accepted are {accepted}" if accepted else str(error)
        if keys[-1] in SECRETS:
            said = "a secret is named as env:NAME or file:PATH, it never stands in the file"
        yield keys, f"{_dotted(keys)} = {shown}: {said}"


def _accepted(hint: Any) -> str:
    """Name the values of a closed list, "" for any other type."""
    if get_origin(hint) is Literal:
        return ", ".join(repr(value) for value in get_args(hint))
    for inner in get_args(hint):
        accepted = _accepted(inner)
        if accepted:
            return accepted
    return ""


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    nearest = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no {what}; {nearest}there are: {', '.join(known)}"


def _check_names(values: Mapping[str, Any], file: Path) -> Iterator[Finding]:
    """Find names that nothing answers to (CG-05)."""
    yield from _check_model(("model", "name"), _get(values, "model", "name"))
    for name in _table(values, "providers"):
        if name not in PROVIDERS:
            what = f"key {name!r} in [providers]"
            yield ("providers", name), _unknown(what, name, PROVIDERS)
    for name in _table(values, "prices"):
        yield from _check_model(("prices", name), name)
    url = _get(values, "store", "url")
    if isinstance(url, str) and not url.startswith(STORES):
        yield ("store", "url"), f"store.url = {url!r}: accepted are memory: and sqlite:FILE"
    root = _get(values, "tools", "root")
    if isinstance(root, str) and not (file.parent / Path(root).expanduser()).is_dir():
        yield ("tools", "root"), f"tools.root = {root!r}: there is no such folder"
    for name in ("results", "artifacts"):
        yield from _check_caps(name, _table(values, name))


def _check_model(keys: Keys, text: object) -> Iterator[Finding]:
    if not isinstance(text, str):
        return
    try:
        provider = parse_model(text).provider
    except Rejected as error:
        yield keys, error.message
        return
    if provider not in PROVIDERS:
        yield keys, f"{text!r}: {_unknown(f'provider {provider!r}', provider, PROVIDERS)}"


def _check_caps(name: str, table: Mapping[str, Any]) -> Iterator[Finding]:
    one, total = table.get("max_entry_bytes"), table.get("max_total_bytes")
    limit = getattr(File(), name).max_total_bytes if total is None else total
    if isinstance(one, int) and isinstance(limit, int) and one > limit:
        keys = (name, "max_entry_bytes")
        yield keys, f"{name}.max_entry_bytes = {one!r} is above max_total_bytes = {limit!r}"


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _get(values: Mapping[str, Any], table: str, key: str) -> object:
    return _table(values, table).get(key)


def _dotted(keys: Keys) -> str:
    return ".".join(keys)
