"""Every response has an `x-request-id`, every log line of its request has the same."""

import re
import secrets
from contextlib import AbstractContextManager

import structlog
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from control.core.api.around import around

HEADER = "x-request-id"
_ACCEPTABLE = re.compile(r"[A-Za-z0-9_.-]{8,128}")  # a caller's own id goes into logs: nothing that could forge a line


def request_id(request: HttpRequest) -> str:
    return str(request.META["SLIPSTREAM_REQUEST_ID"])


def _assign(request: HttpRequest) -> AbstractContextManager[None]:
    given = request.headers.get(HEADER, "")
    chosen = given if _ACCEPTABLE.fullmatch(given) else f"req_{secrets.token_hex(16)}"
    request.META["SLIPSTREAM_REQUEST_ID"] = chosen
    return structlog.contextvars.bound_contextvars(request_id=chosen)


def _answer(request: HttpRequest, response: HttpResponseBase) -> None:
    response[HEADER] = request_id(request)


RequestIdMiddleware = around(_assign, _answer)
