"""Scripts from files, and recorded sessions as scripts (PV-25).

A script file is a JSON object:

    {"replies": [
        {"calls": [{"name": "list", "args": {}}], "usage": {"input": 9, "output": 4}},
        {"when": "weather", "text": "Sunny.", "uses": 0},
        {"error": {"code": "rate_limited", "retryAfterMs": 1000}},
        {"text": "It is done.", "chunk": 5, "delayMs": 20}],
     "by": "request", "chunk": 0}

A recorded session is a JSON list, or one JSON value a line, of entries, of their payloads, of
messages, or of a journal's commits; whatever is not an assistant message is passed over. Its
replies are the assistant messages in order, failures included. A field that is not known is
refused, so that a misspelt one is not silently without effect.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from perdure.errors import FailureCode, Rejected
from perdure.ports import Clock, Threads
from perdure.providers.plain_files import read_plain
from perdure.providers.script import END, Deferred, Failure, Reply, call
from perdure.providers.scripted import ScriptedModels
from perdure.records.codec import to_raw
from perdure.records.entries import Entry
from perdure.records.messages import (
    AssistantMessage,
    AssistantPayload,
    Part,
    StopReason,
    TextPart,
    ThinkingPart,
    Usage,
    read_payload,
)

SCRIPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest script or recording read."""


class _FileCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    name: str
    args: dict[str, Any] = {}
    args_text: str | None = None
    call_id: str = ""


class _FileError(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    code: FailureCode
    message: str = "the script says so"
    status: int | None = None
    retry_after_ms: int | None = None
    window: int | None = None
    at: int | None = None


class _FileDeferred(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    polls: int = 0
    poll_after_ms: int | None = None
    expires_at_ms: int | None = None


class _FileReply(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A reply as a file spells it; thinking, text and calls come in this order."""

    thinking: str = ""
    text: str = ""
    calls: tuple[_FileCall, ...] = ()
    parts: tuple[Part, ...] = ()
    usage: Usage | None = None
    stop: StopReason | None = None
    stop_detail: str | None = None
    error: _FileError | None = None
    deferred: _FileDeferred | None = None
    chunk: int | None = None
    delay_ms: int = 0
    delays_ms: dict[str, int] = {}
    when: str | None = None
    uses: int = 1


class ScriptFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A script as a file holds it."""

    replies: tuple[_FileReply, ...]
    by: Literal["request", "transcript"] = "request"
    chunk: int = 0


def read_script(content: bytes, name: str, *, clock: Clock | None = None) -> ScriptedModels:
    """Make models of a script file's or a recording's bytes.

    Raises:
        Rejected: `invariant`, naming the file and what is wrong at which place.
    """
    if len(content) > SCRIPT_BYTES_MAX:
        _refuse(name, f"more than the {SCRIPT_BYTES_MAX:,} bytes that are read at most")
    values = _values(content, name)
    if len(values) == 1 and isinstance(values[0], dict) and "replies" in values[0]:
        try:
            script = msgspec.convert(values[0], ScriptFile)
        except msgspec.ValidationError as error:
            _refuse(name, str(error))
        replies = [_reply(spelt) for spelt in script.replies]
        return ScriptedModels(replies, clock=clock, by=script.by, chunk=script.chunk)
    replies = list(_recorded(values, name))
    if not replies:
        _refuse(name, "no replies and no assistant message in it")
    return ScriptedModels(replies, clock=clock)


def load_script(path: Path, *, clock: Clock | None = None) -> ScriptedModels:
    """Make models of a script file or a recording; blocks while it reads.

    Raises:
        Rejected: `not_found` when it cannot be read, `invariant` when it is not a script.
    """
    try:
        content = read_plain(path, SCRIPT_BYTES_MAX)
    except OSError as error:
        raise Rejected(
            "not_found",
            f"the script {str(path)!r} cannot be read: {error.strerror}; scripted:FILE names a "
            "file from the current folder, and a session keeps its model until another is named",
        ) from error
    return read_script(content, str(path), clock=clock)


async def scripted_from_file(path: str, *, threads: Threads, clock: Clock) -> ScriptedModels:
    """Make the models of `scripted:<file>`; raises as `load_script`."""
    place = Path(path)
    return await threads.run("read script", lambda: load_script(place, clock=clock))


def recorded(entries: Iterable[Entry]) -> list[Reply]:
    """Answer the assistant messages of a session's entries as replies, in their order."""
    payloads = (
        read_payload(entry.payload_json, AssistantPayload)
        for entry in entries
        if entry.kind == "assistant" and entry.payload_json is not UNSET
    )
    return [replayed(payload.message) for payload in payloads]


def replayed(message: AssistantMessage) -> Reply:
    """Make a reply that gives this message again; one that ended in error fails again."""
    failure = None
    if message.stop in ("error", "aborted"):
        code = message.error.code if message.error is not UNSET else "interrupted"
        text = message.error.message if message.error is not UNSET else "it was aborted"
        failure = Failure(code=code, message=text, at=END)
    return Reply(
        parts=message.content,
        stop=None if failure else message.stop,
        stop_detail=None if message.stop_detail is UNSET else message.stop_detail,
        failure=failure,
    )


def _values(content: bytes, name: str) -> list[Any]:
    try:
        whole: Any = json.loads(content)
    except ValueError as error:
        lines = [line for line in content.splitlines() if line.strip()]
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            _refuse(name, f"not JSON: {error}")
    return cast("list[Any]", whole) if isinstance(whole, list) else [whole]


def _recorded(values: list[Any], name: str) -> Iterator[Reply]:
    for at, value in enumerate(values):
        for message in _assistant_messages(value):
            raw = to_raw({"v": 1, "message": message})
            try:
                yield replayed(read_payload(Raw(raw), AssistantPayload).message)
            except msgspec.ValidationError as error:
                _refuse(name, f"item {at}: {error}")


def _assistant_messages(value: Any) -> Iterator[Mapping[str, Any]]:
    """Find assistant messages in a commit, an entry, a payload or a message."""
    if not isinstance(value, dict):
        return
    fields = cast("dict[str, Any]", value)
    if fields.get("role") == "assistant":
        yield fields
        return
    for write in cast("list[Any]", fields.get("w") or ()):
        yield from _assistant_messages(write)
    for inside in ("payload", "message"):
        yield from _assistant_messages(fields.get(inside))


def _reply(spelt: _FileReply) -> Reply:
    error, later = spelt.error, spelt.deferred
    parts = _parts(spelt)
    failure = None
    if error is not None:
        at = (END if parts else 0) if error.at is None else error.at
        failure = Failure(
            code=error.code,
            message=error.message,
            status=error.status,
            retry_after_ms=error.retry_after_ms,
            window=error.window,
            at=at,
        )
    deferred = None
    if later is not None:
        deferred = Deferred(
            polls=later.polls, poll_after_ms=later.poll_after_ms, expires_at_ms=later.expires_at_ms
        )
    return Reply(
        parts=parts,
        usage=spelt.usage,
        stop=spelt.stop,
        stop_detail=spelt.stop_detail,
        failure=failure,
        deferred=deferred,
        chunk=spelt.chunk,
        delay_ms=spelt.delay_ms,
        delays_ms={int(event): ms for event, ms in spelt.delays_ms.items()},
        when=spelt.when,
        uses=spelt.uses,
    )


def _parts(spelt: _FileReply) -> tuple[Part, ...]:
    parts: list[Part] = [ThinkingPart(text=spelt.thinking)] if spelt.thinking else []
    if spelt.text:
        parts.append(TextPart(text=spelt.text))
    parts += spelt.parts
    for made in spelt.calls:
        parts.append(call(made.name, made.args, call_id=made.call_id, args_text=made.args_text))
    return tuple(parts)


def _refuse(name: str, what: str) -> NoReturn:
    raise Rejected(
        "invariant",
        f"the script {name!r}: {what}; accepted is an object with `replies`, or a recorded "
        f"session: entries, payloads, messages or commits, as a list or one a line",
    )
