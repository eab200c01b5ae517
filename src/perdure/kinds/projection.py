"""Projection: the messages a model receives, built from the context list and nothing else (CX-14).

Valid by construction: every assistant message with calls is followed directly by one result a call,
in call order, whatever order they were stored in; an assistant message that ended in error or was
aborted projects nothing, and so do its results (CX-25). A long conversation costs only what is new:
the projected prefix is kept and shared, and a request sees a fixed length of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import overload

from msgspec import UNSET, Struct

from perdure.kinds.content import ContentKind
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry, EntryMeta
from perdure.records.messages import Message
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


class Projected(Struct, frozen=True, kw_only=True):
    """A projection; `tokens` estimates it from the entries' metas."""

    messages: Sequence[Message]
    tokens: int


class _Cache:
    """What one conversation's list projected to, up to a complete exchange."""

    def __init__(self, prefix_version: int) -> None:
        self.prefix_version = prefix_version
        self.entries = 0
        self.last: Seq | None = None
        self.messages: list[Message] = []
        self.tokens = 0
        self.silent: set[Seq] = set()


class Projections:
    """Project conversations, keeping what was already projected."""

    def __init__(self, contents: Mapping[str, ContentKind]) -> None:
        """Take the registered content kinds."""
        self._contents = contents
        self._caches: dict[Seq, _Cache] = {}

    def project(self, state: ConversationState, entry: Callable[[Seq], Entry | None]) -> Projected:
        """Answer the messages of a conversation whose exchanges are complete."""
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
        return Projected(
            messages=MessageView(cache.messages, len(cache.messages)), tokens=cache.tokens
        )

    def forget(self, conv_id: Seq) -> None:
        """Drop what was kept of a conversation."""
        self._caches.pop(conv_id, None)

    def _extend(
        self, cache: _Cache, ids: Sequence[Seq], entry: Callable[[Seq], Entry | None]
    ) -> None:
        results: list[tuple[int, Message]] = []
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
        results: list[tuple[int, Message]],
    ) -> None:
        payload = None if found.payload_json is UNSET else found.payload_json
        messages = kind.project(meta, payload)
        if kind.facts.answers:
            if meta.answers is not UNSET and meta.answers not in cache.silent:
                index = 0 if found.call_index is UNSET else found.call_index
                results.extend((index, message) for message in messages)
            return
        _place(cache, results)
        if not messages:
            cache.silent.add(found.id)
        cache.messages.extend(messages)


def _place(cache: _Cache, results: list[tuple[int, Message]]) -> None:
    """Append an exchange's results in call order."""
    results.sort(key=lambda pair: pair[0])
    cache.messages.extend(message for _, message in results)
    results.clear()
