"""A request works for nobody until its key has said for whom; the console works for its operators."""

from contextlib import AbstractContextManager

from django.http import HttpRequest

from control.core.api.middleware import make_middleware
from control.tenants.row_security.scope import Across, across_tenants, for_nobody


def _scope(request: HttpRequest) -> AbstractContextManager[None]:
    return across_tenants(Across.CONSOLE) if request.path.startswith("/admin/") else for_nobody()


TenancyMiddleware = make_middleware(_scope)  # before everything that looks at a table of ours
