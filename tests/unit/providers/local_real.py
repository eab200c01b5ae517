"""The real local model, loaded once for all tests; absent where it is not installed."""

import importlib.util
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perdure.hosts.folders import user_data_folder
from perdure.providers.local_files import FETCH_STEP, RUNTIME_STEP, find_local
from perdure.records.entries import ModelId

SMOL = ModelId(provider="local", model_id="smollm2")


def data_folder() -> Path:
    """Answer the data folder the command line uses."""
    return Path(os.environ.get("PERDURE_HOME") or user_data_folder())


def missing() -> str:
    """Name the step that is missing, or nothing."""
    if importlib.util.find_spec("xllamacpp") is None:
        return f"the local runtime is not installed: {RUNTIME_STEP}"
    if find_local(data_folder()) is None:
        return f"the local model's file is not in {data_folder()}: {FETCH_STEP}"
    return ""


MAY_SKIP = not os.environ.get("PERDURE_TEST_MODEL")
"""Where the variable is set, as in `.ci/run`, a missing model fails the tests that need it."""

needs_model = pytest.mark.skipif(MAY_SKIP and bool(missing()), reason=missing())
"""Skips where the model cannot run, with the step that is missing."""


class Kept:
    """The loaded model, kept when it is closed, so that the next test finds it warm."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def generate(
        self, body: Mapping[str, Any], on_chunk: Callable[[Mapping[str, Any]], bool]
    ) -> None:
        """Answer a request."""
        self.inner.generate(body, on_chunk)

    def close(self) -> None:
        """Keep it."""


@cache
def loaded(path: Path, window: int) -> Kept:
    """Load the weights once in this process."""
    runtime = importlib.import_module("perdure.providers.local_runtime")
    return Kept(runtime.load(path, window))


def load_kept(name: str) -> ModuleType:
    """Stand for the composition root's loader, with the model kept between tests."""
    module = ModuleType(name)
    module.load = loaded  # type: ignore[attr-defined]
    return module
