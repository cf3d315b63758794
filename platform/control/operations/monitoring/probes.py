"""/livez, /readyz and /metrics, answered before all other middleware.

The clients are load balancers and scrapers in the same network, which use neither our host name nor TLS nor an API key.
"""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.decorators import sync_and_async_middleware
from prometheus_client import CONTENT_TYPE_LATEST

from control.core.api.middleware import GetResponse
from control.core.observability.access import may_read_metrics
from control.core.observability.metrics import render
from control.operations.monitoring.engines import Engines
from control.operations.monitoring.queue_metrics import QueueMetrics
from control.operations.monitoring.readiness import readiness

_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP")


def livez(request: HttpRequest) -> HttpResponse:
    """Says that the process is alive. It calls no dependency: an outage of the database must not restart processes."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    status, body = readiness()
    return JsonResponse(body, status=status)


def metrics(request: HttpRequest) -> HttpResponse:
    allowed = may_read_metrics(
        authorization=request.headers.get("Authorization", ""),
        address=request.META.get("REMOTE_ADDR", ""),
        is_forwarded=any(name in request.headers for name in _FORWARDED),
    )
    if not allowed:
        return HttpResponse(status=404)  # like an unknown path, to hide that there are metrics
    return HttpResponse(render(QueueMetrics(), Engines()), content_type=CONTENT_TYPE_LATEST)


_ROUTES: dict[str, Callable[[HttpRequest], HttpResponse]] = {
    "/livez": livez,
    "/readyz": readyz,
    "/metrics": metrics,
}


@sync_and_async_middleware
def probes_middleware(get_response: GetResponse) -> Any:
    if not iscoroutinefunction(get_response):
        return lambda request: _ROUTES.get(request.path, get_response)(request)

    async def serve(request: HttpRequest) -> Any:
        view = _ROUTES.get(request.path)
        answer: Any = await (get_response(request) if view is None else sync_to_async(view)(request))
        return answer

    return serve
