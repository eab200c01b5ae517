"""The models suite, on the real local model: nobody can tell it what to say (PV-01)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from perdure.hosts.threads import DaemonThreads
from perdure.providers.local import LocalModels
from perdure.testing.models_suite import CHECKS, Abilities, Check, Offered, Play
from tests.unit.providers.local_real import SMOL, data_folder, load_kept, needs_model

ABILITIES = Abilities(
    scripted=False, images=False, thinking=False, deferred=False, usage=True, holds=False
)


@asynccontextmanager
async def make(plays: Sequence[Play]) -> AsyncIterator[Offered]:
    """Offer the local model, which answers what it likes."""
    models = LocalModels(data_folder(), threads=DaemonThreads(), load=load_kept)
    yield Offered(models=models, model=SMOL, abilities=ABILITIES)
    await models.close()


@needs_model
@pytest.mark.timeout(60)
@pytest.mark.spec("PV-01", "PV-24")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_local_model_keeps_the_port(check: Check) -> None:
    await check(make)
