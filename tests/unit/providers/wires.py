"""What the tests of the hosted models share: every wire, pointed at a server of this process."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from perdure.ports import Models
from perdure.providers import anthropic_wire, openai_wires
from perdure.providers.config import HOSTED, ProviderConfig
from perdure.records.codec import to_raw
from perdure.records.entries import ModelId
from perdure.records.frames import Frame
from perdure.records.messages import Cost, Message, Usage, text_message
from perdure.records.models import ModelOutcome, ModelRequest, ToolSpec
from perdure.testing.wire_server import WireServer

WireName = Literal["openai", "openai-chat", "openai-compatible", "anthropic"]
WIRES: tuple[WireName, ...] = get_args(WireName)

MODEL_IDS: dict[WireName, str] = {
    "openai": "gpt-5",
    "openai-chat": "gpt-5",
    "openai-compatible": "some-alias",
    "anthropic": "claude-haiku-4-5",
}

NOW_MS = 1_764_400_000_000

TOOL = ToolSpec(
    name="weather",
    description="Current weather of a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)


class FixedClock:
    """A clock that stands still."""

    def now_ms(self) -> int:
        return NOW_MS

    def monotonic_ms(self) -> int:
        return 0

    async def sleep(self, ms: int) -> None:
        raise AssertionError("an adapter has nothing to sleep for")


async def no_price(model: ModelId, usage: Usage) -> Cost | None:
    return None


def models_for(
    wire: WireName,
    server: WireServer | None,
    *,
    model_id: str | None = None,
    pricing: Any = no_price,
    **settings: Any,
) -> tuple[Models, ModelId]:
    """Make the models of a wire, and name one of them."""
    if server is not None:
        settings["base_url"] = server.root_url if wire == "anthropic" else server.base_url
    if wire != "openai-compatible":
        settings.setdefault("key", lambda: "a-key")
    settings.setdefault("thinking", True)
    module = anthropic_wire if wire == "anthropic" else openai_wires
    models = module.make_models(
        HOSTED[wire], ProviderConfig(**settings), clock=FixedClock(), pricing=pricing
    )
    return models, ModelId(provider=wire, model_id=model_id or MODEL_IDS[wire])


def request(model: ModelId, *messages: Message, **changes: Any) -> ModelRequest:
    """Make a request of the given messages, or of one greeting."""
    options = changes.pop("options", {})
    return ModelRequest(
        model=model,
        system="Be brief.",
        messages=messages or (text_message("Hello?", 1),),
        options=to_raw(options),
        **changes,
    )


async def play(models: Models, asked: ModelRequest) -> tuple[Sequence[Frame], ModelOutcome]:
    """Play a request to its end."""
    async with models.stream(asked) as stream:
        frames = [frame async for frame in stream]
        return frames, await stream.outcome()
