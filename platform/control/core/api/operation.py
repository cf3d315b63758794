"""Declares an operation on the view's method: its name, what it takes and what it answers.

The declaration checks the body, renders the answer, and is what the OpenAPI document is generated from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.requests import parse_request
from control.core.api.schemas import RequestModel, ResponseModel

BINARY = "application/octet-stream"
LINES = "application/x-ndjson"
EVENTS = "text/event-stream"
PNG, SVG = "image/png", "image/svg+xml"

PAGING = {
    "after": "The last id of the page before.",
    "limit": "1 to 100.",
    "order": "`desc`, the newest first, or `asc`.",
}

_Method = Callable[..., ResponseModel | HttpResponseBase]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    id: str
    response: Any  # a response model, or the media type of what is not JSON
    status: int = 200
    request: Any = None  # a request model; None: it takes no body
    query: Mapping[str, str] | None = None  # descriptions of the parameters by name
    also: str | None = None  # a second media type of the response


def operation(
    id: str,  # noqa: A002  # OpenAPI's name
    *,
    response: type[ResponseModel] | str,
    status: int = 200,
    request: type[RequestModel] | None = None,
    query: Mapping[str, str] | None = None,
    also: str | None = None,
) -> Callable[[_Method], Callable[..., HttpResponseBase]]:
    """Decorates a method of an `OrganizationView`. With `request`, the method gets the checked body as `body`.

    The method returns a response model, or an HTTP response if it needs more than that, as a page or a file does.
    """
    declared = Operation(id=id, response=response, status=status, request=request, query=query, also=also)

    def decorate(method: _Method) -> Callable[..., HttpResponseBase]:
        @wraps(method)
        def run(view: Any, http_request: Request, **kwargs: Any) -> HttpResponseBase:
            if request is not None:
                kwargs["body"] = parse_request(request, view.request_body(http_request))
            answer = method(view, http_request, **kwargs)
            if isinstance(answer, ResponseModel):
                return Response(answer.as_json(), status=status)
            return answer

        run.operation = declared  # type: ignore[attr-defined]
        return run

    return decorate


def operation_of(view: Any, method: str) -> Operation | None:
    """What was declared on a method of a view class; `method` is HTTP's name for it."""
    declared: Operation | None = getattr(getattr(view, method.lower()), "operation", None)
    return declared
