"""Pagination with OpenAI's list object: rows are sorted newest first, and a page starts after the id in `after`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.schemas import ResponseModel

DEFAULT_LIMIT = 20
MAX_LIMIT = 100

_Row = TypeVar("_Row", bound=Model)


def paginate(
    queryset: QuerySet[_Row],
    request: Request,
    render: Callable[[_Row], ResponseModel],
    *,
    max_limit: int = MAX_LIMIT,
    default_limit: int = DEFAULT_LIMIT,
    by: str = "pk",
    id_field: str = "pk",
    is_row: Callable[[str], Q] | None = None,
    prepare: Callable[[Sequence[_Row]], None] | None = None,
) -> Response:
    """Returns one page of `queryset` in the order of creation. A page starts after an id, so new rows do not shift it.

    If `by` and `id_field` are the same column, the row named by `after` may have been deleted since the previous page.
    Args:
        by: the column whose order is the order of creation.
        id_field: the column that holds the public `id`.
        is_row: returns a condition that matches the row with a given public `id`, if no column holds the public ids.
        prepare: called with the rows of the page before they are rendered.
    Raises: ApiError: 400: the limit is out of range, the order is neither asc nor desc, or `after` does not exist.
    """
    limit = _limit(request.query_params.get("limit"), default_limit, max_limit)
    ascending = _is_ascending(request.query_params.get("order", "desc"))
    if after := request.query_params.get("after"):
        comparison = "gt" if ascending else "lt"
        if is_row is None and by == id_field:
            queryset = queryset.filter(**{f"{by}__{comparison}": after})
        else:
            named = queryset.filter(is_row(after) if is_row is not None else Q(**{id_field: after}))
            queryset = queryset.filter(_follows(named, after, by, comparison))
    rows = list(queryset.order_by(*((by, "pk") if ascending else (f"-{by}", "-pk")))[: limit + 1])
    if prepare is not None:
        prepare(rows[:limit])
    data = [render(row).as_json() for row in rows[:limit]]
    return _page(data, has_more=len(rows) > limit)


def _page(data: list[dict[str, Any]], *, has_more: bool) -> Response:
    return Response(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": has_more,
        }
    )


def _follows(named: QuerySet[_Row], after: str, by: str, comparison: str) -> Q:
    """Matches the rows that follow the row that `after` names. Rows are ordered by `by` and then by primary key."""
    row = named.values(by, "pk").first()
    if row is None:
        raise ApiError(400, f"after must be an id of this list, got {after[:80]!r}", "invalid_value", "after")
    return Q(**{f"{by}__{comparison}": row[by]}) | Q(**{by: row[by], f"pk__{comparison}": row["pk"]})


def paginate_list(objects: Sequence[ResponseModel], request: Request) -> Response:
    """Returns one page of `objects`, which are sorted newest first. Raises: ApiError: 400: a bad limit or `after`."""
    items = [item.as_json() for item in objects]
    limit = _limit(request.query_params.get("limit"), DEFAULT_LIMIT, MAX_LIMIT)
    first = 0
    if after := request.query_params.get("after"):
        last = next((position for position, item in enumerate(items) if item["id"] == after), None)
        if last is None:
            raise ApiError(400, f"after must be an id of this list, got {after[:80]!r}", "invalid_value", "after")
        first = last + 1
    data = items[first : first + limit]
    return _page(data, has_more=len(items) > first + limit)


def _limit(text: str | None, default: int, maximum: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= maximum and len(text) < 9):
        raise ApiError(400, f"limit must be in 1..{maximum}, got {text[:40]!r}", "invalid_value", "limit")
    return int(text)


def _is_ascending(order: str) -> bool:
    if order not in ("asc", "desc"):
        raise ApiError(400, f"order must be asc or desc, got {order[:40]!r}", "invalid_value", "order")
    return order == "asc"
