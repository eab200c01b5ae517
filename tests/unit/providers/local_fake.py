"""A stand-in for the local runtime: it plays chunks, and stops as the real one does."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure.errors import ProviderError

Chunk = Mapping[str, Any]


def text(*pieces: str, finish: str = "stop", read: int = 9, cached: int = 4) -> list[Chunk]:
    """Make the chunks of a reply."""
    chunks: list[Chunk] = [
        {"choices": [], "prompt_progress": {"total": read, "cache": cached, "processed": read}},
        {"choices": [{"delta": {"role": "assistant", "content": None}, "finish_reason": None}]},
    ]
    for count, piece in enumerate(pieces, 1):
        timings = {"prompt_n": read - cached, "cache_n": cached, "predicted_n": count}
        choice = {"delta": {"content": piece}, "finish_reason": None}
        chunks.append({"choices": [choice], "timings": timings})
    chunks.append({"choices": [{"delta": {}, "finish_reason": finish}]})
    return chunks


class FakeRuntime:
    """One loaded model that answers what it is told, one list of chunks a request."""

    def __init__(self, replies: Sequence[Sequence[Chunk] | Exception]) -> None:
        self.replies = list(replies)
        self.bodies: list[Mapping[str, Any]] = []
        self.hold_after: int | None = None
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.stopped = threading.Event()
        self.closed = False

    def generate(self, body: Mapping[str, Any], on_chunk: Callable[[Chunk], bool]) -> None:
        """Play the next reply; while held, keep sending progress until somebody stops it."""
        self.bodies.append(body)
        self.started.set()
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        for at, chunk in enumerate(reply):
            if at == self.hold_after:
                self._hold(on_chunk)
            if on_chunk(chunk):
                self.stopped.set()
                return

    def _hold(self, on_chunk: Callable[[Chunk], bool]) -> None:
        while not self.go_on.wait(0.001):
            if on_chunk({"choices": []}):
                self.go_on.set()

    def close(self) -> None:
        """Take note."""
        self.closed = True


class FakeModule:
    """Stand for the module that imports the vendor library."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self.runtime = runtime
        self.loads: list[tuple[str, Path]] = []
        self.failures: list[Exception] = []

    def load_module(self, name: str) -> ModuleType:
        """Answer a module whose `load` hands out the runtime."""
        if self.failures and isinstance(self.failures[0], ImportError):
            raise self.failures.pop(0)
        module = ModuleType(name)

        def load(path: Path, window: int) -> FakeRuntime:
            self.loads.append((threading.current_thread().name, path))
            if self.failures:
                raise self.failures.pop(0)
            return self.runtime

        module.load = load  # type: ignore[attr-defined]
        return module


NOT_A_MODEL = ProviderError("no_model", "'x.gguf' is not a GGUF file: it starts with b'no'")
