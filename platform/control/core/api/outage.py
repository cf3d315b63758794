"""Middleware that responds with 503 if the database cannot be reached. It also covers views without rest_framework."""

from contextlib import nullcontext

import structlog
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse

from control.core.api.errors import database_unavailable, error_response
from control.core.api.middleware import make_middleware

log = structlog.get_logger(__name__)


def response_to_outage(request: HttpRequest, error: Exception) -> HttpResponse | None:
    """Returns None if the error is not an outage."""
    if not isinstance(error, OperationalError | InterfaceError) or request.path.startswith("/admin/"):
        return None
    log.error("database not reachable", exc_info=error)
    return error_response(database_unavailable())


OutageMiddleware = make_middleware(lambda request: nullcontext(), on_exception=response_to_outage)
