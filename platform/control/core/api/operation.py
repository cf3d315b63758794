"""Declares an API operation on a view's method: its id, its request and its response.

The decorator validates the body and renders the response; the OpenAPI document is generated from the declarations.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.preconditions import etag_of, only_if_match
from control.core.api.requests import parse_request
from control.core.api.schemas import RequestModel, ResponseModel

BINARY = "application/octet-stream"
LINES = "application/x-ndjson"
CSV = "text/csv"
EVENTS = "text/event-stream"
PNG, SVG = "image/png", "image/svg+xml"

PAGING = {
    "after": "The `last_id` of the previous page.",
    "limit": "The number of objects in the page, from 1 to 100.",
    "order": "`desc` (the newest first) or `asc` (the oldest first).",
}

_Method = Callable[..., ResponseModel | HttpResponseBase]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    id: str
    summary: str | None = None  # a line for people; None: derived from the id, as in "List batches"
    response: Any  # a response model, or the media type of a response that is not JSON
    status: int = 200
    request: Any = None  # a request model; None: the operation takes no body
    query: Mapping[str, str] | None = None  # descriptions of the parameters by name
    also: str | None = None  # a second media type of the response
    plan: Any = None  # the response model for requests with `validate_only`; the status of these responses is 200
    tagged_by: Any = None  # the request model whose members the ETag of the response covers; see `preconditions`


def operation(
    id: str,  # noqa: A002  # OpenAPI's name
    *,
    response: type[ResponseModel] | str,
    summary: str | None = None,
    status: int = 200,
    request: type[RequestModel] | None = None,
    query: Mapping[str, str] | None = None,
    also: str | None = None,
    plan: type[ResponseModel] | None = None,
    tagged_by: type[RequestModel] | None = None,
) -> Callable[[_Method], Callable[..., HttpResponseBase]]:
    """Decorates a method of an `OrganizationView`. With `request`, the method gets the validated body as `body`.

    The method returns a response model, or a complete HTTP response, for example for a file or a page of a list.
    """
    declared = Operation(
        id=id, summary=summary, response=response, status=status, request=request, query=query, also=also, plan=plan,
        tagged_by=tagged_by,
    )  # fmt: skip

    def decorate(method: _Method) -> Callable[..., HttpResponseBase]:
        @wraps(method)
        def run(view: Any, http_request: Request, **kwargs: Any) -> HttpResponseBase:
            ids = dict(kwargs)
            if request is not None:
                kwargs["body"] = parse_request(request, view.request_body(http_request))
            is_conditional = tagged_by is not None and request is not None
            with only_if_match(view, http_request, ids) if is_conditional else nullcontext():
                result = method(view, http_request, **kwargs)
            if isinstance(result, ResponseModel):
                is_plan = plan is not None and isinstance(result, plan)
                headers = None if tagged_by is None else {"ETag": etag_of(result, tagged_by)}
                return Response(result.as_json(), status=200 if is_plan else status, headers=headers)
            return result

        run.operation = declared  # type: ignore[attr-defined]
        return run

    return decorate


def operation_of(view: Any, method: str) -> Operation | None:
    """Returns the operation declared for an HTTP method of a view class."""
    declared: Operation | None = getattr(getattr(view, method.lower()), "operation", None)
    return declared
