"""Anthropic's messages wire."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import httpx2
from anthropic import AsyncAnthropic
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_BUDGET_MAP, AnthropicModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider

from perdure.ports import Clock
from perdure.providers.config import Provider, ProviderConfig, check_config, tls_of, uses_proxies
from perdure.providers.pydantic_ai import LEVELS, Pricing, PydanticAiModels
from perdure.records.models import ModelRequest
from perdure.records.settings import ThinkingLevel

THINKERS: Final = re.compile(r"claude-(?:3-7-|[a-z]+-[4-9])")
"""Names of models that think: the server refuses a thinking budget for any other (PV-10)."""

NO_THINKING: Final[ThinkingLevel] = "off"


class AnthropicWire:
    """The messages wire, for one configuration."""

    def __init__(self, config: ProviderConfig) -> None:
        """Make the HTTP client; no request is made."""
        self._config = config
        timeout = httpx2.Timeout(
            config.silence_timeout_ms / 1_000, connect=config.connect_timeout_ms / 1_000
        )
        self._http = httpx2.AsyncClient(
            verify=tls_of(config), trust_env=uses_proxies(config), timeout=timeout
        )
        self._client = AsyncAnthropic(
            api_key="none",
            base_url=config.base_url,
            http_client=self._http,
            max_retries=0,
            timeout=timeout,
        )
        self.model("claude-sonnet-4-5", "none")  # loads what the library defers

    @property
    def vendor_name(self) -> str:
        """Answer what the vendor library calls the provider."""
        return "anthropic"

    @property
    def url(self) -> str:
        """Answer the endpoint."""
        return str(self._client.base_url)

    @property
    def signed(self) -> bool:
        """Say that thinking goes back only with its signature."""
        return True

    @property
    def system_messages(self) -> int:
        """Count none: the system prompt is a field of its own."""
        return 0

    def model(self, model_id: str, key: str | None) -> Model[Any]:
        """Make the vendor's model object for one request."""
        client = self._client.with_options(api_key=key or "none")
        provider = AnthropicProvider(anthropic_client=client)
        return AnthropicModel(model_id, provider=provider, profile=self._profile())

    def _profile(self) -> AnthropicModelProfile:
        # The library would repeat a refused request without its thinking: one attempt is one
        # request, and thinking of another prefix is left out beforehand.
        changes: dict[str, Any] = {"anthropic_binds_thinking_blocks": False}
        if self._config.thinking:
            changes["supports_thinking"] = True
        if self._config.images is not None:
            changes["supports_image_input"] = self._config.images
        return cast("AnthropicModelProfile", changes)

    def settings(self, request: ModelRequest) -> dict[str, Any]:
        """Let the server move its cache mark along; the mark is no part of any message (PV-19)."""
        return {"anthropic_cache": True}

    def thinks(self, model: Model[Any]) -> bool:
        """Say whether the name is one of the thinking families; the library believes any name."""
        return THINKERS.match(model.model_name) is not None

    def fitting_level(self, level: ThinkingLevel, model: Model[Any], limit: int) -> ThinkingLevel:
        """Lower a level until its budget is below the output limit (PV-10)."""
        profile: Mapping[str, Any] = model.profile
        if level == NO_THINKING or profile.get("anthropic_supports_adaptive_thinking"):
            return level
        budgets = cast("Mapping[str, int]", ANTHROPIC_THINKING_BUDGET_MAP)
        for lower in reversed(LEVELS[: LEVELS.index(level) + 1]):
            if budgets[lower] < limit:
                return lower
        return NO_THINKING

    def end_marks(self) -> Callable[[], bool]:
        """Answer that only a stop reason ends a message on this wire."""
        return lambda: False

    async def listed_window(self, model_id: str, key: str | None) -> int | None:
        """Answer None: this wire lists no windows."""
        return None

    async def close(self) -> None:
        """Release the client."""
        await self._http.aclose()


def make_models(
    provider: Provider, config: ProviderConfig, *, clock: Clock, pricing: Pricing
) -> PydanticAiModels:
    """Make the models of the messages wire.

    Raises:
        Rejected: `invariant`, for a configuration that cannot work.
    """
    check_config(provider, config)
    wire = AnthropicWire(config)
    return PydanticAiModels(provider, config, wire, clock=clock, pricing=pricing)
