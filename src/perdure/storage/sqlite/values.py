"""Reads of values and lists: one seek an ancestor, no sort, only the payloads that are answered."""

import sqlite3
from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import UNSET, Raw

from perdure.records.addresses import Address
from perdure.records.seqs import Seq
from perdure.records.sessions import ListElement, ListPage, StoredValue
from perdure.records.writes import AppendList, SetValue
from perdure.storage.blobs import BlobSource
from perdure.storage.sqlite.contexts import SEQ_ABOVE_ALL
from perdure.storage.sqlite.reads import SessionReads

NAME: Final = "SELECT id FROM name WHERE session=? AND namespace=? AND key=?"
NAMES: Final = (
    "SELECT id, key FROM name WHERE session=? AND namespace=? AND key>=? AND key>? ORDER BY key"
)
SESSION_VALUE: Final = "SELECT seq FROM session_value WHERE session=? AND namespace=? AND key=?"
SESSION_VALUES: Final = (
    "SELECT key, seq FROM session_value WHERE session=? AND namespace=? AND key>=? AND key>? "
    "ORDER BY key"
)
VERSION: Final = (
    "SELECT seq, deleted FROM version WHERE session=? AND name=? AND conv=? AND seq<=? "
    "ORDER BY seq DESC LIMIT 1"
)
PARENT: Final = "SELECT parent, as_of, inherits FROM conversation WHERE session=? AND id=?"
ELEMENTS: Final = (
    "SELECT seq, tag FROM element WHERE session=? AND name=? AND conv=? AND seq>? AND seq<? "
    "ORDER BY seq {order} LIMIT ?"
)
WORKING_VALUE: Final = (
    "SELECT seq, CAST(value AS BLOB) FROM working_value "
    "WHERE session=? AND scope=? AND namespace=? AND key=?"
)
WORKING_VALUES: Final = (
    "SELECT key, seq, CAST(value AS BLOB) FROM working_value "
    "WHERE session=? AND scope=? AND namespace=? AND key>=? AND key>? ORDER BY key"
)
WORKING_ELEMENTS: Final = (
    "SELECT seq, tag, CAST(value AS BLOB) FROM working_element "
    "WHERE session=? AND scope=? AND namespace=? AND key=? AND seq>? AND seq<? "
    "ORDER BY seq {order} LIMIT ?"
)


NAMES_MAX: Final = 4096
"""Most numbers of names that a handle remembers; then it starts again."""


class ValueReads(SessionReads):
    """Reads of values and lists of one session inside one transaction.

    `names` is what its handle has learnt: a name that has a number keeps it.
    """

    def __init__(
        self,
        conn: sqlite3.Connection,
        session: int,
        blobs: BlobSource,
        names: dict[tuple[str, str], int],
    ) -> None:
        super().__init__(conn, session, blobs)
        self.names = names

    def name(self, namespace: str, key: str) -> int | None:
        """Answer the number of a name, None when nothing was ever written under it."""
        place = (namespace, key)
        known = self.names.get(place)
        if known is not None:
            return known
        row = self.conn.execute(NAME, (self.session, *place)).fetchone()
        if row is None:
            return None
        if len(self.names) >= NAMES_MAX:
            self.names.clear()
        self.names[place] = row[0]
        return row[0]

    def chain(self, conv_id: Seq, as_of: Seq | None) -> Iterator[tuple[Seq, Seq]]:
        """Walk the conversations a read may see, nearest first, each with its cutoff (VL-13)."""
        cutoff = SEQ_ABOVE_ALL if as_of is None else as_of
        while conv_id <= cutoff:
            row = self.conn.execute(PARENT, (self.session, conv_id)).fetchone()
            if row is None:
                return
            yield conv_id, Seq(cutoff)
            parent, parent_as_of, inherits = row
            # A parent is older than its child; a crafted file cannot make this walk for ever.
            if not inherits or parent >= conv_id:
                return
            conv_id, cutoff = parent, min(cutoff, parent_as_of)

    def value(self, address: Address, as_of: Seq | None) -> StoredValue | None:
        """Answer the scalar at an address."""
        if address.working_scope is not UNSET:
            place = (self.session, address.working_scope, address.namespace, address.key)
            row = self.conn.execute(WORKING_VALUE, place).fetchone()
            return None if row is None else stored(address.key, row[0], row[1])
        if address.conv_id is not UNSET:
            self.check_boundary(as_of)
            name = self.name(address.namespace, address.key)
            return None if name is None else self.versioned(address, address.conv_id, name, as_of)
        namespace = self.name(address.namespace, "")
        if namespace is None:
            return None
        row = self.conn.execute(SESSION_VALUE, (self.session, namespace, address.key)).fetchone()
        return None if row is None else self.set_at(address.key, row[0])

    def set_at(self, key: str, seq: Seq) -> StoredValue:
        """Answer the value that a main write set."""
        value = self.write_of(seq, SetValue).value_json
        return StoredValue(key=key, seq=seq, value_json=value.copy())

    def versioned(
        self, address: Address, conv_id: Seq, name: int, as_of: Seq | None
    ) -> StoredValue | None:
        """Answer the version a conversation sees: its own, or that of the nearest ancestor."""
        # Most values stand in the conversation itself, and then nobody asks for its ancestors.
        found = self._version(name, conv_id, SEQ_ABOVE_ALL if as_of is None else as_of)
        for ancestor, cutoff in () if found else islice(self.chain(conv_id, as_of), 1, None):
            found = found or self._version(name, ancestor, cutoff)
        if found is None or found[1]:
            return None
        return self.set_at(address.key, found[0])

    def _version(self, name: int, conv_id: Seq, cutoff: int) -> tuple[Seq, bool] | None:
        return self.conn.execute(VERSION, (self.session, name, conv_id, cutoff)).fetchone()

    def scan_values(
        self, prefix: Address, after: str | None, limit: int, as_of: Seq | None
    ) -> list[StoredValue]:
        """Answer values of a namespace by key."""
        found: list[StoredValue] = []
        if prefix.conv_id is not UNSET:
            self.check_boundary(as_of)
        for value in self._values(prefix, after, as_of):
            if not value.key.startswith(prefix.key):
                break
            found.append(value)
            if len(found) == limit:
                break
        return found

    def _values(
        self, prefix: Address, after: str | None, as_of: Seq | None
    ) -> Iterator[StoredValue]:
        # Two lower bounds: the prefix may itself be a key, the cursor never is an answer.
        start = (prefix.key, "" if after is None else after)
        low = "key>=? AND key>?" if after is not None else "key>=? AND key>=?"
        if prefix.working_scope is not UNSET:
            sql = WORKING_VALUES.replace("key>=? AND key>?", low)
            place = (self.session, prefix.working_scope, prefix.namespace, *start)
            for key, seq, value in self.conn.execute(sql, place):
                yield stored(key, seq, value)
        elif prefix.conv_id is not UNSET:
            sql = NAMES.replace("key>=? AND key>?", low)
            place = (self.session, prefix.namespace, *start)
            for name, key in self.conn.execute(sql, place).fetchall():
                address = Address(kind="value", namespace=prefix.namespace, key=key)
                value = self.versioned(address, prefix.conv_id, name, as_of)
                if value is not None:
                    yield value
        else:
            namespace = self.name(prefix.namespace, "")
            sql = SESSION_VALUES.replace("key>=? AND key>?", low)
            for key, seq in self.conn.execute(sql, (self.session, namespace, *start)):
                yield self.set_at(key, seq)

    def elements(self, address: Address, page: ListPage) -> list[ListElement]:
        """Answer a page of a list; ranges of ancestors are skipped or read, never copied."""
        if address.working_scope is not UNSET:
            return self._working_elements(address, page)
        name = self.name(address.namespace, address.key)
        if address.conv_id is UNSET:
            ranges = [(Seq(0), Seq(SEQ_ABOVE_ALL))]
        else:
            self.check_boundary(page.as_of)
            ranges = list(self.chain(address.conv_id, page.as_of))
        found: list[ListElement] = []
        for conv_id, cutoff in reversed(ranges) if page.order == "asc" else ranges:
            if name is None or (page.after is not None and page.after >= cutoff):
                continue
            for seq, tag in self._range(name, conv_id, cutoff, page, page.limit - len(found)):
                value = self.write_of(seq, AppendList).value_json
                found.append(ListElement(seq=seq, value_json=value.copy(), tag=tag))
                if ends(found[-1], page):
                    return found
            if len(found) == page.limit:
                break
        return found

    def _range(
        self, name: int, conv_id: Seq, cutoff: Seq, page: ListPage, limit: int
    ) -> list[tuple[Seq, str | None]]:
        low, high = limits(page, cutoff)
        sql = ELEMENTS.format(order=page.order)
        return self.conn.execute(sql, (self.session, name, conv_id, low, high, limit)).fetchall()

    def _working_elements(self, address: Address, page: ListPage) -> list[ListElement]:
        low, high = limits(page, Seq(SEQ_ABOVE_ALL))
        place = (self.session, address.working_scope, address.namespace, address.key)
        sql = WORKING_ELEMENTS.format(order=page.order)
        found: list[ListElement] = []
        for seq, tag, value in self.conn.execute(sql, (*place, low, high, page.limit)):
            found.append(ListElement(seq=seq, value_json=Raw(value), tag=tag))
            if ends(found[-1], page):
                break
        return found


def stored(key: str, seq: int, value: bytes) -> StoredValue:
    """Answer a working value as it lies in its row."""
    return StoredValue(key=key, seq=Seq(seq), value_json=Raw(value))


def limits(page: ListPage, cutoff: Seq) -> tuple[int, int]:
    """Answer a page's exclusive bounds inside a range that ends at a cutoff."""
    low = 0 if page.after is None else page.after
    high = cutoff + 1 if page.before is None else min(cutoff + 1, page.before)
    return low, high


def ends(element: ListElement, page: ListPage) -> bool:
    """Say whether a page ends with an element because of its tag."""
    return page.stop_at_tag is not None and element.tag == page.stop_at_tag
