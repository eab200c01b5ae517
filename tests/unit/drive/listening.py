"""A telemetry that keeps its spans: names, facts, parents, and whether they ended."""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from perdure.ports import Span

Fact = str | int | float | bool


class KeptSpan:
    def __init__(self, name: str, parent: "KeptSpan | None", facts: dict[str, Fact]) -> None:
        self.name = name
        self.parent = parent
        self.facts = facts
        self.ended_by: str | None = None

    def set(self, **facts: Fact) -> None:
        """Add facts."""
        assert self.ended_by is None, "a span is told nothing after its end"
        self.facts.update(facts)

    def around(self) -> Iterator["KeptSpan"]:
        """Walk its parents, innermost first."""
        span = self.parent
        while span is not None:
            yield span
            span = span.parent

    def __repr__(self) -> str:
        return f"{self.name}{self.facts}"


class Listening:
    """Telemetry a test listens to."""

    def __init__(self) -> None:
        self.spans: list[KeptSpan] = []
        self.is_on = True
        self._current: ContextVar[KeptSpan | None] = ContextVar("current", default=None)

    def span(self, name: str, /, **facts: Fact) -> AbstractContextManager[Span]:
        """Keep one span."""
        assert self.is_on, "nothing asks for a span while nobody listens"
        return self._open(name, facts)

    @contextmanager
    def _open(self, name: str, facts: dict[str, Fact]) -> Generator[KeptSpan]:
        span = KeptSpan(name, self._current.get(), facts)
        self.spans.append(span)
        token = self._current.set(span)
        span_end = "end"
        try:
            yield span
        except BaseException as error:
            span_end = type(error).__name__
            raise
        finally:
            span.ended_by = span_end
            self._current.reset(token)

    def named(self, name: str) -> list[KeptSpan]:
        """Answer the spans of a name, in the order they were opened."""
        return [span for span in self.spans if span.name == name]
