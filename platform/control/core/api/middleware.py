"""Builds sync and async Django middleware from a context manager for the request and callbacks for its result."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


def make_middleware(
    context: Callable[[HttpRequest], AbstractContextManager[None]],
    on_response: Callable[[HttpRequest, HttpResponseBase], None] = lambda request, response: None,
    on_exception: Callable[[HttpRequest, Exception], HttpResponse | None] = lambda request, error: None,
) -> Callable[[GetResponse], Any]:
    """Returns a factory for Django's MIDDLEWARE.

    Args:
        context: entered before the view is called and left after `on_response`.
        on_response: may change the response.
        on_exception: may return a response for an exception that the view raised.
    """

    def middleware(get_response: GetResponse) -> Any:
        if not iscoroutinefunction(get_response):

            def serve(request: HttpRequest) -> HttpResponseBase:
                with context(request):
                    response = get_response(request)
                    assert isinstance(response, HttpResponseBase)
                    on_response(request, response)
                    return response

            serve.process_exception = on_exception  # type: ignore[attr-defined]  # Django looks it up here
            return serve

        async def serve_async(request: HttpRequest) -> HttpResponseBase:
            with context(request):
                pending = get_response(request)
                assert isinstance(pending, Awaitable)
                response: HttpResponseBase = await pending
                on_response(request, response)
                return response

        serve_async.process_exception = on_exception  # type: ignore[attr-defined]
        return serve_async

    decorated: Callable[[GetResponse], Any] = sync_and_async_middleware(middleware)
    return decorated
