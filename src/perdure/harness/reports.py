"""Errors that belong to no caller: who hears of them (LN-13, ER-06)."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

Report: TypeAlias = Callable[[BaseException, int | None], None]
"""Who hears of errors that belong to no caller, with the task they came from."""


class Reports:
    """Pass reports on; what a hearer raises is dropped, for nobody is left to hear it."""

    def __init__(self, on_error: Report | None) -> None:
        """Begin with the host's own function, if it gave one."""
        self._hearers: list[Report] = [] if on_error is None else [on_error]

    def __call__(self, error: BaseException, task_id: int | None) -> None:
        """Tell everybody."""
        for hearer in tuple(self._hearers):
            with suppress(Exception):
                hearer(error, task_id)

    def listen(self, hearer: Report) -> None:
        """Add one who hears."""
        self._hearers.append(hearer)
