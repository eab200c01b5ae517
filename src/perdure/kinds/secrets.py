"""Secrets that perdure resolved itself, kept out of what is stored and sent (SX-05).

A provider's key or a variable that commands get may come back in a tool's output, in a model's
words or in an error. There it is replaced by `[secret NAME]` before anything is stored, across
the borders of chunks too; `meta.repaired.secrets` counts. Where no secret is known, nothing here
costs more than a look.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET

from perdure.records.codec import encode
from perdure.records.frames import DeltaFrame, EndFrame, Frame, StartFrame
from perdure.records.messages import (
    AssistantMessage,
    MessageError,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from perdure.records.strict_json import JsonValue

SECRET_CHARACTERS_MIN: Final = 8
"""Shortest text that is replaced: a shorter one stands in ordinary words (SX-05)."""

SECRETS_MAX: Final = 64
"""Most texts kept: a key function may answer another key for every request."""


class Secrets:
    """The secrets of one harness; more become known while it runs."""

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        """Start with secrets by name; texts of fewer than eight characters are left out."""
        self._forms: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        for name, text in (known or {}).items():
            self.note(name, text)

    def __repr__(self) -> str:
        """Say how many there are, and none of them."""
        return f"<{len(self._forms)} secrets>"

    def __bool__(self) -> bool:
        """Say whether there is anything to look for."""
        return self._pattern is not None

    def note(self, name: str, text: str) -> None:
        """Learn a secret, as it is and as JSON writes it."""
        if text in self._forms or len(text) < SECRET_CHARACTERS_MIN:
            return
        for written in {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}:
            self._forms[written] = f"[secret {name}]"
        while len(self._forms) > SECRETS_MAX:
            del self._forms[next(iter(self._forms))]
        # The longest first, for one secret may be the start of another.
        longest = sorted(self._forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(written) for written in longest))

    def text(self, text: str) -> tuple[str, int]:
        """Answer a whole text without secrets, and how many were replaced."""
        if self._pattern is None:
            return text, 0
        return self._pattern.subn(self._mark, text)

    def value(self, value: JsonValue) -> tuple[JsonValue, int]:
        """Answer a JSON value without secrets in its texts and keys."""
        if self._pattern is None or not self._pattern.search(encode(value).decode()):
            return value, 0
        counts: list[int] = []
        return self._walk(value, counts), sum(counts)

    def stream(self) -> "SecretStream":
        """Answer a door for text that comes in chunks."""
        return SecretStream(self)

    def parts(self, parts: tuple[Part, ...]) -> tuple[tuple[Part, ...], int]:
        """Answer parts of a message without secrets."""
        if self._pattern is None or not self._pattern.search(encode(parts).decode()):
            return parts, 0
        cleaned = [self._part(part) for part in parts]
        return tuple(part for part, _ in cleaned), sum(count for _, count in cleaned)

    def message(self, message: AssistantMessage) -> tuple[AssistantMessage, int]:
        """Answer a model's message without secrets."""
        parts, count = self.parts(message.content)
        error: Any = message.error
        if error is not UNSET:
            error, more = self.error(error)
            count += more
        if not count:
            return message, 0
        return msgspec.structs.replace(message, content=parts, error=error), count

    def error(self, error: MessageError) -> tuple[MessageError, int]:
        """Answer a failure whose words hold no secret."""
        text, count = self.text(error.message)
        return (MessageError(code=error.code, message=text), count) if count else (error, 0)

    def _part(self, part: Part) -> tuple[Part, int]:
        match part:
            case TextPart(text=text):
                fixed, count = self.text(text)
                return msgspec.structs.replace(part, text=fixed), count
            case ThinkingPart(text=text):
                fixed, count = self.text(text)
                # A signature belongs to the very words it signed.
                x = UNSET if count else part.x
                return msgspec.structs.replace(part, text=fixed, x=x), count
            case ToolCallPart():
                return self._call(part)
            case _:
                return part, 0

    def _call(self, call: ToolCallPart) -> tuple[ToolCallPart, int]:
        if call.args is not UNSET:
            args, count = self.value(call.args)
            return msgspec.structs.replace(call, args=cast("Mapping[str, Any]", args)), count
        if call.args_text is UNSET:
            return call, 0
        raw, count = self.text(call.args_text)
        return msgspec.structs.replace(call, args_text=raw), count

    def _walk(self, value: JsonValue, counts: list[int]) -> JsonValue:
        if isinstance(value, str):
            fixed, count = self.text(value)
            counts.append(count)
            return fixed
        if isinstance(value, Mapping):
            return {
                cast("str", self._walk(key, counts)): self._walk(item, counts)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._walk(item, counts) for item in value]
        return value

    def _mark(self, found: re.Match[str]) -> str:
        return self._forms[found[0]]

    def split(self, text: str) -> tuple[str, str, int]:
        """Answer a stream's text without secrets, what may yet become one, and a count.

        What is held back is the end of the text, at most as long as the longest secret.
        """
        if self._pattern is None:
            return text, "", 0
        held = len(text) - self._unsure(text)
        done: list[str] = []
        at = count = 0
        for found in self._pattern.finditer(text):
            if found.start() >= held:
                break
            done += [text[at : found.start()], self._mark(found)]
            at = found.end()
            count += 1
        held = max(held, at)
        return "".join([*done, text[at:held]]), text[held:], count

    def _unsure(self, text: str) -> int:
        """Count the characters at the end that begin a secret which is not complete."""
        longest = 0
        for secret in self._forms:
            start = max(0, len(text) - len(secret) + 1)
            at = text.find(secret[0], start)
            while at >= 0:
                if secret.startswith(text[at:]):
                    longest = max(longest, len(text) - at)
                    break
                at = text.find(secret[0], at + 1)
        return longest


class SecretStream:
    """One text that comes in chunks; what may be the start of a secret waits for the next one."""

    def __init__(self, secrets: Secrets) -> None:
        """Start with nothing held back."""
        self._secrets = secrets
        self._held = ""
        self.count = 0

    def feed(self, text: str) -> str:
        """Take the next chunk; answer what is certain."""
        if not self._secrets:
            return text
        done, self._held, count = self._secrets.split(self._held + text)
        self.count += count
        return done

    def rest(self) -> str:
        """Answer what was held back; the text is over."""
        held, self._held = self._held, ""
        done, count = self._secrets.text(held)
        self.count += count
        return done


class SecretFrames:
    """The frames of one streamed reply without secrets."""

    def __init__(self, secrets: Secrets) -> None:
        """Start before the first frame."""
        self._secrets = secrets
        self._streams: dict[int, SecretStream] = {}

    def feed(self, frame: Frame) -> Iterator[Frame]:
        """Answer what may be shown now that `frame` has come."""
        if not self._secrets:
            yield frame
            return
        match frame:
            case DeltaFrame(part_index=index, delta_text=text):
                done = self._streams.setdefault(index, self._secrets.stream()).feed(text)
                if done:
                    yield DeltaFrame(part_index=index, delta_text=done)
            case StartFrame(part=part):
                yield msgspec.structs.replace(frame, part=self._secrets.parts((part,))[0][0])
            case EndFrame(part_index=index):
                stream = self._streams.get(index)
                rest = "" if stream is None else stream.rest()
                if rest:
                    yield DeltaFrame(part_index=index, delta_text=rest)
                yield frame
