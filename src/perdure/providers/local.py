"""The embedded local model behind the `Models` port: no key, no network (PV-24).

`local:smollm2` is the built-in model, small and often wrong; `local:<GGUF file>` is one the user
brought. The vendor library is loaded, like the weights, on a daemon thread at the first need, or
before it by `begin`. One model answers one request at a time; others wait their turn and may leave.

The runtime calls back on its own thread; pieces are handed to the loop one by one. Leaving the
stream is noticed at the next piece, while a prompt is read too, so an abort stops the work within a
second. The same request gets the same answer: temperature 0 and a fixed seed, unless the options
say otherwise.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Protocol, Self, cast

import msgspec
from msgspec import UNSET, Struct

from perdure.errors import FailureCode, ProviderError, Rejected
from perdure.ports import Threads
from perdure.providers.local_files import (
    FETCH_STEP,
    MODEL_NAME,
    RUNTIME_STEP,
    find_local,
    local_place,
)
from perdure.providers.local_prompt import BROUGHT, SMALL, Profile, asked
from perdure.providers.local_reply import ReplyReader
from perdure.records.entries import ModelId
from perdure.records.frames import Frame, FrameReducer
from perdure.records.messages import (
    AssistantMessage,
    MessageError,
    Part,
    StopReason,
    ToolCallPart,
    Usage,
)
from perdure.records.models import DeferredHandle, ModelInfo, ModelOutcome, ModelRequest

PROVIDER: Final = "local"
API: Final = "local-chat"
RUNTIME_MODULE: Final = "perdure.providers.local_runtime"

WINDOW_TOKENS: Final = 4_096
"""Context window: 94 MB of cache for the built-in model, and 20 s to read at the slowest seen."""

SEED: Final = 1

REPEATS_ITSELF: Final = "repeats itself"
"""The stop detail of a reply that was cut because it went round in circles."""

OnChunk = Callable[[Mapping[str, Any]], bool]


class LoadedModel(Protocol):
    """One loaded model; every method blocks."""

    def generate(self, body: Mapping[str, Any], on_chunk: OnChunk) -> None:
        """Answer one chat request, chunk by chunk, until it ends or `on_chunk` answers True."""
        ...

    def close(self) -> None:
        """Stop requests and free the weights."""
        ...


class _Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request's options may say."""

    temperature: float = 0.0
    seed: int = SEED
    top_p: float | None = None
    max_tokens: int | None = None


class _Slot:
    """One model: its loading, and whose turn it is."""

    def __init__(self, loading: "asyncio.Task[LoadedModel]") -> None:
        self.loading = loading
        self.turn = asyncio.Lock()


class LocalModels:
    """Models that run in this process."""

    def __init__(
        self,
        data_folder: Path,
        *,
        threads: Threads,
        load: Callable[[str], ModuleType],
        window: int = WINDOW_TOKENS,
    ) -> None:
        """Take the data folder that holds the built-in model; nothing is opened or loaded yet.

        Args:
            data_folder: where `fetch_local` put the built-in model's file.
            threads: daemon threads to load and run models on.
            load: imports a module by its name; the composition root's.
            window: context window in tokens.
        """
        self._data_folder = data_folder
        self._threads = threads
        self._load = load
        self._window = window
        self._slots: dict[str, _Slot] = {}
        self._running: set[_LocalStream] = set()

    async def describe(self, model: ModelId) -> ModelInfo:
        """Say what a local model can do; raises Rejected `invariant` for another provider."""
        if model.provider != PROVIDER:
            raise Rejected(
                "invariant",
                f"the provider {model.provider!r} of {str(model)!r} is unknown here; "
                f"accepted are {PROVIDER}:{MODEL_NAME} and {PROVIDER}:<GGUF file>",
            )
        limit = _profile(model).output_tokens
        return ModelInfo(model=model, context_window=self._window, output_limit=limit)

    def begin(self, model: ModelId) -> None:
        """Start to load a model, without waiting for it."""
        self.slot(model)

    def stream(self, request: ModelRequest) -> "_LocalStream":
        """Start one request."""
        return _LocalStream(self, request)

    async def poll(self, handle: DeferredHandle) -> ModelOutcome:
        """Refuse: a local model defers nothing."""
        raise ProviderError("invalid_request", f"local models defer nothing: {handle.id!r}")

    async def cancel(self, handle: DeferredHandle) -> None:
        """Do nothing: a local model defers nothing."""

    async def close(self) -> None:
        """Stop what runs and free the weights."""
        for stream in tuple(self._running):
            stream.stop()
        slots, self._slots = self._slots, {}
        for slot in slots.values():
            loaded = (await asyncio.gather(slot.loading, return_exceptions=True))[0]
            if not isinstance(loaded, BaseException):
                await self._threads.run("close local model", loaded.close)
        workers = [stream.worker for stream in self._running if stream.worker is not None]
        await asyncio.gather(*workers, return_exceptions=True)

    def slot(self, model: ModelId) -> _Slot:
        """Answer the slot of a model, starting to load it at the first need."""
        found = self._slots.get(model.model_id)
        if found is None or _failed(found.loading):
            loading = asyncio.create_task(self._loaded(model), name=f"load {model}")
            loading.add_done_callback(_seen)  # a failure nobody asked about yet is no news
            found = self._slots[model.model_id] = _Slot(loading)
        return found

    async def run(self, name: str, work: Callable[[], None]) -> None:
        """Run blocking work on a daemon thread."""
        await self._threads.run(name, work)

    def running(self, stream: "_LocalStream", *, ended: bool = False) -> None:
        """Keep a stream until its thread has come back."""
        if ended:
            self._running.discard(stream)
        else:
            self._running.add(stream)

    async def _loaded(self, model: ModelId) -> LoadedModel:
        return await self._threads.run(f"load {model}", partial(self._load_blocking, model))

    def _load_blocking(self, model: ModelId) -> LoadedModel:
        path = self._path(model)
        try:
            module = self._load(RUNTIME_MODULE)
        except ImportError as error:
            raise ProviderError(
                "no_model", f"the local model needs its runtime ({error}); run: {RUNTIME_STEP}"
            ) from error
        return cast("LoadedModel", module.load(path, self._window))

    def _path(self, model: ModelId) -> Path:
        if model.model_id != MODEL_NAME:
            path = Path(model.model_id)
            if path.suffix.lower() == ".gguf" and path.is_file():
                return path
            raise ProviderError(
                "no_model",
                f"the local model {model.model_id!r} is neither {MODEL_NAME!r} "
                f"nor a GGUF file that is there",
            )
        found = find_local(self._data_folder)
        if found is None:
            place = local_place(self._data_folder)
            raise ProviderError(
                "no_model", f"the local model's file is not at {place}; run: {FETCH_STEP}"
            )
        return found


def _failed(loading: "asyncio.Task[LoadedModel]") -> bool:
    return loading.done() and (loading.cancelled() or loading.exception() is not None)


def _seen(loading: "asyncio.Task[LoadedModel]") -> None:
    _failed(loading)


def _profile(model: ModelId) -> Profile:
    return SMALL if model.model_id == MODEL_NAME else BROUGHT


class _LocalStream:
    """One request: context manager, stream and iterator in one."""

    def __init__(self, models: LocalModels, request: ModelRequest) -> None:
        self._models = models
        self._request = request
        self._chunks: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        self._ready: list[Frame] = []
        self._reducer = FrameReducer()
        self._usage: Usage | None = None
        self._finish = ""
        self._failure: ProviderError | None = None
        self._is_over = False
        self._is_stopped = False
        self._is_left = False
        self._is_inside = False
        self.worker: asyncio.Task[None] | None = None
        self._reader: ReplyReader

    async def __aenter__(self) -> Self:
        request = self._request
        call_id = f"call-{request.task_id}-{request.attempt}-0"
        self._reader = ReplyReader(is_json=False, call_id=call_id)
        try:
            body, is_json = _body(request)
        except ProviderError as error:
            self._failure, self._is_over = error, True
            return self
        self._reader = ReplyReader(is_json=is_json, call_id=call_id)
        self.worker = asyncio.create_task(self._work(body), name=f"answer {request.model}")
        self._models.running(self)
        self.worker.add_done_callback(self._ended)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask the runtime to stop, or give up the place in the queue."""
        self._is_left = self._is_stopped = True
        if self.worker is not None and not self._is_inside:
            self.worker.cancel()

    def __aiter__(self) -> AsyncIterator[Frame]:
        return self

    async def __anext__(self) -> Frame:
        if self._is_left:
            raise StopAsyncIteration
        while not self._ready:
            if self._is_over:
                raise StopAsyncIteration
            await self._next_chunk()
        frame = self._ready.pop(0)
        self._reducer.add(frame)
        return frame

    async def outcome(self) -> ModelOutcome:
        """Play what is left, then answer the reply.

        Raises:
            ProviderError: `no_model` when runtime or file is missing, `overflow` with the window,
                `interrupted` when the stream was left, `invalid_request` for options it lacks.
        """
        if self._is_left and (self._ready or not self._is_over):
            why = MessageError(code="interrupted", message="the stream was left before its end")
            raise ProviderError(
                "interrupted",
                why.message,
                partial=self._message(self._reducer.finished_parts(), "aborted", why),
                usage=self._usage,
            )
        async for _ in self:
            pass
        if self._failure is not None:
            raise self._failure
        parts = self._reducer.parts()
        calls = any(isinstance(part, ToolCallPart) for part in parts)
        stop: StopReason = "toolUse" if calls else "stop"
        cut = self._finish in ("length", REPEATS_ITSELF)
        message = self._message(parts, "length" if cut else stop)
        return ModelOutcome(result=message, usage=self._usage)

    def _message(
        self, parts: tuple[Part, ...], stop: StopReason, error: MessageError | None = None
    ) -> AssistantMessage:
        return AssistantMessage(
            content=parts,
            api=API,
            model=self._request.model,
            stop=stop,
            stop_detail=self._finish or UNSET,
            error=UNSET if error is None else error,
        )

    # ------------------------------------------------------------------------------ on the loop

    async def _work(self, body: Mapping[str, Any]) -> None:
        slot = self._models.slot(self._request.model)
        model = await asyncio.shield(slot.loading)
        loop = asyncio.get_running_loop()

        def on_chunk(chunk: Mapping[str, Any]) -> bool:
            try:
                loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:  # the loop is closed: nobody is left to tell
                return True
            return self._is_stopped

        async with slot.turn:
            self._is_inside = True
            await self._models.run("local model", partial(model.generate, body, on_chunk))

    def _ended(self, worker: "asyncio.Task[None]") -> None:
        self._models.running(self, ended=True)
        if not worker.cancelled():
            error = worker.exception()
            if isinstance(error, ProviderError):
                self._failure = error
            elif error is not None:
                self._failure = ProviderError(
                    "invalid_request", f"the local runtime failed: {type(error).__name__}: {error}"
                )
        self._chunks.put_nowait(None)

    async def _next_chunk(self) -> None:
        chunk = await self._chunks.get()
        if chunk is None:
            self._is_over = True
            if self._failure is None and self._finish:
                self._ready += self._reader.end()
            elif self._failure is None:
                self._failure = ProviderError(
                    "stream_ended",
                    "the local runtime ended the reply before its end",
                    partial=self._message(self._reducer.finished_parts(), "error"),
                    usage=self._usage,
                )
            return
        if "error" in chunk:
            self._failure = _failure(chunk["error"])
        self._usage = _usage(chunk) or self._usage
        if self._finish == REPEATS_ITSELF:
            return  # what still came before the runtime noticed is dropped
        for choice in chunk.get("choices") or ():
            self._finish = choice.get("finish_reason") or self._finish
            self._ready += self._reader.add(choice["delta"].get("content") or "")
        if _profile(self._request.model).is_small and self._reader.repeats:
            self._finish, self._is_stopped = REPEATS_ITSELF, True


def _body(request: ModelRequest) -> tuple[dict[str, Any], bool]:
    """Answer the runtime's request, and whether its answer is JSON."""
    if request.thinking != "off":
        raise ProviderError(
            "invalid_request",
            f"the local model does not think: level {request.thinking!r} is not accepted, 'off' is",
        )
    try:
        options = msgspec.json.decode(request.options, type=_Options)
    except msgspec.ValidationError as error:
        accepted = ", ".join(_Options.__struct_fields__)
        raise ProviderError(
            "invalid_request",
            f"the options {bytes(request.options)[:200]!r} are not accepted: {error}; "
            f"the local model knows {accepted}",
        ) from error
    profile = _profile(request.model)
    question = asked(request, profile)
    body: dict[str, Any] = {
        "messages": list(question.messages),
        "max_tokens": options.max_tokens or profile.output_tokens,
        "temperature": options.temperature,
        "seed": options.seed,
        "cache_prompt": True,
        "stream": True,
        "return_progress": True,
        "timings_per_token": True,
    }
    if options.top_p is not None:
        body["top_p"] = options.top_p
    if question.schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": question.schema},
        }
    return body, question.schema is not None


def _failure(error: Mapping[str, Any]) -> ProviderError:
    """Class an error of the runtime (PV-15)."""
    status = int(error.get("code") or 0)
    text = str(error.get("message") or error)
    code: FailureCode = "server" if status >= 500 else "invalid_request"
    window = None
    if error.get("type") == "exceed_context_size_error":
        code, window = "overflow", int(error.get("n_ctx") or 0) or None
    return ProviderError(code, f"local model: {text}", status=status or None, window=window)


def _usage(chunk: Mapping[str, Any]) -> Usage | None:
    """Take the runtime's own token counts so far; `input` excludes what its cache held (PV-14)."""
    progress = chunk.get("prompt_progress")
    if progress:
        read, cached = int(progress["total"]), int(progress["cache"])
        return Usage(input=read - cached, cache_read=cached, cache_write=0)
    timings = chunk.get("timings")
    if not timings:
        return None
    return Usage(
        input=int(timings["prompt_n"]),
        output=int(timings["predicted_n"]),
        cache_read=int(timings["cache_n"]),
        cache_write=0,
        reasoning=0,
    )
