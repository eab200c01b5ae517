"""Rows of working scopes: ordinary rows, not journaled, deleted in the commit that retires them."""

import sqlite3
from typing import Final

from msgspec import UNSET

from perdure.records.writes import AppendList, DeleteList, DeleteValue, RetireScope, SetValue

SET_VALUE: Final = (
    "INSERT INTO working_value (session, scope, namespace, key, seq, value) VALUES (?,?,?,?,?,?) "
    "ON CONFLICT (session, scope, namespace, key) DO UPDATE SET seq=excluded.seq, "
    "value=excluded.value"
)
DELETE_VALUE: Final = (
    "DELETE FROM working_value WHERE session=? AND scope=? AND namespace=? AND key=?"
)
APPEND: Final = (
    "INSERT INTO working_element (session, scope, namespace, key, seq, tag, value) "
    "VALUES (?,?,?,?,?,?,?)"
)
DELETE_LIST: Final = (
    "DELETE FROM working_element WHERE session=? AND scope=? AND namespace=? AND key=?"
)
WRITTEN: Final = (
    "SELECT scope FROM working_value WHERE session=? "
    "UNION SELECT scope FROM working_element WHERE session=?"
)
RETIRE_VALUES: Final = "DELETE FROM working_value WHERE session=? AND scope=?"
RETIRE_ELEMENTS: Final = "DELETE FROM working_element WHERE session=? AND scope=?"


class ScopeRows:
    """Writes the working rows of one session."""

    def __init__(self, conn: sqlite3.Connection, session: int) -> None:
        self._execute = conn.cursor().execute
        self._session = session
        self._written: set[str] | None = None

    def forget(self) -> None:
        """Forget which scopes have rows: a roll-back may have changed that."""
        self._written = None

    def apply(self, write: SetValue | DeleteValue | AppendList | DeleteList) -> None:
        """Write the row of one working write; a value is set in place, however often (SQ-11)."""
        if self._written is not None and write.working_scope is not UNSET:
            self._written.add(write.working_scope)
        place = (self._session, write.working_scope, write.namespace, write.key)
        match write:
            case SetValue():
                self._execute(SET_VALUE, (*place, write.seq, bytes(write.value_json).decode()))
            case DeleteValue():
                self._execute(DELETE_VALUE, place)
            case AppendList():
                tag = None if write.tag is UNSET else write.tag
                value = bytes(write.value_json).decode()
                self._execute(APPEND, (*place, write.seq, tag, value))
            case DeleteList():
                self._execute(DELETE_LIST, place)

    def retire(self, write: RetireScope) -> None:
        """Delete everything of a scope (SQ-03); most tasks never wrote to theirs."""
        if self._written is None:
            rows = self._execute(WRITTEN, (self._session, self._session))
            self._written = {scope for (scope,) in rows}
        if write.working_scope not in self._written:
            return
        self._written.discard(write.working_scope)
        self._execute(RETIRE_VALUES, (self._session, write.working_scope))
        self._execute(RETIRE_ELEMENTS, (self._session, write.working_scope))
