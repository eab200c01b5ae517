"""From the vendor library's events to frames, and one request as a running stream.

The vendor's stream is read by one task of its own. The consumer takes frames from a bounded queue,
so cancelling it, or leaving early, cancels that one task, which closes the connection: no event is
pulled after that and nothing escapes (PV-06).

Frames are the only source of the reply: what is answered is what the frames add up to. Part ends
of the vendor repeat the whole part, and only its opaque data is taken from them (PV-13).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Final, Self, cast

from msgspec import UNSET
from pydantic_ai import messages as vendor
from pydantic_ai.models import StreamedResponse
from pydantic_core import to_json

from perdure.providers.mapping import Home, extra_of, opaque_of
from perdure.records.frames import DeltaFrame, EndFrame, Frame, FrameReducer, StartFrame
from perdure.records.messages import Part, TextPart, ThinkingPart, ToolCallPart
from perdure.records.models import ModelOutcome
from perdure.records.strict_json import NO_REPAIRS, Repairs, repair, repair_text

QUEUED_FRAMES_MAX: Final = 256
"""Frames that wait for a slow consumer; then the connection waits."""


LATE_ENDS: Final[Mapping[str, tuple[type, ...]]] = MappingProxyType(
    {
        "openai-chat": (vendor.ToolCallPart,),
        "openai-responses": (vendor.ThinkingPart,),
    }
)
"""Parts that end only with the reply, by wire.

The chat wire never says that a call has ended, so one that was cut off counts as never ended
(GN-45). The responses wire sends the encrypted form of reasoning after its last summary.
"""


class TextRepair:
    """Make whole characters of what a provider sends in pieces (PV-08).

    A high surrogate at the end of a piece waits for the next one; an orphan becomes U+FFFD and a
    NUL U+2400, both counted.
    """

    def __init__(self) -> None:
        """Hold nothing back."""
        self._held = ""
        self.repairs = NO_REPAIRS

    def add(self, piece: str) -> str:
        """Answer what is whole by now."""
        text = self._held + piece
        self._held = ""
        if not text or text.isascii():
            return self._repaired(text)
        if "\ud800" <= text[-1] <= "\udbff":
            self._held = text[-1]
            text = text[:-1]
        return self._repaired(_paired(text))

    def end(self) -> str:
        """Answer what was held back to the end."""
        held, self._held = self._held, ""
        return self._repaired(held)

    def _repaired(self, text: str) -> str:
        fixed, repairs = repair_text(text)
        self.repairs += repairs
        return fixed


def _paired(text: str) -> str:
    """Join surrogate pairs that arrived as two characters; orphans stay as they are."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


class _Growing:
    """A part that still grows."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.repair = TextRepair()
        self.pieces: list[str] = []

    @property
    def raw(self) -> str:
        """Join what the vendor sent so far."""
        return "".join(self.pieces)


class FrameMaker:
    """Turn vendor events into frames, and keep what they add up to."""

    def __init__(self, home: Home) -> None:
        """Start with no part."""
        self._home = home
        self._late = LATE_ENDS.get(home.api, ())
        self._growing: dict[int, _Growing] = {}
        self._ended: list[_Growing] = []
        self._call_ids: set[str] = set()
        self._count = 0
        self.reducer = FrameReducer()

    @property
    def repairs(self) -> Repairs:
        """Count the repairs of all parts so far."""
        total = NO_REPAIRS
        for part in (*self._ended, *self._growing.values()):
            total += part.repair.repairs
        return total

    def frames(self, event: vendor.ModelResponseStreamEvent) -> Iterator[Frame]:
        """Answer the frames of one event."""
        match event:
            case vendor.PartStartEvent(index=index, part=part):
                yield from self._start(index, part)
            case vendor.PartDeltaEvent(index=index, delta=delta):
                yield from self._grow(index, _delta_text(delta))
            case vendor.PartEndEvent(index=index, part=part) if index in self._growing:
                if not isinstance(part, self._late):
                    yield from self._end(index, part)
            case _:
                pass

    def whole(self, response: vendor.ModelResponse) -> Iterator[Frame]:
        """Answer the frames of a response that came in one piece."""
        for index, part in enumerate(response.parts):
            yield from self._start(index, part)
        yield from self.finish(response)

    def finish(self, response: vendor.ModelResponse) -> Iterator[Frame]:
        """End what is still open, once the vendor's stream came to its end."""
        for index in tuple(self._growing):
            part = response.parts[index] if index < len(response.parts) else None
            yield from self._end(index, part)

    def _start(self, index: int, part: vendor.ModelResponsePart) -> Iterator[Frame]:
        known = self._growing.get(index)
        if known is not None:
            # The vendor replaces a part it started; what it holds more than before is added.
            text, had = _part_text(part), known.raw
            yield from self._grow(index, text[len(had) :] if text.startswith(had) else "")
            return
        empty = self._empty(part)
        growing = _Growing(self._count)
        self._count += 1
        self._growing[index] = growing
        yield self._kept(StartFrame(part_index=growing.index, part=empty))
        yield from self._grow(index, _part_text(part))

    def _empty(self, part: vendor.ModelResponsePart) -> Part:
        match part:
            case vendor.TextPart():
                return TextPart(text="")
            case vendor.ThinkingPart():
                redacted = not part.content and part.id == "redacted_thinking"
                return ThinkingPart(text="", redacted=redacted)
            case vendor.ToolCallPart():
                name = repair_text(part.tool_name)[0]
                return ToolCallPart(call_id=self._call_id(part), name=name, args_text="")
            case _:
                return opaque_of(part, self._home)

    def _call_id(self, part: vendor.ToolCallPart) -> str:
        """Answer the call's id, made unique: some servers repeat one in a reply."""
        wanted = unique = repair_text(part.tool_call_id)[0]
        number = 2
        while unique in self._call_ids:
            unique, number = f"{wanted}_{number}", number + 1
        self._call_ids.add(unique)
        return unique

    def _grow(self, index: int, piece: str) -> Iterator[Frame]:
        growing = self._growing.get(index)
        if growing is None or not piece:
            return
        growing.pieces.append(piece)
        text = growing.repair.add(piece)
        if text:
            yield self._kept(DeltaFrame(part_index=growing.index, delta_text=text))

    def _end(self, index: int, part: object) -> Iterator[Frame]:
        growing = self._growing.pop(index)
        self._ended.append(growing)
        rest = growing.repair.end()
        if rest:
            yield self._kept(DeltaFrame(part_index=growing.index, delta_text=rest))
        if isinstance(part, vendor.ToolCallPart):
            growing.repair.repairs += _escaped_repairs(growing.raw)
        extra = UNSET if part is None else extra_of(cast("object", part), self._home)
        yield self._kept(EndFrame(part_index=growing.index, x=extra))

    def _kept(self, frame: Frame) -> Frame:
        self.reducer.add(frame)
        return frame


def _escaped_repairs(raw: str) -> Repairs:
    r"""Count the orphans and NULs that arguments hold as escapes; parsing repairs them."""
    if "\\u" not in raw:
        return NO_REPAIRS
    try:
        return repair(json.loads(raw))[1]
    except (ValueError, RecursionError):
        return NO_REPAIRS


def _delta_text(delta: object) -> str:
    match delta:
        case vendor.TextPartDelta() | vendor.ThinkingPartDelta():
            return delta.content_delta or ""
        case vendor.ToolCallPartDelta():
            return _arguments(delta.args_delta)
        case _:
            return ""


def _part_text(part: vendor.ModelResponsePart) -> str:
    match part:
        case vendor.TextPart() | vendor.ThinkingPart():
            return part.content
        case vendor.ToolCallPart():
            return _arguments(part.args)
        case _:
            return ""


def _arguments(args: object) -> str:
    if args is None:
        return ""
    return args if isinstance(args, str) else to_json(args).decode()


class Running:
    """One request under way; an async context manager that is its own stream."""

    def __init__(
        self,
        play: Callable[["Running"], Awaitable[ModelOutcome]],
        stopped: Callable[[StreamedResponse | None, BaseException | None], BaseException],
    ) -> None:
        """Take what plays the request, and what explains an end that is no reply."""
        self._play = play
        self._stopped = stopped
        self._queue: asyncio.Queue[Frame | None] = asyncio.Queue(QUEUED_FRAMES_MAX)
        self._task: asyncio.Task[ModelOutcome] | None = None
        self._drained = False
        self._left = False
        self.vendor: StreamedResponse | None = None

    async def __aenter__(self) -> Self:
        """Start the request."""
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection when the reply has not come to its end."""
        self._left = True
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task})
        if task is not None and task.done() and not task.cancelled():
            task.exception()  # seen, also when nobody asks for the outcome

    async def put(self, frame: Frame) -> None:
        """Hand a frame to the consumer; wait while it is slow."""
        await self._queue.put(frame)

    def __aiter__(self) -> AsyncIterator[Frame]:
        """Iterate over the frames that are left."""
        return self

    async def __anext__(self) -> Frame:
        """Answer the next frame."""
        if self._drained or self._left:
            raise StopAsyncIteration
        frame = await self._queue.get()
        if frame is None:
            self._drained = True
            raise StopAsyncIteration
        return frame

    async def outcome(self) -> ModelOutcome:
        """Answer the reply or handle; raises ProviderError with partial and usage."""
        async for _ in self:
            pass
        task = self._task
        if task is None or task.cancelled():
            raise self._stopped(self.vendor, None)
        try:
            return await asyncio.shield(task)
        except Exception as error:
            raise self._stopped(self.vendor, error) from error

    async def _run(self) -> ModelOutcome:
        try:
            return await self._play(self)
        finally:
            # A full queue means that nobody reads any more, or that the reader will come to its
            # end after what it still has to read.
            if not self._left:
                await self._queue.put(None)
