"""What crosses the storage ports besides records: session facts, scans, pages."""

from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from perdure.errors import StorageDamaged
from perdure.records.codec import decode_json
from perdure.records.seqs import Seq

Order: TypeAlias = Literal["asc", "desc"]

SCAN_LIMIT_MAX: Final = 10_000
"""Most rows one scan answers (ST-13)."""

COMMITS_LIMIT_MAX: Final = 1_000
"""Most commits one page of the journal answers (BR-10)."""

NAME_BYTES_MAX: Final = 256
"""Longest session name in UTF-8 bytes (SN-03)."""


CONTROL_FOLDER_PREFIX: Final = "perdure-control-"
CONTROL_SOCKET: Final = "socket"
CONTROL_TOKEN: Final = "token"  # noqa: S105 - the name of a file
"""A control address is a private folder of such a name with these two files in it (CM-16)."""


class Owner(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The process that has a session open for writing; `since` is wall milliseconds.

    `control` is its control address, the path of the Unix socket it listens on; None when it does
    not listen, as owners before 0.2.0 do not.
    """

    pid: int
    host: str
    since: int
    epoch: int = 0
    control: str | None = None


class SessionInfo(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A session's facts (SN-07): `id` is random and permanent, `name` unique and changeable.

    Times are wall milliseconds; `epoch` counts openings for writing; `damaged` names the reason a
    session cannot be read, else it is None.
    """

    id: str
    name: str
    created_ms: int = 0
    last_commit_ms: int = 0
    last_seq: Seq = Seq(0)
    format: int = 1
    epoch: int = 0
    owner: Owner | None = None
    damaged: str | None = None


class Created(Struct, frozen=True, gc=False, kw_only=True):
    """What became of a request to make a session; `is_new` is False for a repeat."""

    info: SessionInfo
    is_new: bool


class Opening(Struct, frozen=True, gc=False, kw_only=True):
    """Who opened a session when; `closed_ms` is None after a kill (SN-14)."""

    epoch: int
    pid: int
    host: str
    opened_ms: int
    closed_ms: int | None = None


class ConversationScan(Struct, frozen=True, gc=False, kw_only=True):
    """Which conversations: bounds are exclusive ids; filters apply before the limit (ST-13)."""

    after: Seq | None = None
    before: Seq | None = None
    order: Order = "asc"
    limit: int
    parent: Seq | None = None
    owner: Seq | None = None
    as_of: Seq | None = None


class EntryScan(Struct, frozen=True, gc=False, kw_only=True):
    """Which entries; local to `conv_id` when given (X43)."""

    after: Seq | None = None
    before: Seq | None = None
    order: Order = "asc"
    limit: int
    conv_id: Seq | None = None
    kind: str | None = None
    key: str | None = None
    as_of: Seq | None = None


class TaskScan(Struct, frozen=True, gc=False, kw_only=True):
    """Which tasks; `live` True answers non-terminal ones only, False terminal ones only."""

    after: Seq | None = None
    before: Seq | None = None
    order: Order = "asc"
    limit: int
    conv_id: Seq | None = None
    kind: str | None = None
    live: bool | None = None
    as_of: Seq | None = None


class ListPage(Struct, frozen=True, gc=False, kw_only=True):
    """Which elements of a list: `after` and `before` are exclusive seqs, `as_of` inclusive.

    `stop_at_tag` ends the page with the first element of that tag and never looks past `limit`.
    """

    after: Seq | None = None
    before: Seq | None = None
    order: Order = "asc"
    limit: int
    as_of: Seq | None = None
    stop_at_tag: str | None = None


class StoredValue(Struct, frozen=True, gc=False, kw_only=True):
    """A scalar with the seq that set it; `key` is the address key."""

    key: str
    seq: Seq
    value_json: Raw


class ListElement(Struct, frozen=True, gc=False, kw_only=True):
    """One list element with the seq that appended it."""

    seq: Seq
    value_json: Raw
    tag: str | None = None

    @property
    def value(self) -> Any:
        """Decode the element into fresh plain JSON; raises StorageDamaged for other bytes."""
        try:
            return decode_json(self.value_json)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise StorageDamaged(f"the list element {self.seq}: {error}") from None
