"""What the handles of one open session share; private to this room."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from perdure.drive.scheduler import Scheduler
from perdure.errors import Closed, Rejected
from perdure.harness.usage import UsageReader
from perdure.harness.watching import Watches
from perdure.kinds.services import Services
from perdure.line.line import Build, Delivery, Line
from perdure.ports import Storage
from perdure.records.addresses import MODEL
from perdure.records.entries import ModelId
from perdure.records.seqs import Seq
from perdure.records.writes import SetValue

T = TypeVar("T")


class Core:
    """Line, scheduler, storage and services of one open session."""

    def __init__(
        self,
        line: Line,
        scheduler: Scheduler,
        storage: Storage,
        services: Services,
        watches: Watches,
        *,
        new_model: ModelId | None,
    ) -> None:
        """Hold them; `new_model` is written with the first acceptance, then None (K44)."""
        self.line = line
        self.scheduler = scheduler
        self.storage = storage
        self.services = services
        self.watches = watches
        self.usage = UsageReader(storage)
        self.new_model = new_model
        self._changed: asyncio.Future[None] | None = None
        self._kept: set[asyncio.Task[Any]] = set()
        self._refuses = False
        line.listen(self._on_commit)
        line.listen_faults(self.wake)

    def changed(self) -> "asyncio.Future[None]":
        """Answer a future that the next main commit, fault or close completes."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._changed)

    def wake(self) -> None:
        """Complete what `changed` answered."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _on_commit(self, delivery: Delivery) -> None:
        if delivery.scope is None:
            self.wake()
            if self.new_model is not None and _writes_model(delivery):
                self.new_model = None

    async def submit(
        self,
        build: Build,
        *,
        barrier: bool = False,
        host: bool = False,
        conv_id: Seq | UnsetType = UNSET,
    ) -> bool:
        """Run one command for a caller who may be cancelled: the command itself is not (ST-33)."""
        return await self.shielded(
            self.line.submit(build, barrier=barrier, host=host, conv_id=conv_id)
        )

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a public command's work to its end whatever becomes of the caller.

        Raises:
            Closed: the harness is closing, although what runs may still settle (OP-27).
        """
        if self._refuses:
            work.close()
            raise Closed
        return await asyncio.shield(self.kept(work))

    def kept(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start work that runs to its end by itself."""
        task = asyncio.create_task(work)  # noqa: TID251 - runs to its end by itself, kept below
        self._kept.add(task)
        task.add_done_callback(self._let_go)
        return task

    def refuse(self) -> None:
        """Refuse public commands from now on; handlers go on."""
        self._refuses = True

    def _let_go(self, task: "asyncio.Task[Any]") -> None:
        self._kept.discard(task)
        if not task.cancelled():
            task.exception()

    async def ensure_resident(self, conv_id: Seq) -> None:
        """Load a conversation; raises Rejected `unknown_target`."""
        state = await self.line.residency.load(self.storage, conv_id)
        if state is None:
            raise Rejected("unknown_target", f"there is no conversation {conv_id}")


def _writes_model(delivery: Delivery) -> bool:
    return any(
        isinstance(write, SetValue) and write.namespace == MODEL.namespace
        for write in delivery.commit.writes
    )
