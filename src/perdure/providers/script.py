"""What a scripted model's replies are made of (PV-25).

A reply is frames, then an end. Event `k` is frame `k`; the event after the last frame (also written
`END`) is the end. Before any event there may be a delay on the injected clock, a gate to wait at,
or an exception; a `Failure` ends the reply at an event the way a provider would.

`say`, `call`, `think` and `fail` write the usual replies in one line. Text goes out as it was
written, lone surrogates included: a script may play a provider that sends them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from msgspec import UNSET, Struct

from perdure.errors import FailureCode, ProviderError
from perdure.records.codec import encode
from perdure.records.frames import DeltaFrame, EndFrame, Frame, StartFrame
from perdure.records.messages import (
    AssistantMessage,
    Part,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from perdure.records.models import ModelRequest

END: Final = -1
"""The event after the last frame, in gates, delays, exceptions and failures."""

UNLIMITED: Final = 0
"""A reply that may be taken any number of times."""

Gate: TypeAlias = Callable[[], Awaitable[object]]
"""Something to wait at, such as `event.wait`."""

_NOTHING: Final[Mapping[int, Any]] = MappingProxyType({})


class Failure(Struct, frozen=True, kw_only=True):
    """How a provider fails: the facts of a `ProviderError`, and the event it takes the place of."""

    code: FailureCode
    message: str = "the script says so"
    status: int | None = None
    retry_after_ms: int | None = None
    window: int | None = None
    refused: tuple[int, int] | None = None
    at: int = 0

    def error(
        self, *, partial: AssistantMessage | None = None, usage: Usage | None = None
    ) -> ProviderError:
        """Make the exception, with what had arrived."""
        return ProviderError(
            self.code,
            self.message,
            status=self.status,
            retry_after_ms=self.retry_after_ms,
            partial=partial,
            usage=usage,
            window=self.window,
            refused=self.refused,
        )


class Deferred(Struct, frozen=True, kw_only=True):
    """Answer with a handle, and with the reply only after `polls` polls that say "still pending".

    `failures` and `gates` are keyed by poll number, counted from 1; a failed poll counts.
    """

    polls: int = 0
    handle_id: str = ""
    poll_after_ms: int | None = None
    expires_at_ms: int | None = None
    failures: Mapping[int, Failure] = _NOTHING
    gates: Mapping[int, Gate] = _NOTHING


class Reply(Struct, frozen=True, kw_only=True):
    """One scripted reply.

    Attributes:
        parts: what the model says; a call without `call_id` gets one made from task and attempt.
        usage: what is reported with the end or the failure; None reports nothing.
        usage_early: what is already known when the reply is cut off before its end.
        stop: the stop reason; None derives it from the parts (PV-07).
        stop_detail: the vendor's word.
        failure: how and where the reply fails.
        chunk: characters a delta; 0 sends each part in one.
        frames: exact frames to send in place of those made from `parts`.
        delay_ms: wait before every delta.
        delays_ms, gates, raises: by event: wait, wait at a gate, raise.
        deferred: answer later.
        when: take this reply only for a request whose newest text holds these words.
        uses: how often it may be taken; `UNLIMITED` for any number.
    """

    parts: tuple[Part, ...] = ()
    usage: Usage | None = None
    usage_early: Usage | None = None
    stop: StopReason | None = None
    stop_detail: str | None = None
    failure: Failure | None = None
    chunk: int | None = None
    frames: tuple[Frame, ...] | None = None
    delay_ms: int = 0
    delays_ms: Mapping[int, int] = _NOTHING
    gates: Mapping[int, Gate] = _NOTHING
    raises: Mapping[int, BaseException] = _NOTHING
    deferred: Deferred | None = None
    when: str | None = None
    uses: int = 1

    @property
    def plays_straight(self) -> bool:
        """Say that no event of it waits, raises or fails."""
        return not (self.failure or self.delay_ms or self.delays_ms or self.gates or self.raises)


Script: TypeAlias = Sequence[Reply] | Callable[[ModelRequest], Reply | str]


def say(*pieces: str | Part, usage: Usage | None = None, **rest: Any) -> Reply:
    """Make a reply of texts and parts; `rest` are other fields of `Reply`."""
    parts = tuple(TextPart(text=piece) if isinstance(piece, str) else piece for piece in pieces)
    return Reply(parts=parts, usage=usage, **rest)


def call(
    name: str,
    args: Mapping[str, Any] | None = None,
    *,
    call_id: str = "",
    args_text: str | None = None,
) -> ToolCallPart:
    """Make a call; `args_text` is raw argument text, which the strict parser judges."""
    if args_text is not None:
        return ToolCallPart(call_id=call_id, name=name, args_text=args_text)
    return ToolCallPart(call_id=call_id, name=name, args=dict(args or {}))


def think(text: str) -> ThinkingPart:
    """Make a thinking part."""
    return ThinkingPart(text=text)


def fail(code: FailureCode, *pieces: str | Part, **facts: Any) -> Reply:
    """Make a reply that fails; with pieces, after all of them. `facts` are fields of `Failure`."""
    facts.setdefault("at", END if pieces else 0)
    return say(*pieces, failure=Failure(code=code, **facts))


def newest_text(request: ModelRequest) -> str:
    """Join the texts of everything after the last assistant message."""
    texts: list[str] = []
    for message in reversed(request.messages):
        if not isinstance(message, UserMessage | ToolResultMessage):
            break
        texts.append("".join(part.text for part in message.content if isinstance(part, TextPart)))
    return "\n".join(reversed(texts))


def frames_of(parts: Sequence[Part], chunk: int = 0) -> tuple[Frame, ...]:
    """Cut parts into frames: a start, deltas of `chunk` characters (0: one), an end."""
    frames: list[Frame] = []
    for index, part in enumerate(parts):
        start, text = _opened(part)
        frames.append(StartFrame(part_index=index, part=start))
        step = chunk if chunk > 0 else len(text)
        frames.extend(
            DeltaFrame(part_index=index, delta_text=text[at : at + step])
            for at in range(0, len(text), step or 1)
        )
        carried = isinstance(part, TextPart | ThinkingPart | ToolCallPart)
        frames.append(EndFrame(part_index=index, x=part.x if carried else UNSET))
    return tuple(frames)


def _opened(part: Part) -> tuple[Part, str]:
    match part:
        case TextPart(text=text):
            return TextPart(text=""), text
        case ThinkingPart(text=text, redacted=redacted):
            return ThinkingPart(text="", redacted=redacted), text
        case ToolCallPart(call_id=call_id, name=name, args=args, args_text=args_text):
            raw = encode(args).decode() if args is not UNSET else (args_text or "")
            return ToolCallPart(call_id=call_id, name=name, args_text=""), raw
        case _:
            return part, ""
