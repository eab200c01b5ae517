"""A process host that is made when the first command needs it.

Most sessions open, answer and close without a command; they need not load what starts one.
"""

from collections.abc import Callable

from perdure.ports import ProcessHost, Threads
from perdure.records.launches import Exited, LaunchRef, LaunchSpec, Lost, NeverRan, Running


class LateProcesses:
    """Be the process host that `make` answers, from the first call on."""

    def __init__(self, make: Callable[[], ProcessHost], threads: Threads) -> None:
        self._make = make
        self._threads = threads
        self._host: ProcessHost | None = None

    @property
    def adopts(self) -> bool:
        """Answer True: what is made here finds what a killed one started."""
        return True

    async def _made(self) -> ProcessHost:
        if self._host is None:
            host = await self._threads.run("load-processes", self._make)
            # Two calls may have made one each; all go on with the first.
            if self._host is None:
                self._host = host
        return self._host

    async def launch(self, spec: LaunchSpec) -> Running | Exited:
        """Start a command whose place is already committed."""
        return await (await self._made()).launch(spec)

    async def reconcile(self, ref: LaunchRef) -> NeverRan | Running | Exited | Lost:
        """Find out what became of a launch."""
        return await (await self._made()).reconcile(ref)

    async def wait(self, ref: LaunchRef) -> Exited | Lost:
        """Wait for the end."""
        return await (await self._made()).wait(ref)

    async def stop(self, ref: LaunchRef, *, grace_ms: int) -> Exited | Lost:
        """Stop the whole group."""
        return await (await self._made()).stop(ref, grace_ms=grace_ms)

    async def log(self, ref: LaunchRef, *, offset: int, limit: int) -> bytes:
        """Read output as written."""
        return await (await self._made()).log(ref, offset=offset, limit=limit)

    async def forget(self, ref: LaunchRef) -> None:
        """Remove the folder of an ended launch."""
        await (await self._made()).forget(ref)
