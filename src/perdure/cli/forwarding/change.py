"""Open a session to change it and run nothing: no model is loaded, no tool offered."""

from typing import NoReturn

import perdure
from perdure.cli.choices import store_of
from perdure.cli.last import last_of_folder
from perdure.cli.reading import reading
from perdure.cli.surface import Surface
from perdure.errors import ProviderError, Rejected
from perdure.opening import OpenSession
from perdure.records.entries import ModelId
from perdure.records.models import DeferredHandle, ModelInfo, ModelOutcome, ModelRequest
from perdure.records.seqs import NO_SEQ

UNUSED_MODEL = "none:none"
"""Stands where `open` wants a model; it is neither asked nor stored."""


class NoModels:
    """Offers no model: what only records a decision asks none."""

    async def describe(self, model: ModelId) -> ModelInfo:
        """Refuse."""
        refuse()

    def stream(self, request: ModelRequest) -> NoReturn:
        """Refuse."""
        refuse()

    async def poll(self, handle: DeferredHandle) -> ModelOutcome:
        """Refuse."""
        refuse()

    async def cancel(self, handle: DeferredHandle) -> None:
        """Refuse."""
        refuse()

    async def close(self) -> None:
        """Have nothing to close."""


def refuse() -> NoReturn:
    """Say that no model can be asked here."""
    raise ProviderError("invalid_request", "this command asks no model")


async def named(surface: Surface) -> tuple[str, str]:
    """Answer store and name of the session a command means; an unknown one is refused.

    Raises:
        Rejected: `not_found`, naming the nearest.
        UsageProblem: none was named, and none was made in this folder.
    """
    url = store_of(surface)
    name = surface.flags.session
    if name is None:
        name = await last_of_folder(url)
    async with reading(url, name) as storage:
        if storage.info.last_seq == NO_SEQ:
            raise Rejected("not_found", f"nothing was ever committed to the session {name!r}")
    return url, name


def opening_of(url: str, name: str) -> OpenSession:
    """Answer a session to be opened for a change."""
    return perdure.open(
        url,
        session=name,
        model=UNUSED_MODEL,
        keep_model=True,
        models=NoModels(),
        create=False,
        control=False,
    )
