"""Middleware that gives every response an `x-request-id`, which all log lines of the request carry too."""

import re
import secrets
from contextlib import AbstractContextManager

import structlog
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from control.core.api.middleware import make_middleware

HEADER = "x-request-id"
_ACCEPTABLE = re.compile(r"[A-Za-z0-9_.-]{8,128}")  # a caller's id is logged, so it must not contain line breaks


def request_id(request: HttpRequest) -> str:
    return str(request.META["SLIPSTREAM_REQUEST_ID"])


def _assign(request: HttpRequest) -> AbstractContextManager[None]:
    sent_id = request.headers.get(HEADER, "")
    identity = sent_id if _ACCEPTABLE.fullmatch(sent_id) else f"req_{secrets.token_hex(16)}"
    request.META["SLIPSTREAM_REQUEST_ID"] = identity
    return structlog.contextvars.bound_contextvars(request_id=identity)


def _add_header(request: HttpRequest, response: HttpResponseBase) -> None:
    response[HEADER] = request_id(request)


RequestIdMiddleware = make_middleware(_assign, _add_header)
