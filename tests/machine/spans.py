"""OpenTelemetry's SDK for these tests: in this process with all spans in memory, in worker processes with a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()


class Breakable(SpanProcessor):
    """Raises ``error`` at the ``start`` or the ``end`` of each span, while one is set."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.at = ""
        self.raised = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._raise_at("start")

    def on_end(self, span: ReadableSpan) -> None:
        self._raise_at("end")

    def _raise_at(self, at: str) -> None:
        if self.error is not None and at == self.at:
            self.raised += 1
            raise self.error


breakable = Breakable()


def begin() -> None:
    """Once: the provider of a process cannot be replaced."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(breakable)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)


class _File(SpanExporter):
    """The outcome of each span on a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            file.writelines(f"{span.name} {(span.attributes or {}).get('pgqueue.outcome')}\n" for span in spans)
        return SpanExportResult.SUCCESS


class Traced(AppConfig):
    """For worker processes; ``SPANS`` names the file. In batches a minute apart: before that only their end exports."""

    name = "tests.machine.spans"

    def ready(self) -> None:
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(_File(Path(os.environ["SPANS"])), schedule_delay_millis=60_000))
        trace.set_tracer_provider(provider)
