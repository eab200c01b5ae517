"""Telemetry that nobody hears, and who decides whether anybody does."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any, Final, Literal

from perdure.errors import Rejected
from perdure.ports import Span, Telemetry


class SilentTelemetry:
    """Telemetry nobody listens to."""

    @property
    def is_on(self) -> bool:
        """Answer no."""
        return False

    def span(self, name: str, /, **facts: str | int | float | bool) -> "nullcontext[Span]":
        """Open nothing."""
        return _NOWHERE


class _Nowhere:
    def set(self, **facts: str | int | float | bool) -> None:
        """Drop the facts."""


_NOWHERE: Final[nullcontext[Span]] = nullcontext(_Nowhere())


def chosen_telemetry(
    asked: Telemetry | Literal["otel", "none"] | None, load: Callable[[str], ModuleType]
) -> Telemetry:
    """Answer where spans go: where the host says, else to the application's tracer provider.

    Unasked, nothing of OpenTelemetry is imported: a program that has set a provider has imported
    its API, so one look at the loaded modules tells.

    Raises:
        Rejected: `invariant`, for another word, or where OpenTelemetry is not installed.
    """
    if asked is None:
        api: Any = sys.modules.get("opentelemetry.trace")
        if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
            return SilentTelemetry()
        asked = "otel"
    if not isinstance(asked, str):
        return asked
    if asked == "none":
        return SilentTelemetry()
    if asked != "otel":
        raise Rejected(
            "invariant", f"telemetry {asked!r} is not 'otel', 'none' or an object with spans"
        )
    try:
        adapter = load("perdure.hosts.otel_telemetry")
    except ImportError as error:
        raise Rejected(
            "invariant",
            "telemetry 'otel' needs the OpenTelemetry API: pip install 'perdure[otel]'",
        ) from error
    telemetry: Telemetry = adapter.OtelTelemetry()
    return telemetry
