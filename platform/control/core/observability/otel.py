"""The side of tracing that needs OpenTelemetry's packages; imported once SLIPSTREAM_TRACING asks for it."""

import os
from collections.abc import Mapping
from functools import lru_cache

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_TRACEPARENT = "traceparent"
_propagator = TraceContextTextMapPropagator()


@lru_cache(maxsize=1)
def tracer() -> Tracer:
    """One provider a process. It sends spans from a thread, and what is left when the process ends."""
    name = os.environ.get("OTEL_SERVICE_NAME", "slipstream")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("slipstream")


def start(name: str, attributes: Mapping[str, str | int | float | bool], *, kind: str, traceparent: str) -> Span:
    parent = _propagator.extract({_TRACEPARENT: traceparent}) if traceparent else None
    return tracer().start_span(name, context=parent, kind=SpanKind[kind], attributes=dict(attributes))


def traceparent() -> str:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get(_TRACEPARENT, "")
