"""Traces of OpenTelemetry, request → job → attempt, where SLIPSTREAM_TRACING asks for them.

Where not, nothing of OpenTelemetry is imported, and a span is one shared object that does nothing. Where spans go is
decided by OpenTelemetry's own variables: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER.

The `gen_ai.*` names are those of OpenTelemetry's conventions for generative AI, which are still in development: they
stand here and nowhere else.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from control.core.settings.config import get_config

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OpenTelemetrySpan

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

Value = str | int | float | bool


class Kind(StrEnum):
    """OpenTelemetry's `SpanKind`, by name."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    CONSUMER = "CONSUMER"


class Span:
    """A part of a trace; none where tracing is off."""

    __slots__ = ("inner",)

    def __init__(self, inner: "OpenTelemetrySpan | None" = None) -> None:
        self.inner = inner

    def set(self, name: str, value: Value) -> None:
        if self.inner is not None:
            self.inner.set_attribute(name, value)

    def fail(self, error_type: str) -> None:
        if self.inner is not None:
            from opentelemetry.trace import StatusCode

            self.inner.set_attribute(ERROR_TYPE, error_type)
            self.inner.set_status(StatusCode.ERROR)

    def rename(self, name: str) -> None:
        if self.inner is not None:
            self.inner.update_name(name)

    def end(self) -> None:
        if self.inner is not None:
            self.inner.end()


OFF = Span()


def begin(name: str, attributes: Mapping[str, Value], *, kind: Kind = Kind.INTERNAL, traceparent: str = "") -> Span:
    """A span that the caller ends.

    Args:
        traceparent: of another process, as W3C's Trace Context writes it; without it the span goes below the current.
    """
    if not get_config().tracing:
        return OFF
    from control.core.observability import otel

    return Span(otel.start(name, attributes, kind=kind.value, traceparent=traceparent))


@contextmanager
def span(
    name: str, attributes: Mapping[str, Value], *, kind: Kind = Kind.INTERNAL, traceparent: str = ""
) -> Iterator[Span]:
    """The current span of the block: those begun in it go below it."""
    begun = begin(name, attributes, kind=kind, traceparent=traceparent)
    if begun.inner is None:
        yield begun
        return
    from opentelemetry.trace import use_span

    with use_span(begun.inner, end_on_exit=True):
        yield begun


def traceparent() -> str:
    """The current span, for another process to go on from; empty where there is none."""
    if not get_config().tracing:
        return ""
    from control.core.observability import otel

    return otel.traceparent()


def fail_current(error_type: str) -> None:
    """The current span is about something that failed, though no exception leaves it."""
    if get_config().tracing:
        from opentelemetry.trace import get_current_span

        Span(get_current_span()).fail(error_type)
