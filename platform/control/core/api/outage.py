"""Middleware that responds with 503 if the database cannot be reached. It also covers views without rest_framework."""

from contextlib import nullcontext

import structlog
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse

from control.core.api.errors import ApiError, database_unavailable, error_response
from control.core.api.middleware import make_middleware

log = structlog.get_logger(__name__)


def outage(error: Exception) -> ApiError | None:
    """Logs a lost connection to the database and returns the 503 for it. Returns None for any other error."""
    if not isinstance(error, OperationalError | InterfaceError):
        return None
    log.error("database not reachable", exc_info=error)
    return database_unavailable()


def _response(request: HttpRequest, error: Exception) -> HttpResponse | None:
    found = None if request.path.startswith("/admin/") else outage(error)
    return None if found is None else error_response(found)


OutageMiddleware = make_middleware(lambda request: nullcontext(), on_exception=_response)
