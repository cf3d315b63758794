"""The routes of completions in Django's URL table.

`control.asgi` sends requests for these paths to `application.Gateway`. Under Django's own handlers, such as that of
its test client, the view below serves these requests instead, without caches and in the request's own thread.
"""

from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from control.core.api.body_limit import too_large
from control.core.settings.config import get_config
from control.serving.gateway.accounting import observe, write
from control.serving.gateway.capturing import keep, to_capture
from control.serving.gateway.completion_request import CompletionRequest
from control.serving.gateway.ended import Ended
from control.serving.gateway.large_bodies import read_small
from control.serving.gateway.open_requests import OpenRequests
from control.serving.gateway.routes import Routes
from control.serving.gateway.serving import Entrance, serve
from control.tenants.authentication.caller import Caller


@csrf_exempt
async def generate(request: HttpRequest) -> HttpResponseBase:
    return await serve(request, InDjango(request), Entrance(path=request.path))


class InDjango:
    """A `serving.Backend` for one request."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self.routes, self.open_requests = Routes(self.call), OpenRequests()
        self.shadows = None  # there is no event loop on which copies could be sent after the answer

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(function)(*args, **kwargs)

    async def receive_body(self, add: Callable[[int], None]) -> bytes:
        try:
            body = self._request.body
        except RequestDataTooBig as error:
            raise too_large(get_config().max_body_bytes) from error
        add(len(body))
        return body

    async def read_body(self, raw: bytes, path: str, *, organization_id: str) -> tuple[CompletionRequest, bytes]:
        return read_small(raw, path)

    def begin(self, caller: Caller, reservation_id: str) -> None:
        """Does nothing, because this backend never renews a reservation."""

    async def end(self, ended: Ended) -> None:
        await sync_to_async(_record)(ended)


def _record(ended: Ended) -> None:
    write([ended])
    observe([ended])
    keep(ended.caller.organization_id, to_capture([ended]))
