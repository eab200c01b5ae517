"""What the handles of one open session share; private to this room."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from perdure.drive.scheduler import Scheduler
from perdure.errors import Rejected
from perdure.kinds.services import Services
from perdure.line.line import Delivery, Line
from perdure.ports import Storage
from perdure.records.entries import ModelId
from perdure.records.seqs import Seq

T = TypeVar("T")


class Core:
    """Line, scheduler, storage and services of one open session."""

    def __init__(
        self,
        line: Line,
        scheduler: Scheduler,
        storage: Storage,
        services: Services,
        *,
        new_model: ModelId | None,
    ) -> None:
        """Hold them; `new_model` is written with the first acceptance (K44)."""
        self.line = line
        self.scheduler = scheduler
        self.storage = storage
        self.services = services
        self._new_model = new_model
        self._changed: asyncio.Future[None] | None = None
        line.listen(self._on_commit)

    def take_model(self) -> ModelId | None:
        """Answer the model to write with this acceptance, once."""
        model, self._new_model = self._new_model, None
        return model

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

    def hold(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run an observer beside another one; the caller ends both."""
        return asyncio.create_task(work)  # noqa: TID251 - two observers, both cancelled by the caller

    async def ensure_resident(self, conv_id: Seq) -> None:
        """Load a conversation; raises Rejected `unknown_target`."""
        state = await self.line.residency.load(self.storage, conv_id)
        if state is None:
            raise Rejected("unknown_target", f"there is no conversation {conv_id}")
