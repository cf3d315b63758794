"""A request has no tenant until it is authenticated; requests of the console see all organizations."""

from contextlib import AbstractContextManager

from django.http import HttpRequest

from control.core.api.middleware import make_middleware
from control.tenants.row_security.scope import Across, across_tenants, without_tenant


def _scope(request: HttpRequest) -> AbstractContextManager[None]:
    return across_tenants(Across.CONSOLE) if request.path.startswith("/admin/") else without_tenant()


TenancyMiddleware = make_middleware(_scope)  # before all middleware that reads our tables
