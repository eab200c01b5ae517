"""Pages: a server gives at most a thousand of anything at once, whoever asks may want more."""

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from msgspec import Raw, Struct

from perdure.client.asking import Asker
from perdure.records.codec import decode_json
from perdure.records.seqs import Seq
from perdure.records.sessions import SCAN_LIMIT_MAX

T = TypeVar("T")

PAGE_MAX: Final = 1_000
"""Most that one answer holds (WB-07)."""


class Wanted(Struct, frozen=True, kw_only=True):
    """Which part of what is listed: exclusive bounds, a direction, a boundary."""

    after: Seq | None = None
    before: Seq | None = None
    newest_first: bool = False
    limit: int = 100
    as_of: Seq | None = None


class Found(Struct, Generic[T], frozen=True):
    """What was asked for, in the order it was asked for, and the boundary it was read at."""

    items: list[T]
    as_of: Seq


async def pages(
    asker: Asker,
    path: str,
    wanted: Wanted,
    read_page: Callable[[dict[str, Raw]], list[T]],
    id_of: Callable[[T], Seq],
    **query: Any,
) -> Found[T]:
    """Read as many pages as it takes, all of them at the boundary of the first one.

    Raises:
        Rejected: `invariant`, for a limit or boundary that the server refuses.
    """
    after, before, as_of = wanted.after, wanted.before, wanted.as_of
    items: list[T] = []
    while True:
        left = wanted.limit - len(items)
        # A limit that nobody takes goes out as it is, for the server to refuse.
        limit = min(left, PAGE_MAX) if wanted.limit <= SCAN_LIMIT_MAX else left
        bounds: dict[str, object] = {"after": after, "limit": limit, "as_of": as_of}
        if wanted.newest_first:
            bounds |= {"before": before, "newest": True}
        fields = await asker.get(path, **query, **bounds)
        page = read_page(fields)
        at = Seq(decode_json(fields["asOf"]))
        as_of = at if wanted.as_of is None else wanted.as_of
        if wanted.newest_first:
            page.reverse()
        elif before is not None:
            page = [one for one in page if id_of(one) < before]
        items += page
        if len(page) < limit or len(items) >= wanted.limit:
            return Found(items, as_of)
        if wanted.newest_first:
            before = id_of(page[-1])
        else:
            after = id_of(page[-1])
