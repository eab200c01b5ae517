"""Seq: the number that is every id and every position (ST-01, ST-02)."""

from typing import Final, NewType

Seq = NewType("Seq", int)
"""Position of a record in the session's one ordered sequence, and so the id of what it created."""

SEQ_MAX: Final = 2**53 - 1
"""Largest seq: every JSON reader keeps it exact (ST-02)."""

NO_SEQ: Final = Seq(0)
"""The boundary before the first commit; never the id of anything (ST-15)."""
