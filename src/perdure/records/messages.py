"""Messages, their parts, payloads of entries, usage: the stored schema 1 (FM-03 to FM-08).

A part is text, image, thinking, toolCall or opaque. `x` carries what one provider needs back
(signatures, item ids) and is never read by the engine (FM-05). A part of a type this release
does not know is kept byte for byte and projected as nothing (FM-04).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.errors import FailureCode, Rejected
from perdure.records.codec import decode, decode_json, decoder, encode, to_raw
from perdure.records.entries import ModelId
from perdure.records.names import stored
from perdure.records.seqs import Seq
from perdure.records.strict_json import NO_REPAIRS, Repairs, repair_text

StopReason: TypeAlias = Literal["stop", "length", "toolUse", "error", "aborted"]

ARGS_TEXT_BYTES_MAX: Final = 65_536
"""Longest raw argument text kept when it does not parse (FM-06)."""

TOKEN_CHARACTERS: Final = 4
"""Characters that an estimate takes for one token (D15)."""

IMAGE_TOKENS: Final = 1_200
"""Tokens that an estimate takes for an image, whatever its size (D15)."""


class Extra(Struct, frozen=True, gc=False, kw_only=True, rename=stored):
    """Opaque provider data of a part: provider, wire, adapter version, any JSON (FM-05)."""

    provider_name: str
    api_name: str
    adapter_version: int
    opaque_data: Raw


class TextPart(
    Struct, frozen=True, gc=False, kw_only=True, tag="text", tag_field="type", omit_defaults=True
):
    """Text."""

    text: str
    x: Extra | UnsetType = UNSET


class ImagePart(
    Struct, frozen=True, gc=False, kw_only=True, tag="image", tag_field="type", omit_defaults=True
):
    """An image: at most 5 MiB decoded; bytes as base64, or a blob named by `sha256` (BR-14)."""

    mime: str
    sha256: str
    data: str | UnsetType = UNSET
    blob: Literal[True] | UnsetType = UNSET


class ThinkingPart(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="thinking",
    tag_field="type",
    omit_defaults=True,
):
    """Reasoning a model showed; goes back to the same model family only (PV-18)."""

    text: str
    redacted: bool = False
    x: Extra | UnsetType = UNSET


class ToolCallPart(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="toolCall",
    tag_field="type",
    omit_defaults=True,
    rename=stored,
):
    """A call: exactly one of `args` (parsed strictly) and `args_text` (did not parse) (FM-06)."""

    call_id: str
    name: str
    args: Mapping[str, Any] | UnsetType = UNSET
    args_text: str | UnsetType = UNSET
    x: Extra | UnsetType = UNSET


class OpaquePart(
    Struct, frozen=True, gc=False, kw_only=True, tag="opaque", tag_field="type", omit_defaults=True
):
    """A part unknown to this release: kept, shown as unsupported, projected as nothing."""

    x: Extra


Part: TypeAlias = TextPart | ImagePart | ThinkingPart | ToolCallPart | OpaquePart


class UserMessage(
    Struct, frozen=True, gc=False, kw_only=True, tag="user", tag_field="role", omit_defaults=True
):
    """What a person or program said; `timestamp` is wall milliseconds, 0 while not yet accepted."""

    content: tuple[Part, ...]
    timestamp: int = 0


class MessageError(Struct, frozen=True, gc=False, kw_only=True):
    """Why an assistant message ended in error."""

    code: FailureCode
    message: str


class AssistantMessage(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="assistant",
    tag_field="role",
    omit_defaults=True,
    rename=stored,
):
    """What a model answered; `stop` comes from the parts, `stop_detail` is the vendor's word."""

    content: tuple[Part, ...]
    api: str
    model: ModelId
    response_id: str | UnsetType = UNSET
    stop: StopReason
    stop_detail: str | UnsetType = UNSET
    error: MessageError | UnsetType = UNSET
    timestamp: int = 0

    @property
    def text(self) -> str:
        """Join the text parts in order."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """Answer the calls in source order."""
        return tuple(part for part in self.content if isinstance(part, ToolCallPart))


class Cut(Struct, frozen=True, gc=False, kw_only=True):
    """Say that a result was capped: true size in bytes, and which end was kept."""

    bytes: int
    kept: Literal["head", "tail"]


class ToolResultMessage(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="toolResult",
    tag_field="role",
    omit_defaults=True,
    rename=stored,
):
    """What the model is told about one call."""

    call_id: str
    tool_name: str
    content: tuple[Part, ...]
    details: Raw | UnsetType = UNSET
    is_error: bool
    cut: Cut | UnsetType = UNSET
    checkpoint: Raw | UnsetType = UNSET


Message: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage


class UserPayload(Struct, frozen=True, gc=False, kw_only=True):
    """Payload of `user` and `input` entries."""

    v: Literal[1] = 1
    messages: tuple[UserMessage, ...]


class AssistantPayload(Struct, frozen=True, gc=False, kw_only=True):
    """Payload of `assistant` entries."""

    v: Literal[1] = 1
    message: AssistantMessage


class ToolResultPayload(Struct, frozen=True, gc=False, kw_only=True):
    """Payload of `tool_result` and `call_result` entries."""

    v: Literal[1] = 1
    message: ToolResultMessage


class SummaryPayload(Struct, frozen=True, gc=False, kw_only=True):
    """Payload of `summary` entries: summaries and notes."""

    v: Literal[1] = 1
    text: str


class JobExit(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How a job's command ended: exactly one of the three."""

    code: int | UnsetType = UNSET
    signal: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


class JobLog(Struct, frozen=True, gc=False, kw_only=True):
    """A job's whole output: its size in bytes, and the folder below the store that has it."""

    bytes: int
    dir: str


class JobResultPayload(Struct, frozen=True, gc=False, kw_only=True):
    """Payload of `job_result` entries; `exit` is null for a job nobody saw end."""

    v: Literal[1] = 1
    exit: JobExit | None
    content: tuple[TextPart, ...]
    log: JobLog


class Cost(Struct, frozen=True, gc=False, kw_only=True):
    """A price: decimal text, currency, and the date of the price table."""

    amount: str
    currency: str
    prices: str


class Usage(Struct, frozen=True, gc=False, kw_only=True, rename=stored):
    """What one attempt used, as reported; None is unknown, never zero (FM-08, PV-14).

    `input` excludes cached tokens; `reasoning` is part of `output`.
    """

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    cost: Cost | None = None


class UsageElement(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=stored):
    """One element of the list `perdure.usage`; an adjustment names the report it corrects (D25)."""

    v: Literal[1]
    task: Seq
    conv_id: Seq
    attempt: int
    kind: Literal["report", "adjust"]
    of: Seq | UnsetType = UNSET
    model: ModelId | UnsetType = UNSET
    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    reasoning: int | None
    cost: Cost | None


P = TypeVar("P", UserPayload, AssistantPayload, ToolResultPayload)
Payload: TypeAlias = (
    UserPayload | AssistantPayload | ToolResultPayload | SummaryPayload | JobResultPayload
)

PAYLOADS: Final[Mapping[str, type[Payload]]] = MappingProxyType(
    {
        "user": UserPayload,
        "input": UserPayload,
        "assistant": AssistantPayload,
        "tool_result": ToolResultPayload,
        "call_result": ToolResultPayload,
        "job_result": JobResultPayload,
        "summary": SummaryPayload,
    }
)
"""The payload of each kind of entry that perdure itself writes (FM-03)."""


def read_payload(data: Raw, kind: type[P]) -> P:
    """Decode a payload; what is no part of this release becomes an `OpaquePart` (FM-04).

    Such a part's own bytes, unchanged, are the `opaque_data` of its `x`, whose provider is "".

    Raises:
        msgspec.ValidationError: when the payload is not of this kind.
    """
    try:
        return decode(data, kind)
    except msgspec.ValidationError:
        return decode(_with_opaque_parts(data), kind)


def _with_opaque_parts(payload: Raw) -> Raw:
    fields = decode(payload, dict[str, Raw])
    if "message" in fields:
        fields["message"] = _with_known_parts(fields["message"])
    if "messages" in fields:
        messages = decode(fields["messages"], list[Raw])
        fields["messages"] = to_raw([_with_known_parts(message) for message in messages])
    return to_raw(fields)


def _with_known_parts(message: Raw) -> Raw:
    fields = decode(message, dict[str, Raw])
    if "content" in fields:
        parts = decode(fields["content"], list[Raw])
        fields["content"] = to_raw([_known_part(part) for part in parts])
    return to_raw(fields)


def _known_part(part: Raw) -> Raw:
    try:
        decoder(Part).decode(part)
    except msgspec.ValidationError:
        x = Extra(provider_name="", api_name="", adapter_version=0, opaque_data=part)
        return to_raw(OpaquePart(x=x))
    return part


def check_payload(payload: Raw, kind: type[Payload]) -> None:
    """Refuse a payload that has not exactly the fields of its kind in version 1 (FM-03, FM-06).

    Raises:
        Rejected: `invariant`, naming what is missing, unknown or twofold.
    """
    try:
        record = decode(payload, kind)
    except msgspec.MsgspecError as error:
        raise Rejected("invariant", f"this is no {kind.__name__}: {error}") from None
    if decode_json(payload) != decode_json(to_raw(record)):
        raise Rejected(
            "invariant",
            f"this {kind.__name__} has a field that version 1 does not know, or spells out a "
            f"default; it would be stored as {encode(record)[:200]!r}",
        )
    if isinstance(record, AssistantPayload):
        for call in record.message.calls:
            if (call.args is UNSET) == (call.args_text is UNSET):
                raise Rejected(
                    "invariant", f"the call {call.call_id!r} has not exactly one of args, argsText"
                )
    if isinstance(record, JobResultPayload) and record.exit is not None:
        told = [name for name in ("code", "signal", "error") if _has(record.exit, name)]
        if len(told) != 1:
            raise Rejected(
                "invariant", f"a job's exit is one of code, signal and error, not {told}"
            )


def _has(record: Struct, name: str) -> bool:
    return getattr(record, name) is not UNSET


InputContent: TypeAlias = str | UserMessage | Sequence[UserMessage]
"""What a person or program may hand over as input (D19)."""


def normalize_input(
    content: InputContent, *, now_ms: int = 0
) -> tuple[tuple[UserMessage, ...], Repairs]:
    """Make an input's messages, with repaired texts, and count the repairs (D19, VD-16).

    A text is one message; text is not trimmed. A message that has no time yet gets `now_ms`.

    Raises:
        Rejected: `invariant`, for no message, an empty one, another role, or a part that only a
            model makes.
    """
    if isinstance(content, str):
        given: Sequence[object] = (text_message(content),)
    elif isinstance(content, UserMessage):
        given = (content,)
    else:
        given = _listed(content)
    repaired = [_normal_message(message, now_ms) for message in given]
    total = sum((repairs for _, repairs in repaired), NO_REPAIRS)
    return tuple(message for message, _ in repaired), total


def _listed(content: object) -> Sequence[object]:
    if not isinstance(content, list | tuple):
        raise Rejected(
            "invariant",
            f"an input of type {type(content).__name__}; an input is a text, a user message, or "
            f"a list of user messages",
        )
    if not content:
        raise Rejected("invariant", "an empty list is no input; give at least one user message")
    return cast("Sequence[object]", content)


def _normal_message(message: object, now_ms: int) -> tuple[UserMessage, Repairs]:
    if not isinstance(message, UserMessage):
        raise Rejected(
            "invariant",
            f"a {type(message).__name__} is no input; every message of an input has the role user",
        )
    total = NO_REPAIRS
    parts: list[Part] = []
    for part in message.content:
        if isinstance(part, TextPart):
            text, repairs = repair_text(part.text)
            total += repairs
            part = msgspec.structs.replace(part, text=text)  # noqa: PLW2901 - the same part, clean
        elif not isinstance(part, ImagePart | OpaquePart):
            raise Rejected(
                "invariant",
                f"a {type(part).__name__} in a user message; a person says texts and images",
            )
        parts.append(part)
    if not any(isinstance(part, ImagePart) or _says_something(part) for part in parts):
        raise Rejected("invariant", "an input without text or image; say something")
    timestamp = message.timestamp or now_ms
    return UserMessage(content=tuple(parts), timestamp=timestamp), total


def _says_something(part: Part) -> bool:
    return isinstance(part, TextPart) and part.text != ""


def text_message(text: str, timestamp: int = 0) -> UserMessage:
    """Make a user message of one text."""
    return UserMessage(content=(TextPart(text=text),), timestamp=timestamp)


def estimated_tokens(parts: Sequence[Part]) -> int:
    """Estimate tokens: characters / 4 rounded up, arguments as their JSON, 1,200 an image (D15)."""
    characters = images = 0
    for part in parts:
        match part:
            case TextPart(text=text) | ThinkingPart(text=text):
                characters += len(text)
            case ToolCallPart(name=name, args=args, args_text=text):
                characters += len(name)
                if args is not UNSET:
                    characters += len(encode(args).decode())
                elif text is not UNSET:
                    characters += len(text)
            case ImagePart():
                images += 1
            case OpaquePart():
                pass
    return -(-characters // TOKEN_CHARACTERS) + IMAGE_TOKENS * images
