"""Middleware for both kinds of server: what holds while a request is served, and a last word on its answer."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


def around(
    scope: Callable[[HttpRequest], AbstractContextManager[None]],
    finish: Callable[[HttpRequest, HttpResponseBase], None] = lambda request, response: None,
    failed: Callable[[HttpRequest, Exception], HttpResponse | None] = lambda request, error: None,
) -> Callable[[GetResponse], Any]:
    """What MIDDLEWARE names. `failed` may answer for a view that raised."""

    def middleware(get_response: GetResponse) -> Any:
        if not iscoroutinefunction(get_response):

            def serve(request: HttpRequest) -> HttpResponseBase:
                with scope(request):
                    response = get_response(request)
                    assert isinstance(response, HttpResponseBase)
                    finish(request, response)
                    return response

            serve.process_exception = failed  # type: ignore[attr-defined]  # where Django looks for it
            return serve

        async def serve_async(request: HttpRequest) -> HttpResponseBase:
            with scope(request):
                pending = get_response(request)
                assert isinstance(pending, Awaitable)
                response: HttpResponseBase = await pending
                finish(request, response)
                return response

        serve_async.process_exception = failed  # type: ignore[attr-defined]
        return serve_async

    decorated: Callable[[GetResponse], Any] = sync_and_async_middleware(middleware)
    return decorated
