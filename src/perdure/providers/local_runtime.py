"""llama.cpp in this process, through `xllamacpp`: the one module that imports it (PV-24).

Requests go through the library's in-process calls and stream through a callback, without a socket.
The library opens a listening socket all the same when it starts. It is given a Unix socket in a
private folder and a random key, and its path is removed as soon as it exists, so that nobody can
connect to it (SX-15).

Traps, each found by trying: with as many threads as cores the runtime is up to fifty times slower
on a busy machine; an exception raised in the callback is swallowed; a prompt is read in batches,
and only the progress report between them can stop it; and a process that ends while a thread is
inside the library is aborted, so an exit hook stops every request and waits for the threads.
"""

import atexit
import contextlib
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import xllamacpp  # type: ignore[reportMissingTypeStubs]  # the vendor ships none

from perdure.errors import ProviderError

_VENDOR: Final = cast("Any", xllamacpp)

THREADS_MAX: Final = 4
"""Most threads; a small model gains nothing from more. One core is left to everything else: the
threads wait for one another by spinning, so on a busy core all of them crawl."""

BATCH_TOKENS: Final = 64
"""Prompt tokens between two chances to stop: about 0.3 s on one core."""

EXIT_WAIT_S: Final = 5.0
"""How long a process that ends waits for threads inside the library."""

SOCKET_FOLDER_CHARACTERS_MAX: Final = 80
"""A socket's path may have about 104 characters, on macOS; the folder's own name needs some."""

GGUF_MAGIC: Final = b"GGUF"

OnChunk = Callable[[Mapping[str, Any]], bool]
"""Takes one chunk, on the runtime's thread; True stops the request. It must not raise."""


class Runtime:
    """One loaded model. Every method blocks and belongs on a thread of its own."""

    def __init__(self, path: Path, *, window: int) -> None:
        """Load the weights: about half a second for the built-in model.

        Raises:
            ProviderError: `no_model`, when the file is not there or not a model.
        """
        check_gguf(path)
        self.window = window
        self._inside = _Inside()
        atexit.register(self._inside.leave)
        folder = _private_folder()
        try:
            with self._inside:
                server = _VENDOR.Server(_params(path, window, folder / "l.sock"))
        except RuntimeError as error:
            raise ProviderError(
                "no_model", f"the file {str(path)!r} is not a model this runtime reads: {error}"
            ) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._server: Any = server

    @property
    def threads_inside(self) -> int:
        """Answer how many threads are inside the library."""
        return self._inside.count

    def generate(self, body: Mapping[str, Any], on_chunk: OnChunk) -> None:
        """Answer one chat request; returns when it ended or was stopped."""

        def stop_or(chunk: Mapping[str, Any]) -> bool:
            return on_chunk(chunk) or self._inside.is_leaving

        with self._inside:
            if not self._inside.is_leaving:
                self._server.handle_chat_completions(dict(body), stop_or)

    def close(self) -> None:
        """Stop requests and free the weights."""
        self._inside.leave()
        self._server = None
        atexit.unregister(self._inside.leave)


class _Inside:
    """Count the threads that are inside the library, and get them out."""

    def __init__(self) -> None:
        self.is_leaving = False
        self.count = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self.count += 1

    def __exit__(self, *raised: object) -> None:
        with self._changed:
            self.count -= 1
            self._changed.notify_all()

    def leave(self) -> None:
        """Ask every request to stop, and wait until no thread is inside."""
        self.is_leaving = True
        with self._changed:
            self._changed.wait_for(lambda: self.count == 0, EXIT_WAIT_S)


def load(path: Path, window: int) -> Runtime:
    """Load a model file."""
    return Runtime(path, window=window)


def check_gguf(path: Path) -> None:
    """Refuse what is not a GGUF file, before the library prints about it."""
    try:
        with path.open("rb") as file:
            found = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ProviderError(
            "no_model", f"the model file {str(path)!r} cannot be read: {error.strerror}"
        ) from error
    if found != GGUF_MAGIC:
        raise ProviderError(
            "no_model", f"{str(path)!r} is not a GGUF file: it starts with {found!r}"
        )


def _private_folder() -> Path:
    """Make a folder only this user may enter, with a path short enough for a socket in it."""
    usual = tempfile.gettempdir()
    short = usual if len(usual) <= SOCKET_FOLDER_CHARACTERS_MAX else "/tmp"  # noqa: S108 - mode 0700
    return Path(tempfile.mkdtemp(prefix="perdure-", dir=short))


def _params(path: Path, window: int, socket: Path) -> Any:
    params = _VENDOR.CommonParams()
    params.model.path = str(path)
    params.n_ctx = window
    params.n_parallel = 1
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    for part in (params.cpuparams, params.cpuparams_batch):
        part.n_threads = max(1, min(THREADS_MAX, _cores() - 1))
    params.warmup = False
    params.verbosity = -1
    params.ui = params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = False
    params.hostnames = [str(socket)]
    params.api_keys = [secrets.token_hex(32)]
    return params


def _cores() -> int:
    """Count the cores this process may use."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
