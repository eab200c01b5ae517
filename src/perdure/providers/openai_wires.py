"""The two OpenAI wires: responses, and chat completions for OpenAI and any server that speaks it.

The HTTP client is ours: its timeouts are the adapter's, and it looks at the last bytes of a stream,
because a compatible server may leave the finish reason out and say the end only as `[DONE]`.
"""

from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any, Final, cast

import httpx2
from openai import AsyncOpenAI, Omit
from openai import OpenAIError as VendorError
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from perdure.ports import Clock
from perdure.providers.config import Provider, ProviderConfig, check_config, tls_of, uses_proxies
from perdure.providers.pydantic_ai import Pricing, PydanticAiModels
from perdure.records.models import ModelRequest
from perdure.records.settings import ThinkingLevel

DONE: Final = b"[DONE]"
"""The last event of a chat stream."""

NO_KEY: Final = "perdure-no-key"
"""Stands for a key where there is none; the library wants one, and it never leaves the process."""

TAIL_BYTES: Final = 64
"""How much of the end of a stream is kept to look for `DONE`."""

LISTING_SECONDS: Final = 5.0
"""Longest wait for the server's list of models."""

WINDOW_FIELDS: Final = ("max_model_len", "context_length", "context_window", "max_context_length")
"""Names under which compatible servers list a model's window."""

_TAIL: ContextVar["Tail | None"] = ContextVar("perdure_openai_tail", default=None)


class Tail:
    """The last bytes of one response."""

    def __init__(self) -> None:
        """Start with none."""
        self.bytes = b""

    def add(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self.bytes = (self.bytes + chunk)[-TAIL_BYTES:]

    def says_done(self) -> bool:
        """Say whether the stream announced its end."""
        return DONE in self.bytes


class _WatchedStream(httpx2.AsyncByteStream):
    """A response body that shows its last bytes to the request that waits for it."""

    def __init__(self, stream: httpx2.AsyncByteStream, tail: Tail) -> None:
        self._stream = stream
        self._tail = tail

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Pass the body on."""
        async for chunk in self._stream:
            self._tail.add(chunk)
            yield chunk

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()


async def _drop_stand_in(request: httpx2.Request) -> None:
    """Send no key where there is none."""
    if request.headers.get("authorization") == f"Bearer {NO_KEY}":
        del request.headers["authorization"]


async def _watch_tail(response: httpx2.Response) -> None:
    """Show a response's last bytes to the request that waits for it."""
    tail = _TAIL.get()
    if tail is not None and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _WatchedStream(response.stream, tail)


class _PlainChatModel(OpenAIChatModel):
    """The chat wire for servers that refuse `stream_options`."""

    def _get_stream_options(self, model_settings: Any) -> Any:
        """Leave the field out; nothing else can, since the library always sends it."""
        return Omit()


class OpenAiWire:
    """One of the OpenAI wires, for one configuration."""

    def __init__(self, provider: Provider, config: ProviderConfig) -> None:
        """Make the HTTP client; no request is made."""
        self._provider = provider
        self._config = config
        timeout = httpx2.Timeout(
            config.silence_timeout_ms / 1_000, connect=config.connect_timeout_ms / 1_000
        )
        self._http = httpx2.AsyncClient(
            verify=tls_of(config),
            trust_env=uses_proxies(config),
            timeout=timeout,
            event_hooks={"request": [_drop_stand_in], "response": [_watch_tail]},
        )
        self._client = AsyncOpenAI(
            api_key=NO_KEY,
            base_url=config.base_url,
            http_client=self._http,
            max_retries=0,
            timeout=timeout,
        )
        self.model("gpt-5", None)  # loads what the library defers, while no loop waits

    @property
    def vendor_name(self) -> str:
        """Answer what the vendor library calls the provider."""
        return "openai"

    @property
    def url(self) -> str:
        """Answer the endpoint."""
        return str(self._client.base_url)

    @property
    def signed(self) -> bool:
        """Say that the responses wire wants reasoning back only when it is encrypted."""
        return self._is_responses

    @property
    def system_messages(self) -> int:
        """Count the system message of the chat wire; responses sends instructions apart."""
        return 0 if self._is_responses else 1

    @property
    def _is_responses(self) -> bool:
        return self._provider.api == "openai-responses"

    def model(self, model_id: str, key: str | None) -> Model[Any]:
        """Make the vendor's model object for one request."""
        client = self._client.with_options(api_key=key or NO_KEY)
        provider = OpenAIProvider(openai_client=client)
        profile = self._profile()
        if self._is_responses:
            return OpenAIResponsesModel(model_id, provider=provider, profile=profile)
        kind = OpenAIChatModel if self._config.stream_options else _PlainChatModel
        return kind(model_id, provider=provider, profile=profile)

    def _profile(self) -> OpenAIModelProfile:
        """Answer what a configuration knows better than the library."""
        changes: dict[str, Any] = {}
        if self._config.thinking:
            changes |= {"supports_thinking": True, "openai_supports_reasoning": True}
        if self._config.images is not None:
            changes["supports_image_input"] = self._config.images
        if self._provider.needs_base_url:
            changes["openai_chat_supports_max_completion_tokens"] = False
        else:
            # OpenAI never writes thinking as tags, so a text that holds one is just a text.
            changes["thinking_tags"] = None
        return cast("OpenAIModelProfile", changes)

    def settings(self, request: ModelRequest) -> dict[str, Any]:
        """Name the conversation's cache; ask the server to keep nothing (GN-46)."""
        settings: dict[str, Any] = {}
        if request.cache_key and not self._provider.needs_base_url:
            settings["openai_prompt_cache_key"] = request.cache_key
        if self._is_responses:
            settings["openai_store"] = False
            settings["openai_send_reasoning_ids"] = True
            if request.thinking != "off":
                settings["openai_reasoning_summary"] = "auto"
        return settings

    def thinks(self, model: Model[Any]) -> bool:
        """Say what the library knows: it would drop a level of any other model in silence."""
        return bool(model.profile.get("supports_thinking"))

    def fitting_level(self, level: ThinkingLevel, model: Model[Any], limit: int) -> ThinkingLevel:
        """Answer the level: OpenAI's efforts have no budget that a limit could exceed."""
        return level

    def end_marks(self) -> Callable[[], bool]:
        """Watch the request of this task."""
        if not self._provider.needs_base_url:
            return lambda: False
        tail = Tail()
        _TAIL.set(tail)
        return tail.says_done

    async def listed_window(self, model_id: str, key: str | None) -> int | None:
        """Answer the window that the server lists for a model; None when it lists none."""
        client = self._client.with_options(api_key=key or NO_KEY)
        try:
            page = await client.models.list(timeout=LISTING_SECONDS)
        except VendorError:
            return None
        for model in page.data:
            if model.id == model_id:
                facts = model.model_extra or {}
                found = [facts.get(field) for field in WINDOW_FIELDS]
                return next((size for size in found if isinstance(size, int) and size > 0), None)
        return None

    async def close(self) -> None:
        """Release the client."""
        await self._http.aclose()


def make_models(
    provider: Provider, config: ProviderConfig, *, clock: Clock, pricing: Pricing
) -> PydanticAiModels:
    """Make the models of an OpenAI wire.

    Raises:
        Rejected: `invariant`, for a configuration that cannot work.
    """
    check_config(provider, config)
    wire = OpenAiWire(provider, config)
    return PydanticAiModels(provider, config, wire, clock=clock, pricing=pricing)
