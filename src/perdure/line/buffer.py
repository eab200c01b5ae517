"""The buffer of a command, and the command of a working scope.

A buffer mints final seqs, keeps the writes in order and reads the state before the command. Values
a host hands over pass the strict door (VD-17); records made by the engine are encoded as they are.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.errors import Rejected
from perdure.records.addresses import (
    Address,
    ConversationList,
    ConversationValue,
    SessionList,
    SessionValue,
    WorkingScope,
    is_host_writable,
)
from perdure.records.codec import checked_raw, decode_json, to_raw
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry
from perdure.records.seqs import SEQ_MAX, Seq
from perdure.records.sessions import ListElement, ListPage
from perdure.records.tasks import Task
from perdure.records.writes import AppendList, DeleteList, DeleteValue, SetValue, Write

T = TypeVar("T")
AnyAddress: TypeAlias = (
    Address | SessionValue[Any] | SessionList[Any] | ConversationValue[Any] | ConversationList[Any]
)


class CommittedReads(Protocol):
    """What a command may read: the state before it."""

    async def conversation(self, conv_id: Seq) -> ConversationState | None:
        """Answer a conversation."""
        ...

    async def task(self, task_id: Seq) -> Task | None:
        """Answer a task."""
        ...

    async def entry(self, entry_id: Seq) -> Entry | None:
        """Answer an entry."""
        ...

    async def value(self, address: Address) -> Raw | None:
        """Answer a current value's bytes."""
        ...

    async def elements(self, address: Address, page: ListPage) -> Sequence[ListElement]:
        """Answer a page of a list."""
        ...

    def live_tasks(self, conv_id: Seq) -> Sequence[Task]:
        """Answer a conversation's live tasks in id order."""
        ...


class Buffer:
    """Mint seqs, hold writes, and read."""

    def __init__(
        self,
        reads: CommittedReads,
        first_seq: Seq,
        *,
        host: bool = False,
        conv_id: Seq | UnsetType = UNSET,
    ) -> None:
        """Start empty; `conv_id` is what an unbound conversation token belongs to (LN-18)."""
        self.reads = reads
        self.conv_id = conv_id
        self.host = host
        self.writes: list[Write] = []
        self._next = first_seq
        self._sealed = False
        self._written: set[Address] = set()

    def mint(self) -> Seq:
        """Answer the next seq; raises Rejected `invariant` when they run out (LN-15)."""
        if self._sealed:
            raise Rejected("invariant", "this command has ended; open a new one")
        if self._next > SEQ_MAX:
            raise Rejected("invariant", f"the session has used every seq up to {SEQ_MAX}")
        seq = self._next
        self._next = Seq(seq + 1)
        return seq

    def seal(self) -> None:
        """Refuse every further use."""
        self._sealed = True

    def bind(self, address: AnyAddress) -> Address:
        """Bind a token to this command's conversation, or to the session."""
        if isinstance(address, Address):
            if self.conv_id is not UNSET and address.conv_id not in (UNSET, self.conv_id):
                raise Rejected(
                    "invariant",
                    f"{address!r} belongs to another conversation than {self.conv_id} (VL-04)",
                )
            return address
        if not isinstance(address, ConversationValue | ConversationList):
            return address.address()
        if self.conv_id is UNSET:
            raise Rejected(
                "invariant", f"{address!r} belongs to a conversation: bind it to one (LN-22)"
            )
        return address.bind(self.conv_id)

    def encoded(self, value: object) -> Raw:
        """Encode a value at once, after the strict door when a host hands it over (LN-21)."""
        if not self.host:
            if isinstance(value, Raw):
                return value
            if isinstance(value, Struct):
                return to_raw(value)
        return checked_raw(value)

    def check_protected(self, address: Address) -> None:
        """Refuse a host's write to a core address that is not writable (VL-32)."""
        if self.host and not is_host_writable(address.namespace):
            raise Rejected("invariant", f"the address {address.namespace!r} is protected (VL-32)")

    def note_write(self, address: Address) -> None:
        """Remember what was written, so that reading it again is refused (X29)."""
        self._written.add(address)

    def _check_read(self, address: Address) -> None:
        if self._sealed:
            raise Rejected("invariant", "this command has ended; open a new one")
        if address in self._written:
            raise Rejected(
                "invariant",
                f"{address.namespace!r} was written earlier in this command; reads answer the "
                f"state before the command, so read it first (X29)",
            )

    async def get_value(self, address: AnyAddress, default: T) -> Any | T:
        """Answer the value before this command, or `default` when nothing is stored."""
        bound = self.bind(address)
        self._check_read(bound)
        raw = await self.reads.value(bound)
        return default if raw is None else decode_json(raw)

    async def get_raw(self, address: AnyAddress) -> Raw | None:
        """Answer the value's bytes before this command."""
        bound = self.bind(address)
        self._check_read(bound)
        return await self.reads.value(bound)

    async def read_list(self, address: AnyAddress, page: ListPage) -> Sequence[ListElement]:
        """Answer a page of a list before this command."""
        bound = self.bind(address)
        self._check_read(bound)
        return await self.reads.elements(bound, page)


class WorkingCommand(Buffer):
    """Write values and lists of one working scope, and nothing else (LN-16)."""

    def __init__(
        self, reads: CommittedReads, first_seq: Seq, scope: WorkingScope, *, host: bool = False
    ) -> None:
        """Pin every write to `scope`."""
        super().__init__(reads, first_seq, host=host)
        self._scope = scope

    def _own(self, address: Address, kind: str) -> Address:
        if address.working_scope != self._scope.id or address.conv_id is not UNSET:
            raise Rejected(
                "invariant",
                f"a command of working scope {self._scope.id!r} writes only its own addresses, "
                f"not {address!r} (WS-03)",
            )
        check_kind(address, kind)
        self.check_protected(address)
        return address

    def set_value(self, address: Address, value: object) -> Seq:
        """Set a working value; answers the write's seq."""
        own = self._own(address, "value")
        seq = self.mint()
        self.writes.append(
            SetValue(
                seq=seq,
                working_scope=self._scope.id,
                namespace=own.namespace,
                key=own.key,
                value_json=self.encoded(value),
            )
        )
        self.note_write(own)
        return seq

    def delete_value(self, address: Address) -> None:
        """Delete a working value."""
        own = self._own(address, "value")
        self.writes.append(
            DeleteValue(
                seq=self.mint(), working_scope=self._scope.id, namespace=own.namespace, key=own.key
            )
        )
        self.note_write(own)

    def append_list(self, address: Address, value: object, *, tag: str | None = None) -> Seq:
        """Append to a working list; answers the element's seq."""
        own = self._own(address, "list")
        seq = self.mint()
        self.writes.append(
            AppendList(
                seq=seq,
                working_scope=self._scope.id,
                namespace=own.namespace,
                key=own.key,
                value_json=self.encoded(value),
                tag=UNSET if tag is None else tag,
            )
        )
        self.note_write(own)
        return seq

    def delete_list(self, address: Address) -> None:
        """Delete a working list."""
        own = self._own(address, "list")
        self.writes.append(
            DeleteList(
                seq=self.mint(), working_scope=self._scope.id, namespace=own.namespace, key=own.key
            )
        )
        self.note_write(own)


def check_kind(address: Address, kind: str) -> None:
    """Refuse a list where a value is meant, and the other way round (VL-04)."""
    if address.kind != kind:
        raise Rejected("invariant", f"{address.namespace!r} is a {address.kind}, not a {kind}")
