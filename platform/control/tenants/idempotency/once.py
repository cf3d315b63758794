"""Makes POST requests safe to retry: requests with the same `Idempotency-Key` are executed once, with one response.

The view's changes and its stored response share one transaction, so the response is not lost if the process dies after
the commit but before it reaches the caller. The transaction begins at the first change, after the view has stored and
read files (`core.transactions`). Only successful responses are stored: a refused request changed nothing and may
succeed later. Chat and completion requests ignore the header: they change nothing, and a seed makes them repeatable.
"""

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change, transaction_from_first_change
from control.tenants.accounts.models import Organization
from control.tenants.idempotency.fingerprint import fingerprint, is_dry_run
from control.tenants.idempotency.services import Claim, StoredResponse, key_claim, key_release, key_store

HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotency-Replayed"
MAX_KEY_LENGTH = 255
MAX_ROUTE_LENGTH = 300
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')  # a string of RFC 8941, as in the header's draft standard


class IdempotentView(Protocol):
    organization: Organization
    not_replayed: tuple[str, ...]  # members of the response that are never stored, because they hold secrets


Post = Callable[..., HttpResponseBase]


def once(post: Post) -> Post:
    """Decorates the `post` of a view: a request with an `Idempotency-Key` is executed only once."""

    @wraps(post)
    def post_once(self: IdempotentView, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if HEADER not in request.headers or is_dry_run(request):
            return post(self, request, *args, **kwargs)
        claim = key_claim(
            organization=self.organization,
            route=_route(request),
            key=_key(request.headers[HEADER]),
            fingerprint=fingerprint(request),
        )
        if isinstance(claim, StoredResponse):
            return _replay(claim)
        return _execute(claim, self.not_replayed, lambda: post(self, request, *args, **kwargs))

    return post_once


def _execute(claim: Claim, not_replayed: tuple[str, ...], handle: Callable[[], HttpResponseBase]) -> HttpResponseBase:
    is_stored = False
    try:
        with delete_stored_on_error(), transaction_from_first_change():
            response = handle()
            if isinstance(response, Response) and response.status_code < 400:
                with change():
                    key_store(claim=claim, status=response.status_code, body=_stored_body(response, not_replayed))
                is_stored = True
        return response
    except BaseException:
        is_stored = False  # the transaction has been rolled back
        raise
    finally:
        if not is_stored:
            key_release(claim=claim)


def _stored_body(response: Response, not_replayed: tuple[str, ...]) -> str:
    data = response.data
    if not_replayed:
        data = {**data, **dict.fromkeys(not_replayed)}
    rendered: bytes = JSONRenderer().render(data)
    return rendered.decode()


def _replay(stored: StoredResponse) -> HttpResponse:
    return HttpResponse(
        stored.body, status=stored.status, content_type="application/json", headers={REPLAYED_HEADER: "true"}
    )


def _route(request: Request) -> str:
    route = f"{request.method} {request.path}"
    if len(route) > MAX_ROUTE_LENGTH:
        raise Http404  # no existing resource has so long a path
    return route


def _key(header: str) -> str:
    """Parses the header's value, with or without quotes. Raises: ApiError: 400."""
    quoted = _QUOTED.fullmatch(header.strip())
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else header.strip()
    if not 1 <= len(key) <= MAX_KEY_LENGTH or not (key.isascii() and key.isprintable()):
        message = f"{HEADER} must have 1 to {MAX_KEY_LENGTH} printable ASCII characters, got {len(key)}"
        raise ApiError(400, message, "invalid_idempotency_key")
    return key
