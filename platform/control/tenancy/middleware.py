"""A request works for nobody until its key has said for whom; the console works for its operators."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from control.tenancy.scope import Across, across_tenants, for_nobody


class TenancyMiddleware:
    """Before everything that looks at a table of ours."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self._call_async(request)
        with _scope(request):
            return self.get_response(request)

    async def _call_async(self, request: HttpRequest) -> HttpResponseBase:
        with _scope(request):
            response = self.get_response(request)
            assert isinstance(response, Awaitable)
            answer: HttpResponseBase = await response
            return answer


def _scope(request: HttpRequest) -> AbstractContextManager[None]:
    return across_tenants(Across.CONSOLE) if request.path.startswith("/admin/") else for_nobody()
