"""Whether a model and a thinking level can be used, asked where they are set (PV-02, PV-10)."""

from collections.abc import Mapping
from typing import cast

from perdure.errors import Rejected
from perdure.ports import Models
from perdure.records.codec import checked_raw, decode
from perdure.records.entries import ModelId


async def check_model(models: Models, model: ModelId, thinking: str) -> None:
    """Refuse an unknown provider, and thinking that the model would drop.

    Raises:
        Rejected: `invariant`, naming the model, the level and what is accepted.
    """
    info = await models.describe(model)
    if thinking != "off" and thinking not in info.thinking:
        accepted = ", ".join(info.thinking) or "off"
        raise Rejected(
            "invariant",
            f"the model {model} is not known to think at level {thinking!r}; it takes {accepted}",
        )


async def check_setting(models: Models, model: object, thinking: object) -> None:
    """Refuse a pair as `check_model` does, of values as they stand at their addresses."""
    if isinstance(model, Mapping):
        model = decode(checked_raw(cast("object", model)), ModelId)
    if isinstance(model, ModelId):
        await check_model(models, model, str(thinking))
