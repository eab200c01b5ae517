"""The models suite, on the scripted model."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from perdure.records.entries import ModelId
from perdure.records.models import ModelInfo
from perdure.testing.models_suite import CHECKS, Abilities, Check, Offered, Play
from perdure.testing.scripted_model import END, Deferred, Failure, Reply, ScriptedModels

MODEL = ModelId(provider="scripted", model_id="suite")
CAN = ModelInfo(model=MODEL, images=True, thinking=("off", "low", "medium", "high"), deferred=True)


BEFORE_TEXT_ENDS = 2
"""The event after the start and the one delta of a first text."""


def reply(play: Play) -> Reply:
    failure = None
    if play.failure is not None:
        failure = Failure(
            code=play.failure,
            retry_after_ms=play.retry_after_ms,
            at=END if play.parts else 0,
        )
    return Reply(
        parts=play.parts,
        usage=play.usage,
        failure=failure,
        gates={BEFORE_TEXT_ENDS: asyncio.Event().wait} if play.hold else {},
        deferred=None if play.pending is None else Deferred(polls=play.pending),
    )


@asynccontextmanager
async def make(plays: Sequence[Play]) -> AsyncIterator[Offered]:
    models = ScriptedModels([reply(play) for play in plays], can=CAN)
    abilities = Abilities(
        scripted=True, images=True, thinking=True, deferred=True, usage=True, holds=True
    )
    yield Offered(models=models, model=MODEL, abilities=abilities)
    await models.close()


@pytest.mark.spec("PV-01")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_scripted_model_keeps_the_port(check: Check) -> None:
    await check(make)
