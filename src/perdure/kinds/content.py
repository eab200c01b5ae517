"""Content kinds: what an entry is, and what it contributes to a request (CX-01, CX-02)."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final, Protocol

from msgspec import Raw, Struct

from perdure.line.facts import ContentFacts
from perdure.records.codec import decode
from perdure.records.entries import EntryMeta
from perdure.records.messages import (
    AssistantPayload,
    Message,
    SummaryPayload,
    ToolResultPayload,
    UserPayload,
    read_payload,
    text_message,
)


class ContentKind(Protocol):
    """One kind of entry; `project` reads meta and payload, never writes (IV-06)."""

    @property
    def facts(self) -> ContentFacts:
        """Answer the kind's table."""
        ...

    def project(self, meta: EntryMeta, payload: Raw | None) -> Sequence[Message]:
        """Answer the messages of a selected entry, perhaps none."""
        ...


class _Silent(Struct, frozen=True):
    """A kind whose entries never reach a request."""

    facts: ContentFacts

    def project(self, meta: EntryMeta, payload: Raw | None) -> Sequence[Message]:
        """Answer nothing."""
        return ()


class _User(Struct, frozen=True):
    facts: ContentFacts = ContentFacts(
        name="user", selects=True, meta=EntryMeta, payload=UserPayload
    )

    def project(self, meta: EntryMeta, payload: Raw | None) -> Sequence[Message]:
        """Answer the messages of the input in order (X31)."""
        return () if payload is None else read_payload(payload, UserPayload).messages


class _Assistant(Struct, frozen=True):
    facts: ContentFacts = ContentFacts(
        name="assistant", selects=True, asks=True, meta=EntryMeta, payload=AssistantPayload
    )

    def project(self, meta: EntryMeta, payload: Raw | None) -> Sequence[Message]:
        """Answer the message, or nothing when it ended in error or was aborted (CX-25)."""
        if payload is None or meta.stop in ("error", "aborted"):
            return ()
        return (read_payload(payload, AssistantPayload).message,)


class _ToolResult(Struct, frozen=True):
    facts: ContentFacts = ContentFacts(
        name="tool_result", selects=True, answers=True, meta=EntryMeta, payload=ToolResultPayload
    )

    def project(self, meta: EntryMeta, payload: Raw | None) -> Sequence[Message]:
        """Answer the result; its order and whether it counts are the projection's business."""
        return () if payload is None else (read_payload(payload, ToolResultPayload).message,)


class _Summary(Struct, frozen=True):
    facts: ContentFacts = ContentFacts(
        name="summary", selects=False, meta=EntryMeta, payload=SummaryPayload
    )

    def project(self, meta: EntryMeta, payload: Raw | None) -> Sequence[Message]:
        """Answer the summary's text as a user message."""
        if payload is None:
            return ()
        return (text_message(decode(payload, SummaryPayload).text, meta.timestamp),)


CORE_CONTENT: Final = MappingProxyType(
    {
        kind.facts.name: kind
        for kind in (
            _User(),
            _Assistant(),
            _ToolResult(),
            _Summary(),
            _Silent(ContentFacts(name="input", selects=False, meta=EntryMeta, payload=UserPayload)),
            _Silent(
                ContentFacts(
                    name="call_result", selects=False, meta=EntryMeta, payload=ToolResultPayload
                )
            ),
        )
    }
)
"""The content kinds perdure itself writes (CX-26)."""
