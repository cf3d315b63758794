"""Every response has an `x-request-id`, every log line of its request has the same."""

import re
import secrets
from collections.abc import Awaitable, Callable

import structlog
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

HEADER = "x-request-id"
_ACCEPTABLE = re.compile(r"[A-Za-z0-9_.-]{8,128}")  # a caller's own id goes into logs: nothing that could forge a line


class RequestIdMiddleware:
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
        with structlog.contextvars.bound_contextvars(request_id=_assign(request)):
            response = self.get_response(request)
        assert isinstance(response, HttpResponseBase)
        response[HEADER] = request.META["SLIPSTREAM_REQUEST_ID"]
        return response

    async def _call_async(self, request: HttpRequest) -> HttpResponseBase:
        with structlog.contextvars.bound_contextvars(request_id=_assign(request)):
            response = self.get_response(request)
            assert isinstance(response, Awaitable)
            answer: HttpResponseBase = await response
        answer[HEADER] = request.META["SLIPSTREAM_REQUEST_ID"]
        return answer


def request_id(request: HttpRequest) -> str:
    return str(request.META["SLIPSTREAM_REQUEST_ID"])


def _assign(request: HttpRequest) -> str:
    given = request.headers.get(HEADER, "")
    chosen = given if _ACCEPTABLE.fullmatch(given) else f"req_{secrets.token_hex(16)}"
    request.META["SLIPSTREAM_REQUEST_ID"] = chosen
    return chosen
