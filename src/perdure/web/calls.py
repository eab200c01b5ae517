"""One request as a handler sees it, and how its body and query are read (WB-05, WB-07)."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from perdure.errors import InvalidArguments
from perdure.ports import Threads
from perdure.records.strict_json import parse_object
from perdure.web.house import House
from perdure.web.refusals import Refusal

BODY_BYTES_MAX: Final = 32 << 20
"""Largest body of a request (SX-13)."""

PARSE_HERE_MAX: Final = 64 << 10
"""A larger body is parsed on a thread, so that no other request waits for it."""

LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 1_000

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Call(Struct, frozen=True, kw_only=True):
    """A request that came through the doors, with body and query as its route declares them.

    `by` says whose it is, in the words of a decision's record (AQ-06).
    """

    request: Request
    house: House
    by: str
    query: Any
    body: Any

    @property
    def session(self) -> str:
        """Answer the session's id in the path."""
        return cast("str", self.request.path_params["session"])


class Reply(Struct, frozen=True, kw_only=True):
    """What a handler answers: anything that is JSON, or bytes that are rendered already."""

    content: object
    status: int = 200
    headers: Mapping[str, str] = NO_HEADERS


Handler: TypeAlias = Callable[[Call], Awaitable[Reply]]


class NoQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A route without query parameters."""


def read_query(request: Request, kind: type[Struct]) -> Any:
    """Read the query, strictly; raises Refusal `invariant`, naming the parameter."""
    items = request.query_params.multi_items()
    given = dict(items)
    if len(given) != len(items):
        raise Refusal("invariant", "a query parameter is given twice")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal("invariant", f"the query: {error}", {"path": _path(error)}) from None


async def read_body(request: Request, kind: type[Struct] | None, threads: Threads) -> Any:
    """Read the body, strictly, or answer None where a route takes none."""
    length = request.headers.get("content-length")
    has_body = length is not None or "transfer-encoding" in request.headers
    if not has_body or length == "0":
        return None if kind is None else _converted({}, kind)
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Refusal(
            "unsupported_media_type",
            f"the content type {media[:100]!r} is not read; send application/json",
            headers={"Connection": "close"},
        )
    data = await _bytes_of(request, length or "")
    if kind is None:
        raise Refusal("invariant", "this route takes no body")
    if len(data) <= PARSE_HERE_MAX:
        return _converted(_parsed(data), kind)
    return await threads.run("body", lambda: _converted(_parsed(data), kind))


async def _bytes_of(request: Request, length: str) -> bytes:
    """Read at most the limit, and not a byte more of what is longer."""
    parts: list[bytes] = []
    size = int(length) if length.isdigit() else 0
    try:
        if size <= BODY_BYTES_MAX:
            size = 0
            async for part in request.stream():
                size += len(part)
                if size > BODY_BYTES_MAX:
                    break
                parts.append(part)
    except ClientDisconnect:
        raise Refusal("invariant", "the body ended before its length") from None
    if size > BODY_BYTES_MAX:
        raise Refusal(
            "too_large",
            f"a body has at most {BODY_BYTES_MAX} bytes",
            {"bytes_max": BODY_BYTES_MAX},
            {"Connection": "close"},
        )
    return b"".join(parts)


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        return parse_object(data.decode())
    except UnicodeDecodeError as error:
        raise Refusal("invariant", f"the body is not UTF-8: {error}", {"path": "$"}) from None
    except InvalidArguments as error:
        raise Refusal("invariant", f"the body: {error}", {"path": "$"}) from None


def _converted(fields: dict[str, Any], kind: type[Struct]) -> Any:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise Refusal("invariant", f"the body: {error}", {"path": _path(error)}) from None


def _path(error: msgspec.ValidationError) -> str:
    """Answer the path that a message of msgspec names, `$` when it names the whole."""
    before, found, path = str(error).rpartition(" - at `")
    return path.rstrip("`") if found and before else "$"
