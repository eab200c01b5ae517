"""A running stream: what it brought so far, stored in batches and found again (WS-08, WS-11)."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final

import msgspec

from perdure.drive.context import TaskContext
from perdure.errors import ProviderError, Rejected
from perdure.kinds.model_text import clean_frame, clean_message
from perdure.kinds.secrets import SecretFrames, Secrets
from perdure.line.buffer import CommittedReads
from perdure.line.command import WorkingCommand
from perdure.line.spans import NO_SPAN
from perdure.ports import Models, ModelStream, Span
from perdure.records.addresses import frames_of
from perdure.records.codec import decode
from perdure.records.entries import ModelId
from perdure.records.frames import DeltaFrame, Frame, FrameBatch, FrameBatcher, FrameReducer
from perdure.records.messages import AssistantMessage, Part, Usage
from perdure.records.models import ModelOutcome, ModelRequest
from perdure.records.scratch import GenerationScratch, with_frames
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage
from perdure.records.strict_json import Repairs

FRAMES_PAGE: Final = 1_000
"""Batches of frames read at a time (WS-12)."""

LAST_WORD_S: Final = 5
"""Seconds an adapter has to say what a closed stream had brought."""

TOKENS: Final = ("input", "output", "cache_read", "cache_write", "reasoning")
"""Figures of a usage report that count tokens."""

FRAME_BYTES: Final = 64
"""What a frame without text counts for in a batch."""


class Reply:
    """One request's stream, and what had come of it when it was cut off."""

    def __init__(self, models: Models, request: ModelRequest, secrets: Secrets) -> None:
        """Take what to ask, and whom; what comes back is without `secrets` (SX-05)."""
        self.request = request
        self._models = models
        self._secrets = secrets
        self._stream: ModelStream | None = None

    async def read(self, arrived: Callable[[Frame], None]) -> ModelOutcome:
        """Play the stream to its end; raises ProviderError `no_model` when nobody offers it."""
        try:
            async with self._models.stream(self.request) as stream:
                self._stream = stream
                shown = SecretFrames(self._secrets)
                async for frame in stream:
                    for piece in shown.feed(clean_frame(frame)):
                        arrived(piece)
                return cleaned(await stream.outcome(), self._secrets)
        except Rejected as error:
            raise ProviderError("no_model", error.message) from error

    async def so_far(self) -> tuple[AssistantMessage | None, Usage | None]:
        """Answer what arrived before the cut, and what was reported by then."""
        if self._stream is None:
            return None, None
        try:
            async with asyncio.timeout(LAST_WORD_S):
                outcome = await self._stream.outcome()
        except ProviderError as error:
            partial, usage = error.partial, error.usage
        except TimeoutError:
            return None, None
        else:
            partial, usage = outcome.result, outcome.usage
        message = None
        if isinstance(partial, AssistantMessage):
            message, _ = self._secrets.message(clean_message(partial)[0])
        return message, usage if isinstance(usage, Usage) else None


class RequestSpan:
    """The span of one request or poll: model, usage, stop reason and durations (TM-05)."""

    def __init__(
        self, ctx: TaskContext, model: ModelId, *, attempt: int, poll: int | None = None
    ) -> None:
        """Open nothing yet; `poll` counts the polls of a deferred answer."""
        facts = {} if poll is None else {"poll": poll}
        self._clock = ctx.clock
        self._opened = ctx.span(
            "ai.request",
            provider=model.provider,
            model=model.model_id,
            task=ctx.task_id,
            attempt=attempt,
            **facts,
        )
        self._span: Span
        self._began_ms = 0
        self._heard = False

    def __enter__(self) -> "RequestSpan":
        """Open the span."""
        self._span = self._opened.__enter__()
        self._began_ms = self._clock.monotonic_ms()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it, with how long the request took and what class of error ended it."""
        self._span.set(duration_ms=self._clock.monotonic_ms() - self._began_ms)
        if isinstance(error, ProviderError):
            self._span.set(error=error.code)
        self._opened.__exit__(kind, error, trace)

    def hears(self, arrived: Callable[[Frame], None]) -> Callable[[Frame], None]:
        """Answer `arrived`, noting when it is first called; itself where nobody listens."""
        if self._opened is NO_SPAN:
            return arrived

        def heard(frame: Frame) -> None:
            if not self._heard:
                self._heard = True
                self._span.set(first_frame_ms=self._clock.monotonic_ms() - self._began_ms)
            arrived(frame)

        return heard

    def ended(self, outcome: ModelOutcome) -> None:
        """Tell how the request ended and what it used; what is unknown is left out."""
        if self._opened is NO_SPAN:
            return
        if isinstance(outcome.result, AssistantMessage):
            self._span.set(stop=outcome.result.stop)
        else:
            self._span.set(stop="deferred")
        if outcome.usage is None:
            return
        figures = {name: getattr(outcome.usage, name) for name in TOKENS}
        self._span.set(**{name: count for name, count in figures.items() if count is not None})
        cost = outcome.usage.cost
        if cost is not None:
            self._span.set(cost=cost.amount, currency=cost.currency)


class Frames:
    """Gather a stream's frames and store them in batches; the pump says when."""

    def __init__(self, ctx: TaskContext, *, attempt: int, poll: int) -> None:
        """Start empty, under the attempt's key (GN-38)."""
        self._ctx = ctx
        self._address = frames_of(ctx.task_id, attempt, poll)
        self._batcher = FrameBatcher()

    def add(self, frame: Frame) -> int:
        """Gather a frame; answers its size in bytes."""
        self._batcher.add(frame)
        return len(frame.delta_text) if isinstance(frame, DeltaFrame) else FRAME_BYTES

    async def flush(self) -> None:
        """Store and then show what was gathered (WS-08)."""
        batch = self._batcher.take(0)
        if batch is None:
            return

        def build(tx: WorkingCommand) -> None:
            tx.append_list(self._address, batch)

        await self._ctx.commit_working(build, shows=self._ctx.shown("frame", batch))


def cleaned(outcome: ModelOutcome, secrets: Secrets) -> ModelOutcome:
    """Answer an outcome whose message can be stored, with everything that was replaced counted."""
    if not isinstance(outcome.result, AssistantMessage):
        return outcome
    message, repairs = clean_message(outcome.result)
    message, hidden = secrets.message(message)
    if message is outcome.result:
        return outcome
    repaired = outcome.repaired + repairs + Repairs(secrets=hidden)
    return msgspec.structs.replace(outcome, result=message, repaired=repaired)


async def reduced_reply(
    reads: CommittedReads, task_id: Seq, *, attempt: int, poll: int
) -> GenerationScratch | None:
    """Answer the reply so far of a running stream, None before its first word (X22)."""
    shown = GenerationScratch()
    after: Seq | None = None
    while True:
        page = ListPage(after=after, limit=FRAMES_PAGE)
        elements = await reads.elements(frames_of(task_id, attempt, poll), page)
        for element in elements:
            shown = with_frames(shown, decode(element.value_json, FrameBatch))
        if len(elements) < FRAMES_PAGE:
            return shown if shown.parts else None
        after = elements[-1].seq


async def stored_parts(ctx: TaskContext, *, attempt: int, poll: int) -> tuple[Part, ...]:
    """Rebuild what an attempt had brought, from bounded pages (WS-11, WS-12)."""
    reducer = FrameReducer()
    address = frames_of(ctx.task_id, attempt, poll)
    after: Seq | None = None
    while True:
        page = await ctx.elements(address, ListPage(after=after, limit=FRAMES_PAGE))
        for element in page:
            reducer.add_batch(decode(element.value_json, FrameBatch))
        if len(page) < FRAMES_PAGE:
            return reducer.finished_parts()
        after = page[-1].seq
