"""The exporting tracer. It needs OpenTelemetry's SDK, so this module is imported only if SLIPSTREAM_TRACING is set."""

import os
from functools import lru_cache

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer


@lru_cache(maxsize=1)
def tracer() -> Tracer:
    """Returns the tracer of the process's provider, whose thread exports spans; the last spans are exported at exit."""
    name = os.environ.get("OTEL_SERVICE_NAME", "slipstream")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("slipstream")
