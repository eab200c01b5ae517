"""Settings a generation captures at its creation (GN-01, D31)."""

from typing import Final, Literal, TypeAlias

from msgspec import Raw, Struct

from perdure.records.codec import EMPTY_OBJECT
from perdure.records.entries import ModelId
from perdure.records.names import stored

ThinkingLevel: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"]
ToolOrder: TypeAlias = Literal["parallel", "sequential"]

ALL_TOOLS: Final = "*"
"""Stands for every tool registered when a generation is created (K44)."""


class RetryPolicy(Struct, frozen=True, gc=False, kw_only=True, rename=stored):
    """How often and how long: attempts include the first; delay doubles up to the cap (D13)."""

    max_attempts: int = 4
    base_delay_ms: int = 2_000
    max_delay_ms: int = 60_000


class GenerationSettings(Struct, frozen=True, gc=False, kw_only=True, rename=stored):
    """What one generation was asked with; captured at its creation, never changed by later writes.

    `active_tools` may hold `*` as an initial setting; a captured one holds names only.
    """

    v: Literal[1] = 1
    model: ModelId
    thinking: ThinkingLevel = "off"
    active_tools: tuple[str, ...] = (ALL_TOOLS,)
    tool_order: ToolOrder = "parallel"
    stream_options: Raw = EMPTY_OBJECT
    retry: RetryPolicy = RetryPolicy()
    termination: Literal["any", "all"] = "any"
    interrupted: Literal["retry", "publish"] = "retry"
