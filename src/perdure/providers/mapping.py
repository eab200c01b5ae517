"""Between perdure's messages and the vendor library's, both ways, byte-stable (PV-18, PV-19).

What a provider needs back of its own parts (signatures, encrypted reasoning, item ids) travels in
`x` and returns unaltered, or not at all: to the same provider and wire only, and thinking to the
same model family only. When the thinking of a message is left out, so is the rest of that
message's `x`, because an item id without the reasoning it came from is refused.

Invariants: the same messages give the same bytes, whatever was asked before or after them; nothing
is sent that a provider would refuse for its form.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final, cast

from msgspec import UNSET, Struct, UnsetType
from pydantic_ai import messages as vendor
from pydantic_ai.usage import RequestUsage

from perdure.providers.failures import RefusedBlock
from perdure.records.codec import decode_json, to_raw
from perdure.records.entries import ModelId
from perdure.records.messages import (
    AssistantMessage,
    Extra,
    ImagePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from perdure.records.strict_json import repair

ADAPTER_VERSION: Final = 1
"""Version of what `x` holds; a later adapter reads all earlier ones."""

UNPARSED: Final = "unparsed_arguments"
"""Key under which arguments that did not parse go back: every wire wants an object."""

SNAPSHOT: Final = re.compile(r"(?:-\d{8}|-\d{4}-\d{2}-\d{2}|-latest|@.*)$")
"""The dated end of a model's name; without it the name is the model's family."""

KEPT: Final = ("id", "signature", "provider_name", "provider_details")
"""What is kept of a vendor part beside its content."""


class Home(Struct, frozen=True, kw_only=True):
    """Where a request goes: the only place that gets its own `x` back.

    Attributes:
        model: provider and model as perdure names them.
        api: the wire.
        vendor_name: what the vendor library calls the provider.
        url: the endpoint.
        signed: thinking goes back only with the provider's signature.
        sees: the model takes images; else each becomes a text that says so (PV-20).
    """

    model: ModelId
    api: str
    vendor_name: str
    url: str
    signed: bool
    sees: bool = True


Block = tuple[int, int | None]
"""Message index and part index; None is a whole tool result."""


class Mapped(Struct, frozen=True, kw_only=True):
    """A projection in the vendor's form, and where each of its blocks came from."""

    messages: list[vendor.ModelMessage]
    blocks: list[list[Block]]


def family(model_id: str) -> str:
    """Name a model's family: its name without the dated end."""
    return SNAPSHOT.sub("", model_id)


def to_vendor(messages: Sequence[Message], home: Home) -> Mapped:
    """Map a projection; neighbouring tool results share one vendor message, others stand alone."""
    mapped: list[vendor.ModelMessage] = []
    blocks: list[list[Block]] = []
    results: vendor.ModelRequest | None = None
    for index, message in enumerate(messages):
        if isinstance(message, ToolResultMessage):
            part = _result(message, home)
            if results is None:
                results = vendor.ModelRequest(parts=[part])
                mapped.append(results)
                blocks.append([(index, None)])
            else:
                results.parts = [*results.parts, part]
                blocks[-1].append((index, None))
            continue
        results = None
        if isinstance(message, UserMessage):
            one, places = _user(message, home)
        else:
            one, places = _reply(message, home)
        if one is not None:
            mapped.append(one)
            blocks.append([(index, place) for place in places])
    return Mapped(messages=mapped, blocks=blocks)


def _user(message: UserMessage, home: Home) -> tuple[vendor.ModelMessage | None, list[int]]:
    content: list[vendor.UserContent] = []
    places: list[int] = []
    for place, part in enumerate(message.content):
        item = _content(part, home)
        if item is not None:
            content.append(item)
            places.append(place)
    if not content:
        return None, []
    return vendor.ModelRequest(parts=[vendor.UserPromptPart(content=content)]), places


def _content(part: Part, home: Home) -> str | vendor.BinaryContent | None:
    match part:
        case TextPart(text=text):
            return text or None
        case ImagePart(mime=mime) if not home.sees:
            return f"[an image ({mime}), which this model cannot see]"
        case ImagePart(mime=mime, data=data) if data is not UNSET:
            return vendor.BinaryContent(data=base64.b64decode(data), media_type=mime)
        case ImagePart(mime=mime):
            return f"[an image ({mime}) that could not be read]"
        case _:
            return None


def _result(message: ToolResultMessage, home: Home) -> vendor.ToolReturnPart[Any]:
    mapped = [_content(part, home) for part in message.content]
    content = [item for item in mapped if item is not None]
    texts = [item for item in content if isinstance(item, str)]
    whole = "\n".join(texts) if len(texts) == len(content) else content
    return vendor.ToolReturnPart(
        tool_name=message.tool_name,
        content=whole,
        tool_call_id=message.call_id,
        outcome="failed" if message.is_error else "success",
    )


def _reply(message: AssistantMessage, home: Home) -> tuple[vendor.ModelMessage | None, list[int]]:
    own = message.api == home.api and message.model.provider == home.model.provider
    kin = own and family(message.model.model_id) == family(home.model.model_id)
    thinking = _returning(message.content, home) if kin else frozenset[int]()
    whole = own and all(
        place in thinking
        for place, part in enumerate(message.content)
        if isinstance(part, ThinkingPart)
    )
    # A reply that was cut off may lack the reasoning that an id of it refers to.
    linked = whole and message.stop not in ("error", "aborted")
    parts: list[vendor.ModelResponsePart] = []
    places: list[int] = []
    for place, part in enumerate(message.content):
        if isinstance(part, ThinkingPart):
            one = _thought(part, home) if whole and place in thinking else None
        else:
            one = _reply_part(part, home if linked else None)
        if one is not None:
            parts.append(one)
            places.append(place)
    if not parts:
        return None, []
    response = vendor.ModelResponse(
        parts=parts,
        model_name=message.model.model_id,
        provider_name=home.vendor_name if own else None,
        provider_url=home.url if own else None,
    )
    return response, places


def _returning(content: Sequence[Part], home: Home) -> frozenset[int]:
    """Answer the places of thinking that came to its end, with the proof its wire wants back.

    Several parts may be one item of the provider; the proof then stands in one of them.
    """
    kept = {
        place: _kept(part.x, home)
        for place, part in enumerate(content)
        if isinstance(part, ThinkingPart)
    }
    signed = {facts.get("id") for facts in kept.values() if facts.get("signature")} - {None}
    return frozenset(
        place
        for place, facts in kept.items()
        if facts and (not home.signed or facts.get("signature") or facts.get("id") in signed)
    )


def _kept(x: Extra | UnsetType, home: Home | None) -> dict[str, Any]:
    if x is UNSET or home is None:
        return {}
    if x.provider_name != home.model.provider or x.api_name != home.api:
        return {}
    kept = decode_json(x.opaque_data)
    return cast("dict[str, Any]", kept) if isinstance(kept, dict) else {}


def _thought(part: ThinkingPart, home: Home) -> vendor.ModelResponsePart:
    return vendor.ThinkingPart(content=part.text, **_kept(part.x, home))


def _reply_part(part: Part, home: Home | None) -> vendor.ModelResponsePart | None:
    match part:
        case TextPart(text=text, x=x) if text:
            kept = {key: value for key, value in _kept(x, home).items() if key != "signature"}
            return vendor.TextPart(content=text, **kept)
        case ToolCallPart(call_id=call_id, name=name, x=x):
            kept = {key: value for key, value in _kept(x, home).items() if key != "signature"}
            return vendor.ToolCallPart(
                tool_name=name, args=arguments_text(part), tool_call_id=call_id, **kept
            )
        case _:
            return None


def arguments_text(part: ToolCallPart) -> str:
    """Write a call's arguments as JSON of an object, also when they did not parse."""
    args = {UNPARSED: part.args_text or ""} if part.args is UNSET else dict(part.args)
    return json.dumps(args, ensure_ascii=False, separators=(",", ":"))


def refused_part(
    refused: RefusedBlock, mapped: Mapped, messages: Sequence[Message], *, offset: int
) -> tuple[int, int] | None:
    """Find the part of ours that a server's block number means; None when it is not certain.

    `offset` is how many messages the wire puts before the first mapped one.
    """
    at = refused.message - offset
    if not 0 <= at < len(mapped.blocks) or refused.block >= len(mapped.blocks[at]):
        return None
    index, place = mapped.blocks[at][refused.block]
    if place is None:
        place = refused.inner
    if place is None or place >= len(messages[index].content):
        return None
    return index, place


# ------------------------------------------------------------------------------ back to ours


def extra_of(part: object, home: Home) -> Extra | UnsetType:
    """Gather what the provider wants back; times, bytes and objects become text (PV-11)."""
    kept: dict[str, object] = {}
    for name in KEPT:
        value = getattr(part, name, None)
        if value is not None:
            kept[name] = plain(value)
    return _extra(kept, home) if kept else UNSET


def opaque_of(part: object, home: Home) -> OpaquePart:
    """Keep a part of a kind perdure has no word for; it is projected as nothing (FM-04)."""
    names = getattr(part, "__dataclass_fields__", ())
    return OpaquePart(x=_extra({name: plain(getattr(part, name, None)) for name in names}, home))


def _extra(kept: Mapping[str, object], home: Home) -> Extra:
    return Extra(
        provider_name=home.model.provider,
        api_name=home.api,
        adapter_version=ADAPTER_VERSION,
        opaque_data=to_raw(repair(kept)[0]),
    )


def plain(value: object) -> object:
    """Turn times into ISO text and bytes into base64, at any depth; `repair` does the rest."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {str(key): plain(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("Sequence[object]", value)]
    return value


def usage_of(reported: RequestUsage, *, finished: bool) -> Usage | None:
    """Normalise a report: `input` without cache, what cannot be right or is not known is None.

    A stream that did not finish has reported at most its input side (PV-12, PV-14).
    """
    if reported.unmeasured_requests or not reported.has_values():
        return None
    read, written = reported.cache_read_tokens, reported.cache_write_tokens
    fresh = reported.input_tokens - read - written
    reasoning = reported.details.get("reasoning_tokens")
    return Usage(
        input=fresh if fresh >= 0 else None,
        output=_count(reported.output_tokens) if finished else None,
        cache_read=_count(read),
        cache_write=_count(written),
        reasoning=_count(reasoning) if finished and reasoning is not None else None,
    )


def _count(tokens: int) -> int | None:
    return tokens if tokens >= 0 else None
