"""Spans for OpenTelemetry, through its API alone: exporters are the application's (TM-01).

What a span is told stands under `perdure.<fact>`; model requests and tool calls carry the GenAI
names too, as constants of our own, for those of the semantic conventions still move. An exception
that passes through a span leaves the name of its class and nothing else: its text may hold what
was said (TM-02).
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Final, TypeAlias

from opentelemetry import trace

from perdure.ports import Span

Fact: TypeAlias = str | int | float | bool

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.37.0"
"""The semantic conventions that the GenAI names are from."""

GENAI_NAMES: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        ("ai.request", "provider"): "gen_ai.provider.name",
        ("ai.request", "model"): "gen_ai.request.model",
        ("ai.request", "output"): "gen_ai.usage.output_tokens",
        ("tool.execute", "name"): "gen_ai.tool.name",
    }
)
"""Facts that have a name in the GenAI conventions, by span and fact."""

OPERATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"ai.request": "chat", "tool.execute": "execute_tool"}
)


class OtelTelemetry:
    """Spans of the process's tracer provider; none while no provider is set."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        """Take a provider, or follow the process's."""
        self._provider = provider
        self._tracer = trace.get_tracer("perdure", tracer_provider=provider, schema_url=SCHEMA_URL)
        self._is_on = provider is not None

    @property
    def is_on(self) -> bool:
        """Say whether a tracer provider is set; once there is one, there always is."""
        if not self._is_on:
            self._is_on = provider_is_set()
        return self._is_on

    def span(self, name: str, /, **facts: Fact) -> AbstractContextManager[Span]:
        """Open a span under the current one."""
        return self._open(name, facts)

    @contextmanager
    def _open(self, name: str, facts: Mapping[str, Fact]) -> Generator[Span]:
        with self._tracer.start_as_current_span(
            name, record_exception=False, set_status_on_exception=False
        ) as opened:
            span = _OtelSpan(name, opened)
            if name in OPERATIONS:
                opened.set_attribute("gen_ai.operation.name", OPERATIONS[name])
            span.set(**facts)
            try:
                yield span
            except BaseException as error:
                opened.set_attribute("error.type", type(error).__name__)
                opened.set_status(trace.StatusCode.ERROR)
                raise


class _OtelSpan:
    """One open span."""

    def __init__(self, name: str, opened: trace.Span) -> None:
        self._name = name
        self._opened = opened
        self._put: Callable[[str, Fact], None] = opened.set_attribute

    def set(self, **facts: Fact) -> None:
        """Add facts."""
        if not self._opened.is_recording():
            return
        for fact, value in facts.items():
            self._put(f"perdure.{fact}", value)
            genai = GENAI_NAMES.get((self._name, fact))
            if genai is not None:
                self._put(genai, value)


def provider_is_set() -> bool:
    """Say whether the application set a tracer provider."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
