"""What callers are told while the database is away, by views outside of rest_framework too."""

from contextlib import nullcontext

import structlog
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse

from control.core.api.around import around
from control.core.api.errors import database_unavailable, error_response

log = structlog.get_logger(__name__)


def _answer(request: HttpRequest, error: Exception) -> HttpResponse | None:
    if not isinstance(error, OperationalError | InterfaceError) or request.path.startswith("/admin/"):
        return None
    log.error("database not reached", exc_info=error)
    return error_response(database_unavailable())


OutageMiddleware = around(lambda request: nullcontext(), failed=_answer)
