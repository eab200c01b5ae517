"""Spans in OpenTelemetry: the adapter, and who decides whether it is used (TM)."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import perdure
from perdure.errors import Rejected
from perdure.hosts import otel_telemetry
from perdure.hosts.otel_telemetry import OtelTelemetry
from perdure.hosts.silent_telemetry import SilentTelemetry, chosen_telemetry
from perdure.opening import configured, load
from perdure.providers.script import call, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.messages import Usage
from perdure.testing.manual_clock import ManualClock

MARKED = "mArKeD-content"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(exporter))
    yield made
    made.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@perdure.tool(replay="safe")
async def look(key: str) -> str:
    """Look."""
    return MARKED


@pytest.mark.spec("TM-01", "TM-02", "TM-05", "SX-04")
async def test_a_session_is_seen_through_the_sdk_without_its_content(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    usage = Usage(input=7, output=3)
    script = [say(MARKED, call("look", {"key": MARKED}), usage=usage), say(f"{MARKED}!")]
    with provider.get_tracer("host").start_as_current_span("request"):
        async with perdure.open(
            "memory:",
            session="s",
            model="scripted:test",
            tools=[look],
            models=ScriptedModels(script, clock=ManualClock()),
            telemetry=OtelTelemetry(provider),
        ) as harness:
            root = await harness.root()
            await root.prompt(f"{MARKED}?", request_id=MARKED)
    spans = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans if span.context}

    def path(span: ReadableSpan) -> list[str]:
        above = by_id[span.parent.span_id] if span.parent else None
        return [span.name, *(path(above) if above else [])]

    paths = {tuple(path(span)) for span in spans}
    assert ("ai.request", "task.effect", "harness.drive", "request") in paths
    assert ("tool.execute", "task.effect", "harness.drive", "request") in paths
    assert ("line.command", "harness.accept", "request") in paths
    assert all(one[-1] == "request" for one in paths)
    asked = next(attributes(span) for span in spans if span.name == "ai.request")
    assert asked["gen_ai.operation.name"] == "chat"
    assert (asked["perdure.model"], asked["gen_ai.request.model"]) == ("test", "test")
    assert (asked["perdure.output"], asked["gen_ai.usage.output_tokens"]) == (3, 3)
    ran = next(attributes(span) for span in spans if span.name == "tool.execute")
    assert (ran["gen_ai.tool.name"], ran["perdure.bytes"]) == ("look", len(MARKED))
    seen = [span.to_json() for span in spans]
    assert not [text for text in seen if MARKED.lower() in text.lower()]


@pytest.mark.spec("TM-02")
def test_an_error_leaves_the_name_of_its_class_and_no_text(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    telemetry = OtelTelemetry(provider)
    with pytest.raises(ValueError, match=MARKED), telemetry.span("task.effect", task=3):
        raise ValueError(MARKED)
    (span,) = exporter.get_finished_spans()
    assert attributes(span) == {"perdure.task": 3, "error.type": "ValueError"}
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description is None
    assert not span.events


@pytest.mark.spec("TM-04")
async def test_two_tasks_keep_their_own_parents(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    telemetry = OtelTelemetry(provider)

    async def nested(name: str) -> None:
        with telemetry.span(name):
            await asyncio.sleep(0)
            with telemetry.span(f"{name}.inner"):
                await asyncio.sleep(0)

    await asyncio.gather(nested("a"), nested("b"))
    spans = {span.name: span for span in exporter.get_finished_spans()}
    for name in ("a", "b"):
        inner, outer = spans[f"{name}.inner"], spans[name]
        assert inner.parent
        assert outer.context
        assert inner.parent.span_id == outer.context.span_id


def test_without_a_provider_nobody_listens_and_with_one_everybody_does(
    provider: TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = OtelTelemetry()
    assert not telemetry.is_on
    monkeypatch.setattr(otel_telemetry.trace, "get_tracer_provider", lambda: provider)
    assert telemetry.is_on
    assert OtelTelemetry(provider).is_on


def test_unasked_the_programs_own_provider_decides(
    provider: TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> ModuleType:
        raise AssertionError(name)

    assert isinstance(chosen_telemetry(None, refuse), SilentTelemetry)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "opentelemetry.trace")
        assert isinstance(chosen_telemetry(None, refuse), SilentTelemetry)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    assert isinstance(chosen_telemetry(None, load), OtelTelemetry)
    assert isinstance(chosen_telemetry("none", refuse), SilentTelemetry)
    assert isinstance(chosen_telemetry("otel", load), OtelTelemetry)
    own = SilentTelemetry()
    assert chosen_telemetry(own, refuse) is own


def test_what_cannot_be_used_is_refused_with_the_way_out() -> None:
    with pytest.raises(Rejected, match="'otel', 'none'"):
        chosen_telemetry("console", load)  # type: ignore[arg-type]

    def missing(name: str) -> ModuleType:
        raise ImportError(name)

    with pytest.raises(Rejected, match=r"pip install 'perdure\[otel\]'"):
        chosen_telemetry("otel", missing)


@pytest.mark.spec("CG-03")
def test_the_configuration_says_where_spans_go(tmp_path: Path) -> None:
    file = tmp_path / "perdure.toml"
    file.write_text('[telemetry]\nto = "otel"\n', encoding="utf-8")
    assert configured(perdure.load_config(file))["telemetry"] == "otel"
