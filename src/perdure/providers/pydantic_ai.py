"""Hosted models behind the `Models` port, over the vendor-neutral library pydantic-ai.

One attempt is one HTTP request: every layer's own retries are off (PV-05). What differs between
vendors is a `Wire`, made by the module that imports that vendor's library.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, Protocol, cast

from msgspec import structs
from pydantic_ai import messages as vendor
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from perdure.errors import ProviderError, Rejected
from perdure.ports import Clock
from perdure.providers.attempts import Attempt, Plan, poll_request, suspended
from perdure.providers.config import Provider, ProviderConfig, resolve_key
from perdure.providers.failures import failure
from perdure.providers.mapping import Home, to_vendor
from perdure.providers.streams import Running
from perdure.records.codec import decode_json
from perdure.records.entries import ModelId
from perdure.records.messages import Cost, Usage
from perdure.records.models import (
    DeferredHandle,
    ModelInfo,
    ModelOutcome,
    ModelRequest,
    TokenPrice,
)
from perdure.records.settings import ThinkingLevel

LEVELS: Final[tuple[ThinkingLevel, ...]] = ("minimal", "low", "medium", "high", "xhigh", "max")
"""Levels a thinking model takes; the vendor library maps each to what the model knows."""

DEFERRING: Final = frozenset({"openai-responses"})
"""Wires that can answer later (PV-26)."""

OPTIONS: Final[Mapping[str, type | tuple[type, ...]]] = MappingProxyType(
    {
        "max_tokens": int,
        "temperature": (int, float),
        "top_p": (int, float),
        "seed": int,
        "stop": list,
        "parallel_tool_calls": bool,
        "background": bool,
        "extra_body": dict,
    }
)
"""Stream options every wire takes, and their types; `background` asks for deferred work."""

PRICED_TOKENS: Final = 1_000
"""How many tokens are priced to learn what one costs: fewer than where a higher price begins."""

_LOG: Final = logging.getLogger("perdure.providers")

Pricing = Callable[[ModelId, Usage], Awaitable[Cost | None]]
"""Answers what a request cost, or None where that is not known (PV-27)."""


class Wire(Protocol):
    """What one vendor's wire has of its own."""

    @property
    def vendor_name(self) -> str:
        """Answer what the vendor library calls the provider."""
        ...

    @property
    def url(self) -> str:
        """Answer the endpoint."""
        ...

    @property
    def signed(self) -> bool:
        """Say whether thinking goes back only with a signature."""
        ...

    @property
    def system_messages(self) -> int:
        """Count the messages that a system prompt puts before the first one."""
        ...

    def model(self, model_id: str, key: str | None) -> Model[Any]:
        """Make the vendor's model object for one request."""
        ...

    def settings(self, request: ModelRequest) -> dict[str, Any]:
        """Answer the settings that only this vendor knows."""
        ...

    def thinks(self, model: Model[Any]) -> bool:
        """Say whether a model is known to think (PV-10)."""
        ...

    def fitting_level(self, level: ThinkingLevel, model: Model[Any], limit: int) -> ThinkingLevel:
        """Lower a thinking level until its budget is below the output limit (PV-10)."""
        ...

    def end_marks(self) -> Callable[[], bool]:
        """Watch the request of this task; answer later whether its last bytes said the end."""
        ...

    async def listed_window(self, model_id: str, key: str | None) -> int | None:
        """Answer the window that the server lists for a model."""
        ...

    async def close(self) -> None:
        """Release the client."""
        ...


class PydanticAiModels:
    """The models of one hosted provider."""

    def __init__(
        self,
        provider: Provider,
        config: ProviderConfig,
        wire: Wire,
        *,
        clock: Clock,
        pricing: Pricing,
    ) -> None:
        """Bind a provider's configuration to its wire."""
        self._provider = provider
        self._config = config
        self._wire = wire
        self._clock = clock
        self._pricing = pricing
        self._windows: dict[str, int | None] = {}
        self._warned: set[tuple[str, str, int]] = set()

    async def describe(self, model: ModelId) -> ModelInfo:
        """Say what a model can do; what the vendor library does not know is unknown.

        Raises:
            Rejected: `invariant`, for a model of another provider.
        """
        if model.provider != self._provider.name:
            raise Rejected(
                "invariant",
                f"the provider {model.provider!r} of {str(model)!r} is unknown here; "
                f"this adapter answers for {self._provider.name!r}",
            )
        made = self._wire.model(model.model_id, None)
        profile: Mapping[str, Any] = made.profile
        thinks = self._config.thinking or self._wire.thinks(made)
        known = profile.get("anthropic_max_output_tokens")
        return ModelInfo(
            model=model,
            context_window=await self._window(model, profile),
            output_limit=self._config.output_limit or (known if isinstance(known, int) else None),
            images=self._sees(made),
            thinking=("off", *LEVELS) if thinks else (),
            deferred=self._provider.api in DEFERRING,
            price=await self._token_price(model),
        )

    async def _token_price(self, model: ModelId) -> TokenPrice | None:
        """Answer what a budget reckons with before a request; None where it is not known."""
        none = Usage(input=0, output=0, cache_read=0, cache_write=0)
        read = await self._pricing(model, structs.replace(none, input=PRICED_TOKENS))
        written = await self._pricing(model, structs.replace(none, output=PRICED_TOKENS))
        if read is None or written is None:
            return None
        return TokenPrice(
            input_price=_per_million(read),
            output_price=_per_million(written),
            currency=read.currency,
        )

    def _sees(self, model: Model[Any]) -> bool:
        """Say whether a model takes images: what is configured, else what the library knows."""
        if self._config.images is not None:
            return self._config.images
        profile: Mapping[str, Any] = model.profile
        return bool(profile.get("supports_image_input", True))

    async def _window(self, model: ModelId, profile: Mapping[str, Any]) -> int | None:
        if self._config.window is not None:
            return self._config.window
        known = profile.get("context_window")
        if isinstance(known, int) and not self._provider.needs_base_url:
            return known
        if not self._provider.needs_base_url:
            return None
        if model.model_id not in self._windows:
            key = await resolve_key(self._provider, self._config, model)
            self._windows[model.model_id] = await self._wire.listed_window(model.model_id, key)
        return self._windows[model.model_id]

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[Running]:
        """Start one request when entered; one attempt is one HTTP request (PV-05)."""
        attempt = Attempt(self, request)
        return Running(attempt.play, attempt.explain)

    async def poll(self, handle: DeferredHandle) -> ModelOutcome:
        """Ask for deferred work once; a handle in the outcome means still pending (PV-26)."""
        attempt = Attempt(self, poll_request(handle))
        try:
            return await attempt.poll(handle)
        except Exception as error:
            raise attempt.explain(None, error) from error

    async def cancel(self, handle: DeferredHandle) -> None:
        """Cancel deferred work; a provider that knows no such work any more is no failure."""
        request = poll_request(handle)
        key = await resolve_key(self._provider, self._config, request.model)
        model = self._wire.model(handle.model_id, key)
        try:
            await model.cancel_suspended_response(suspended(handle))
        except AgentRunError as error:
            failed = failure(error, now_ms=self._clock.now_ms())
            if failed.status is None or not 400 <= failed.status < 500 or failed.code == "auth":
                raise failed from error

    async def close(self) -> None:
        """Release the vendor's client."""
        await self._wire.close()

    # ------------------------------------------------------------------- for one attempt

    async def plan(self, request: ModelRequest) -> Plan:
        """Put a request into the vendor's words.

        Raises:
            ProviderError: `auth` without a key, `invalid_request` for an option or level that
                would be dropped in silence.
        """
        key = await resolve_key(self._provider, self._config, request.model)
        options = _options(request)
        if options.get("background") and self._provider.api not in DEFERRING:
            raise ProviderError(
                "invalid_request", f"{request.model} cannot answer later; drop 'background'"
            )
        model = self._wire.model(request.model.model_id, key)
        home = self.home(request.model, sees=self._sees(model))
        settings: dict[str, Any] = {"max_retries": 0, **self._wire.settings(request)}
        for name in ("max_tokens", "temperature", "top_p", "seed", "parallel_tool_calls"):
            if name in options:
                settings[name] = options[name]
        if "stop" in options:
            settings["stop_sequences"] = options["stop"]
        if "extra_body" in options:
            settings["extra_body"] = options["extra_body"]
        settings.update(self._thinking(request, model, options))
        return Plan(
            model=model,
            home=home,
            mapped=to_vendor(request.messages, home),
            settings=cast("ModelSettings", settings),
            parameters=_parameters(request),
            background=bool(options.get("background")),
            hide=_hider(key),
            ended=self._wire.end_marks(),
        )

    def home(self, model: ModelId, *, sees: bool = True) -> Home:
        """Name where a request of this provider goes."""
        return Home(
            model=model,
            api=self._provider.api,
            vendor_name=self._wire.vendor_name,
            url=self._wire.url,
            signed=self._wire.signed,
            sees=sees,
        )

    def _thinking(
        self, request: ModelRequest, model: Model[Any], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        thinks = self._config.thinking or self._wire.thinks(model)
        if request.thinking == "off":
            return {"thinking": False} if thinks else {}
        if not thinks:
            raise ProviderError(
                "invalid_request",
                f"the model {request.model} is not known to think, so thinking "
                f"{request.thinking!r} would be dropped; set thinking = true for its provider, "
                f"or the level to 'off'",
            )
        limit = options.get("max_tokens")
        if not isinstance(limit, int):
            return {"thinking": request.thinking}
        level = self._wire.fitting_level(request.thinking, model, limit)
        seen = (str(request.model), request.thinking, limit)
        if level != request.thinking and seen not in self._warned:
            self._warned.add(seen)
            _LOG.warning(
                "thinking %s of %s does not fit below max_tokens %d; using %s",
                request.thinking,
                request.model,
                limit,
                level,
            )
        return {"thinking": False if level == "off" else level}

    @property
    def clock(self) -> Clock:
        """Answer the clock."""
        return self._clock

    @property
    def provider(self) -> Provider:
        """Answer the provider."""
        return self._provider

    @property
    def system_messages(self) -> int:
        """Count the messages that a system prompt puts before the first one."""
        return self._wire.system_messages

    async def priced(self, model: ModelId, usage: Usage | None) -> Usage | None:
        """Add what a request cost, where that is known."""
        if usage is None:
            return None
        cost = await self._pricing(model, usage)
        return usage if cost is None else structs.replace(usage, cost=cost)


def _per_million(cost: Cost) -> str:
    return f"{Decimal(cost.amount) * (1_000_000 // PRICED_TOKENS):f}"


def _hider(key: str | None) -> Callable[[str], str]:
    """Take a key out of what a server said: some repeat it in their errors (GN-46)."""
    return lambda text: text.replace(key, "[key]") if key else text


def _options(request: ModelRequest) -> dict[str, Any]:
    options = cast("dict[str, Any]", decode_json(request.options))
    for name, value in options.items():
        kinds = OPTIONS.get(name)
        if kinds is None:
            raise ProviderError(
                "invalid_request",
                f"the stream option {name!r} is unknown; known are {', '.join(OPTIONS)}",
            )
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise ProviderError(
                "invalid_request", f"the stream option {name!r} has the value {value!r}"
            )
    return options


def _parameters(request: ModelRequest) -> ModelRequestParameters:
    tools = [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=dict(tool.parameters),
            strict=False,
        )
        for tool in request.tools
    ]
    system = [vendor.InstructionPart(content=request.system)] if request.system else []
    return ModelRequestParameters(function_tools=tools, instruction_parts=system)
