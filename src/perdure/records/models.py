"""What crosses the `Models` port: requests, outcomes, handles, what a model can do."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.errors import Rejected
from perdure.records.codec import EMPTY_OBJECT
from perdure.records.entries import ModelId
from perdure.records.messages import AssistantMessage, Message, Usage
from perdure.records.names import stored
from perdure.records.seqs import Seq
from perdure.records.settings import ThinkingLevel
from perdure.records.strict_json import NO_REPAIRS, Repairs


def parse_model(text: str) -> ModelId:
    """Split `provider:model` at the first colon (PV-02).

    Raises:
        Rejected: `invariant`, when there is no colon or a side is empty.
    """
    provider, colon, name = text.partition(":")
    if not colon or not provider or not name:
        raise Rejected(
            "invariant",
            f"the model {text!r} is not of the form provider:model, "
            f"such as local:smollm2 or anthropic:claude-sonnet-4-5",
        )
    return ModelId(provider=provider, model_id=name)


class ToolSpec(Struct, frozen=True, gc=False, kw_only=True):
    """A tool as a model is offered it; `parameters` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class TokenPrice(Struct, frozen=True, gc=False, kw_only=True):
    """What a million tokens cost, as decimal texts: fresh input, and output."""

    input_price: str
    output_price: str
    currency: str = "USD"


class ModelInfo(Struct, frozen=True, gc=False, kw_only=True):
    """What a model can do; None is unknown, never a guess."""

    model: ModelId
    context_window: int | None = None
    output_limit: int | None = None
    images: bool = False
    thinking: tuple[ThinkingLevel, ...] = ()
    deferred: bool = False
    price: TokenPrice | None = None


class ModelRequest(Struct, frozen=True, gc=False, kw_only=True):
    """One provider request: projection, system prompt, tools and options; nothing else (GN-07).

    `messages` is read-only and may share its store with other requests. `cache_key` is equal for
    all requests of a conversation (GN-46). `task_id` and `attempt` are for tests and telemetry.
    """

    model: ModelId
    system: str | None = None
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    thinking: ThinkingLevel = "off"
    options: Raw = EMPTY_OBJECT
    cache_key: str = ""
    task_id: Seq = Seq(0)
    attempt: int = 1


HANDLE_BYTES_MAX: Final = 4_096
"""Largest deferred handle, encoded (PV-26)."""


class DeferredHandle(
    Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=stored
):
    """Remote work that will be answered later; stored in the task, at most 4 KiB (PV-26)."""

    provider: str
    model_id: str
    api: str
    id: str
    expires_at_ms: int | UnsetType = UNSET
    poll_after_ms: int | UnsetType = UNSET
    data: Raw = EMPTY_OBJECT


class ModelOutcome(Struct, frozen=True, gc=False, kw_only=True):
    """How a request ended: a message or a handle, and the usage reported (None: not reported).

    `repaired` counts what the adapter replaced in the model's text before it made frames (PV-08).
    """

    result: AssistantMessage | DeferredHandle
    usage: Usage | None = None
    repaired: Repairs = NO_REPAIRS
