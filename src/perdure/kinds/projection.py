"""Projection: the messages a model receives, built from the context list and nothing else (CX-14).

Valid by construction: every assistant message with calls is followed directly by one result a call,
in call order, whatever order they were stored in; an assistant message that ended in error or was
aborted projects nothing, and so do its results (CX-25). A long conversation costs only what is new:
the projected prefix is kept and shared, and a request sees a fixed length of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import overload

import msgspec
from msgspec import UNSET, Struct

from perdure.kinds.content import ContentKind
from perdure.kinds.sendable import (
    CallName,
    is_blank,
    sendable_assistant,
    sendable_result,
    sendable_user,
)
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry, EntryMeta
from perdure.records.messages import (
    AssistantMessage,
    Message,
    TextPart,
    ToolResultMessage,
    UserMessage,
)
from perdure.records.seqs import Seq


class MessageView(Sequence[Message]):
    """A fixed length of a growing list of messages; read-only."""

    __slots__ = ("_length", "_messages")

    def __init__(self, messages: list[Message], length: int) -> None:
        """Show the first `length` messages."""
        self._messages = messages
        self._length = length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        """Answer one message, or a list for a slice."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return self._messages[start:stop:step]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._messages[index if index >= 0 else self._length + index]

    def __len__(self) -> int:
        """Count the messages."""
        return self._length

    def __iter__(self) -> Iterator[Message]:
        """Walk the messages."""
        messages, length = self._messages, self._length
        return iter(messages) if len(messages) == length else iter(messages[:length])


class Source(Struct, frozen=True, gc=False, kw_only=True):
    """Where a message comes from: its entry, and the entry's indexes of the parts that are sent."""

    entry: Seq
    parts: Sequence[int]


class Projected(Struct, frozen=True, gc=False, kw_only=True):
    """A projection; `tokens` estimates it from the entries' metas, `sources` stand beside it."""

    messages: Sequence[Message]
    sources: Sequence[Source]
    tokens: int


class _Cache:
    """What one conversation's list projected to, up to a complete exchange."""

    def __init__(self, prefix_version: int) -> None:
        self.prefix_version = prefix_version
        self.entries = 0
        self.last: Seq | None = None
        self.messages: list[Message] = []
        self.sources: list[Source] = []
        self.tokens = 0
        self.silent: set[Seq] = set()
        self.renames: dict[Seq, Mapping[int, CallName]] = {}


_Result = tuple[int, Seq, Message]


class Projections:
    """Project conversations, keeping what was already projected."""

    def __init__(self, contents: Mapping[str, ContentKind]) -> None:
        """Take the registered content kinds."""
        self._contents = contents
        self._caches: dict[Seq, _Cache] = {}
        self._refused: dict[tuple[Seq, int], Mapping[str, str]] = {}

    def project(
        self, state: ConversationState, entry: Callable[[Seq], Entry | None], *, provider: str = ""
    ) -> Projected:
        """Answer the messages of a conversation whose exchanges are complete.

        Parts that `provider` refused are replaced by a note (CX-14).
        """
        cache = self._caches.get(state.id)
        context = state.context
        if (
            cache is None
            or cache.prefix_version != state.prefix_version
            or cache.entries > len(context)
            or (cache.entries and context[cache.entries - 1] != cache.last)
        ):
            cache = self._caches[state.id] = _Cache(state.prefix_version)
        self._extend(cache, [context[at] for at in range(cache.entries, len(context))], entry)
        messages: Sequence[Message] = MessageView(cache.messages, len(cache.messages))
        if any(provider in reasons for reasons in self._refused.values()):
            messages = self._without_refused(messages, cache.sources, provider)
        return Projected(messages=messages, sources=cache.sources, tokens=cache.tokens)

    def refuse(self, entry_id: Seq, part: int, reasons: Mapping[str, str]) -> None:
        """Leave a part out of the requests to the providers that refused it (K15)."""
        self._refused[entry_id, part] = reasons

    def forget(self, conv_id: Seq) -> None:
        """Drop what was kept of a conversation."""
        self._caches.pop(conv_id, None)

    def _extend(
        self, cache: _Cache, ids: Sequence[Seq], entry: Callable[[Seq], Entry | None]
    ) -> None:
        results: list[_Result] = []
        for entry_id in ids:
            found = entry(entry_id)
            assert found is not None, f"entry {entry_id} on the list is not resident"
            meta = found.meta
            cache.tokens += meta.tokens
            kind = self._contents.get(found.kind)
            if kind is not None:
                self._add(cache, found, meta, kind, results)
            cache.entries += 1
            cache.last = entry_id
        _place(cache, results)

    def _add(
        self,
        cache: _Cache,
        found: Entry,
        meta: EntryMeta,
        kind: ContentKind,
        results: list[_Result],
    ) -> None:
        payload = None if found.payload_json is UNSET else found.payload_json
        messages = kind.project(meta, payload)
        if kind.facts.answers:
            if meta.answers is not UNSET and meta.answers not in cache.silent:
                index = 0 if found.call_index is UNSET else found.call_index
                renamed = cache.renames.get(meta.answers, {}).get(index)
                results.extend(
                    (index, found.id, sendable_result(message, renamed))
                    for message in messages
                    if isinstance(message, ToolResultMessage)
                )
            return
        _place(cache, results)
        sent = 0
        first_part = 0
        for message in messages:
            sendable = _sendable(cache, message, found.id)
            if not cache.messages and isinstance(sendable, AssistantMessage):
                # A late answer after a reset (CX-24): providers refuse to begin with it.
                sendable = None
            if sendable is not None:
                cache.messages.append(sendable)
                cache.sources.append(_source(found.id, message, first_part))
                sent += 1
            first_part += len(message.content)
        if not sent:
            cache.silent.add(found.id)

    def _without_refused(
        self, messages: Sequence[Message], sources: Sequence[Source], provider: str
    ) -> Sequence[Message]:
        return [
            self._noted(message, source, provider)
            for message, source in zip(messages, sources, strict=True)
        ]

    def _noted(self, message: Message, source: Source, provider: str) -> Message:
        parts = list(message.content)
        changed = False
        for at in range(len(parts)):
            reasons = self._refused.get((source.entry, source.parts[at]))
            if reasons is not None and provider in reasons:
                note = f"[left out: the provider refused this part: {reasons[provider]}]"
                parts[at] = TextPart(text=note)
                changed = True
        return msgspec.structs.replace(message, content=tuple(parts)) if changed else message


def _place(cache: _Cache, results: list[_Result]) -> None:
    """Append an exchange's results in call order."""
    results.sort(key=lambda result: result[0])
    for _, entry_id, message in results:
        cache.messages.append(message)
        cache.sources.append(_source(entry_id, message, 0))
    results.clear()


def _sendable(cache: _Cache, message: Message, entry_id: Seq) -> Message | None:
    """Answer a message as it may be sent, None when nothing is left of it."""
    if isinstance(message, AssistantMessage):
        sendable, renames = sendable_assistant(message, entry_id)
        if renames:
            cache.renames[entry_id] = renames
        return sendable
    return sendable_user(message) if isinstance(message, UserMessage) else message


def _source(entry_id: Seq, message: Message, first_part: int) -> Source:
    """Say which parts of the entry a stored message's sent parts are."""
    kept = [first_part + at for at, part in enumerate(message.content) if not is_blank(part)]
    return Source(entry=entry_id, parts=kept or [first_part])
