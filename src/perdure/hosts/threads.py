"""Daemon threads for blocking work: a stuck one never keeps the process from ending.

Asyncio's default pool is joined at exit and has few places, so one tool that never returns keeps
`asyncio.run` waiting and a handful stop all others (K08, SC-26). Here each call has a thread of
its own, named after its work; how many may run is the engine's limit (K51).
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from perdure.errors import text_of

T = TypeVar("T")
R = TypeVar("R")


class DaemonThreads:
    """Run blocking work on daemon threads and know which ones were abandoned."""

    def __init__(self) -> None:
        self._abandoned: set[threading.Thread] = set()

    async def run(self, name: str, work: Callable[[], T]) -> T:
        """Run `work` on a daemon thread called `name` and answer what it returns.

        The caller's context variables are visible to it. Cancelling the caller abandons the
        thread: it goes on, its answer is dropped, and `stuck` names it until it ends.

        Raises:
            RuntimeError: when the work tries to end the process or the wait (`SystemExit`,
                `KeyboardInterrupt`, a cancellation of its own), which is not its to end.
            Exception: whatever else the work raises.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def body() -> None:
            try:
                result = context.run(work)
            except BaseException as error:  # noqa: BLE001 - set_exception tells the waiting caller
                _tell(loop, partial(settle_once, answer.set_exception, _carried(error, name)))
            else:
                _tell(loop, partial(settle_once, answer.set_result, result))

        def settle_once(how: Callable[[R], None], outcome: R) -> None:
            if not answer.done():
                how(outcome)

        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        try:
            return await answer
        except asyncio.CancelledError:
            self._abandoned = {*self._alive(), thread}
            raise

    def stuck(self) -> Sequence[str]:
        """Name the abandoned threads that still run, sorted."""
        return sorted(thread.name for thread in self._alive())

    def _alive(self) -> set[threading.Thread]:
        return {thread for thread in self._abandoned if thread.is_alive()}


def _tell(loop: asyncio.AbstractEventLoop, deliver: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(deliver)
    except RuntimeError:
        # The loop was closed while the work ran: nobody waits for the answer any more.
        return


def _carried(error: BaseException, name: str) -> Exception:
    """Answer what may cross to the loop: a future that carries an exit would end the loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    carried = RuntimeError(f"{name!r} raised {type(error).__name__}: {text_of(error)}")
    carried.__cause__ = error
    return carried
