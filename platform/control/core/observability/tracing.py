"""OpenTelemetry traces. A trace reaches from a request to the attempts of its jobs.

Spans are exported if SLIPSTREAM_TRACING is set. Without this setting, OpenTelemetry's SDK is not loaded, and the no-op
tracer of its API is used. OpenTelemetry's environment variables decide where spans go: OTEL_EXPORTER_OTLP_ENDPOINT,
OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER.

The `gen_ai.*` names are those of OpenTelemetry's conventions for generative AI. The conventions are still in
development, so no other module contains these names.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.trace import NoOpTracer, Span, SpanKind, StatusCode, Tracer, get_current_span, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from control.core.settings.config import get_config

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"

METHOD = "http.request.method"
ROUTE = "http.route"
STATUS_CODE = "http.response.status_code"
ERROR_TYPE = "error.type"

ORGANIZATION = "slipstream.organization.id"
REQUEST = "slipstream.request.id"
JOB = "slipstream.job.id"
JOB_KIND = "slipstream.job.kind"
FENCE = "slipstream.job.fence"
DEPLOYMENT = "slipstream.deployment.id"

Attributes = Mapping[str, str | int | float | bool]

_TRACEPARENT = "traceparent"
_propagator = TraceContextTextMapPropagator()
_no_op_tracer = NoOpTracer()


def _tracer() -> Tracer:
    if not get_config().tracing:
        return _no_op_tracer
    from control.core.observability import otel

    return otel.tracer()


def start_span(name: str, attributes: Attributes, *, kind: SpanKind = SpanKind.INTERNAL, traceparent: str = "") -> Span:
    """Starts a span, which the caller must end.

    Args:
        traceparent: the parent span in another process, in W3C's Trace Context format. Without it, the parent is the
            current span.
    """
    parent = _propagator.extract({_TRACEPARENT: traceparent}) if traceparent else None
    return _tracer().start_span(name, context=parent, kind=kind, attributes=dict(attributes))


@contextmanager
def span(
    name: str, attributes: Attributes, *, kind: SpanKind = SpanKind.INTERNAL, traceparent: str = ""
) -> Iterator[Span]:
    """Starts a span that is current within the block, and thus the parent of spans started there."""
    with use_span(start_span(name, attributes, kind=kind, traceparent=traceparent), end_on_exit=True) as current:
        yield current


def traceparent() -> str:
    """Returns the current span as a `traceparent` header for another process; empty if tracing is off."""
    if not get_config().tracing:
        return ""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get(_TRACEPARENT, "")


def fail(span: Span, error_type: str) -> None:
    """Marks the span as failed although no exception leaves its block."""
    span.set_attribute(ERROR_TYPE, error_type)
    span.set_status(StatusCode.ERROR)


def fail_current(error_type: str) -> None:
    fail(get_current_span(), error_type)
