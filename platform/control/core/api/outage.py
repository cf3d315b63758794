"""Middleware that responds with 503 if the database cannot be reached. It also covers views without rest_framework."""

from contextlib import nullcontext

import structlog
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse

from control.core.api.errors import database_unavailable, error_response
from control.core.api.middleware import make_middleware

log = structlog.get_logger(__name__)


def _respond(request: HttpRequest, error: Exception) -> HttpResponse | None:
    if not isinstance(error, OperationalError | InterfaceError) or request.path.startswith("/admin/"):
        return None
    log.error("database not reachable", exc_info=error)
    return error_response(database_unavailable())


OutageMiddleware = make_middleware(lambda request: nullcontext(), on_exception=_respond)
