"""Every model a host offers, behind one `Models`: vendors are loaded when one of theirs is needed.

Loading a vendor's library takes seconds, so it happens in a daemon thread: `begin` starts it, the
first request waits for it, and what goes wrong in it fails that request with `no_model` (PV-03,
PV-04). This module imports no vendor library.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType, ModuleType
from typing import Final, Self, cast

from msgspec.structs import replace

from perdure.errors import PerdureError, ProviderError, Rejected
from perdure.ports import Clock, Models, ModelStream, Threads
from perdure.providers.config import ENV_REFERENCE, HOSTED, Provider, ProviderConfig, check_config
from perdure.records.entries import ModelId
from perdure.records.frames import Frame
from perdure.records.messages import Cost, Usage
from perdure.records.models import DeferredHandle, ModelInfo, ModelOutcome, ModelRequest

PRICES_MODULE: Final = "perdure.providers.prices"

Loader = Callable[[str], ModuleType]
"""Imports a module by its name; the composition root's."""

NO_MODELS: Final[Mapping[str, Models]] = MappingProxyType({})
NO_CONFIGS: Final[Mapping[str, ProviderConfig]] = MappingProxyType({})


class OfferedModels:
    """The models of every provider: hosted ones by name, others as they were handed in."""

    def __init__(
        self,
        *,
        load: Loader,
        threads: Threads,
        clock: Clock,
        configs: Mapping[str, ProviderConfig] = NO_CONFIGS,
        others: Mapping[str, Models] = NO_MODELS,
        noted: Callable[[str, str], None] | None = None,
    ) -> None:
        """Take the configurations of hosted providers, and the models of other ones by name.

        `noted` is told the name and the text of every key that is found (SX-05).

        Raises:
            Rejected: `invariant`, for a configured provider that does not exist.
        """
        self._load = load
        self._threads = threads
        self._clock = clock
        self._configs = configs
        self._others = others
        self._noted = noted
        self._loading: dict[str, asyncio.Task[Models]] = {}
        self._prices: asyncio.Task[ModuleType] | None = None
        for name in configs:
            self._hosted(name)
        if noted is not None:
            self._note_keys(noted)

    @property
    def providers(self) -> tuple[str, ...]:
        """Name the providers, sorted."""
        return tuple(sorted({*HOSTED, *self._others}))

    def check(self, model: ModelId) -> None:
        """Refuse a model that no request could reach; nothing is loaded (PV-02, PV-23).

        Raises:
            Rejected: `invariant`, naming the model and the known providers.
        """
        if model.provider in self._others:
            return
        check_config(self._hosted(model.provider), self._config(model.provider))

    def begin(self, provider: str) -> None:
        """Start to load a provider, without waiting for it (PV-04)."""
        if provider not in self._others:
            self._task(self._hosted(provider))

    async def describe(self, model: ModelId) -> ModelInfo:
        """Say what a model can do; a provider that cannot be loaded leaves all of it unknown."""
        self.check(model)
        try:
            models = await self._models(model.provider)
        except ProviderError:
            return ModelInfo(model=model)
        return await models.describe(model)

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[ModelStream]:
        """Start one request, once its provider is loaded."""
        return self._stream(request)

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncGenerator[ModelStream]:
        try:
            models = await self._models(request.model.provider)
        except ProviderError as error:
            yield _Failed(error)
            return
        async with models.stream(request) as stream:
            yield stream

    async def poll(self, handle: DeferredHandle) -> ModelOutcome:
        """Ask for deferred work once."""
        return await (await self._models(handle.provider)).poll(handle)

    async def cancel(self, handle: DeferredHandle) -> None:
        """Cancel deferred work."""
        await (await self._models(handle.provider)).cancel(handle)

    async def close(self) -> None:
        """Release what was loaded; a load under way is left to its daemon thread."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(ended, BaseException):
                await ended.close()
        if self._prices is not None:
            self._prices.cancel()
            await asyncio.gather(self._prices, return_exceptions=True)
        for models in self._others.values():
            await models.close()

    # ------------------------------------------------------------------------------ loading

    def _hosted(self, name: str) -> Provider:
        try:
            return HOSTED[name]
        except KeyError:
            raise Rejected(
                "invariant",
                f"the provider {name!r} is unknown; known are {', '.join(self.providers)}",
            ) from None

    def _note_keys(self, noted: Callable[[str, str], None]) -> None:
        """Tell of the keys in the environment before any request (SX-05).

        A call that a crash cut off is settled first, and its output may hold one.
        """
        for name, provider in HOSTED.items():
            source = self._config(name).key
            if source is None or isinstance(source, str):
                variable = (source or provider.key_variable).removeprefix(ENV_REFERENCE)
                noted(variable, os.environ.get(variable, ""))

    def _config(self, name: str) -> ProviderConfig:
        return self._configs.get(name, ProviderConfig())

    async def _models(self, name: str) -> Models:
        if name in self._others:
            return self._others[name]
        return await asyncio.shield(self._task(self._hosted(name)))

    def _task(self, provider: Provider) -> asyncio.Task[Models]:
        task = self._loading.get(provider.name)
        if task is None:
            task = asyncio.create_task(self._loaded(provider), name=f"load {provider.name}")
            task.add_done_callback(_seen)
            self._loading[provider.name] = task
        return task

    async def _loaded(self, provider: Provider) -> Models:
        config = replace(self._config(provider.name), noted=self._noted)

        def work() -> Models:
            module = self._load(provider.module)
            made = module.make_models(provider, config, clock=self._clock, pricing=self._price)
            return cast("Models", made)

        try:
            return await self._threads.run(f"load-{provider.name}", work)
        except Rejected as error:
            raise ProviderError("no_model", error.message) from error
        except ImportError as error:
            raise ProviderError(
                "no_model",
                f"the provider {provider.name!r} needs a library that is not there "
                f"({error}); run: pip install 'perdure[{provider.extra}]'",
            ) from error
        except PerdureError:
            raise
        except Exception as error:
            raise ProviderError(
                "no_model", f"the provider {provider.name!r} could not be loaded: {error!r}"
            ) from error

    async def _price(self, model: ModelId, usage: Usage) -> Cost | None:
        """Answer what a request cost; the table is loaded at the first need (PV-27)."""
        if self._prices is None:
            work = self._threads.run("load-prices", lambda: self._load(PRICES_MODULE))
            self._prices = asyncio.create_task(work, name="load prices")
            self._prices.add_done_callback(_seen)
        try:
            table = await asyncio.shield(self._prices)
        except ImportError:
            return None
        own = self._config(model.provider).prices
        found = table.cost(model, usage, at_ms=self._clock.now_ms(), prices=own)
        return cast("Cost | None", found)


def _seen(task: "asyncio.Task[object]") -> None:
    """Take note of a failure that no request has asked about yet."""
    if not task.cancelled():
        task.exception()


class _Failed:
    """A request that could not be made."""

    def __init__(self, error: ProviderError) -> None:
        self._error = error

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frame:
        raise StopAsyncIteration

    async def outcome(self) -> ModelOutcome:
        """Raise why."""
        raise self._error
