"""Middleware that logs, counts and traces each request."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from opentelemetry.trace import Span, SpanKind

from control.core.api.middleware import make_middleware
from control.core.api.request_id import request_id
from control.core.observability import metrics, tracing

log = structlog.get_logger(__name__)

NO_ROUTE, NO_METHOD = "none", "other"  # common labels of all unknown routes and methods
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BEGAN, _SPAN = "SLIPSTREAM_REQUEST_BEGAN", "SLIPSTREAM_REQUEST_SPAN"


@contextmanager
def _scope(request: HttpRequest) -> Iterator[None]:
    request.META[_BEGAN] = time.monotonic()
    method = _method(request)
    attributes = {tracing.METHOD: method, tracing.REQUEST: request_id(request)}
    parent = request.headers.get("traceparent", "")
    try:
        with tracing.span(method, attributes, kind=SpanKind.SERVER, traceparent=parent) as span:
            request.META[_SPAN] = span
            yield
    finally:
        structlog.contextvars.unbind_contextvars("organization_id")  # authentication binds it


def _finish(request: HttpRequest, response: HttpResponseBase) -> None:
    method, seconds = _method(request), time.monotonic() - request.META[_BEGAN]
    match = request.resolver_match
    route = match.route if match is not None else NO_ROUTE
    metrics.http_requests.labels(method, route, response.status_code).inc()
    metrics.http_request_seconds.labels(method, route).observe(seconds)
    log.info(
        "request", method=method, path=request.path, status=response.status_code, milliseconds=round(1000 * seconds)
    )
    span = request.META[_SPAN]
    assert isinstance(span, Span)
    span.update_name(f"{method} {route}")
    span.set_attribute(tracing.ROUTE, route)
    span.set_attribute(tracing.STATUS_CODE, response.status_code)
    organization_id = structlog.contextvars.get_contextvars().get("organization_id")
    if organization_id is not None:
        span.set_attribute(tracing.ORGANIZATION, organization_id)
    if response.status_code >= 500:
        tracing.fail(span, str(response.status_code))


def _method(request: HttpRequest) -> str:
    return str(request.method) if request.method in _METHODS else NO_METHOD


RequestsMiddleware = make_middleware(_scope, _finish)
