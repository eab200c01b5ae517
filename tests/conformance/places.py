"""The places that the storage suite runs on."""

from pathlib import Path

from perdure.ports import Sessions
from perdure.storage.memory import MemorySessions
from perdure.storage.sqlite import SqliteSessions
from perdure.testing.faulty_storage import FaultySessions
from perdure.testing.manual_clock import ManualClock
from perdure.testing.storage_suite import CountedRandomness


class MemoryPlace:
    """One container for as long as the test runs."""

    survives = False

    def __init__(self) -> None:
        self._sessions = MemorySessions(clock=ManualClock(), randomness=CountedRandomness())

    def sessions(self) -> Sessions:
        return self._sessions


class FaultyPlace:
    """Memory behind a fault plan that picks nothing: the fake is held to the law as well."""

    survives = False

    def __init__(self) -> None:
        self._sessions = FaultySessions(MemoryPlace().sessions())

    def sessions(self) -> Sessions:
        return self._sessions


class SqlitePlace:
    """A file in a folder of the test."""

    survives = True

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"
        self._clock = ManualClock()
        self._randomness = CountedRandomness()

    def sessions(self) -> SqliteSessions:
        return SqliteSessions(self.path, clock=self._clock, randomness=self._randomness)
