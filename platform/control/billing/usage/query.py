"""Parses the query parameters of OpenAI's routes for usage and costs.

A list is given by repeating its parameter, as `name[]=` or `name=`.
"""

import datetime as dt

from django.http import QueryDict
from django.utils import timezone

from control.billing.usage.selectors import WIDTHS, UsageFilter, Window
from control.core.api.errors import ApiError

# Columns of `UsageRecord` by OpenAI's names.
USAGE_GROUPS = {"project_id": "project_id", "api_key_id": "api_key_id", "model": "model", "batch": "is_batch"}
COST_GROUPS = {"project_id": "project_id", "api_key_id": "api_key_id", "line_item": "model"}
# Descriptions of the parameters
WINDOW_QUERY = {
    "start_time": "Unix seconds.",
    "end_time": "Unix seconds. The default is now.",
    "bucket_width": "`1m`, `1h` or `1d`.",
    "limit": "The number of buckets.",
    "page": "`next_page` of the previous page.",
}
BUCKETS_QUERY = {
    **WINDOW_QUERY,
    "group_by[]": "Splits the results by this property. May be given several times.",
    "project_ids[]": "Only usage of these projects.",
    "api_key_ids[]": "Only usage of these API keys.",
    "models[]": "Only usage of these models.",
    "batch": "`true`: only usage of batches; `false`: only other usage.",
}
MAX_COST_BUCKETS = 180
MAX_UNIX = 253_370_764_800  # the year 9999
_MAX_VALUES = 100


def parse_window(params: QueryDict, *, widths: tuple[str, ...] = tuple(WIDTHS), max_limit: int | None = None) -> Window:
    """Returns a window of at most `limit` buckets.

    It starts at `page` or, without this parameter, at `start_time`. It ends at `end_time`, which by default is now.

    Raises: ApiError: 400.
    """
    name = params.get("bucket_width", "1d")
    if name not in widths:
        raise _invalid("bucket_width", f"must be one of {list(widths)}, got {name[:20]!r}")
    width = WIDTHS[name]
    limit = _integer(params, "limit", 1, max_limit or width.max_limit, default=width.default_limit)
    start = _integer(params, "start_time", 0, MAX_UNIX, default=None)
    end = _integer(params, "end_time", 0, MAX_UNIX, default=int(timezone.now().timestamp()) + 1)
    start = _integer(params, "page", start, MAX_UNIX, default=start)
    start -= start % width.seconds
    # `-end % width` rounds the end up to a boundary of buckets.
    end = min(end + -end % width.seconds, start + limit * width.seconds)
    return Window(
        start=dt.datetime.fromtimestamp(start, dt.UTC), end=dt.datetime.fromtimestamp(end, dt.UTC), width=width
    )


def parse_group_by(params: QueryDict, columns: dict[str, str]) -> list[str]:
    """Returns columns of `UsageRecord`. Raises: ApiError: 400.

    Args: columns: the allowed columns by OpenAI's names.
    """
    names = list(dict.fromkeys(_list(params, "group_by") or ()))
    if unknown := [name for name in names if name not in columns]:
        raise _invalid("group_by", f"must be one of {sorted(columns)}, got {unknown[0][:40]!r}")
    return [columns[name] for name in names]


def parse_filter(params: QueryDict) -> UsageFilter:
    """Raises: ApiError: 400."""
    batch = params.get("batch")
    if batch not in (None, "true", "false"):
        raise _invalid("batch", f"must be true or false, got {str(batch)[:20]!r}")
    return UsageFilter(
        models=_list(params, "models"),
        project_ids=_list(params, "project_ids"),
        api_key_ids=_list(params, "api_key_ids"),
        is_batch=None if batch is None else batch == "true",
    )


def parse_span(params: QueryDict) -> tuple[dt.datetime, dt.datetime]:
    """Returns start and end; the defaults are the first day of the month and now. Raises: ApiError: 400."""
    now = timezone.now()
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    start = _integer(params, "start_time", 0, MAX_UNIX, default=int(month.timestamp()))
    end = _integer(params, "end_time", start, MAX_UNIX, default=max(start, int(now.timestamp()) + 1))
    return dt.datetime.fromtimestamp(start, dt.UTC), dt.datetime.fromtimestamp(end, dt.UTC)


def has_more(params: QueryDict, window: Window) -> bool:
    """Returns whether the requested time extends beyond the window."""
    end = _integer(params, "end_time", 0, MAX_UNIX, default=int(timezone.now().timestamp()) + 1)
    return window.end.timestamp() < end


def _list(params: QueryDict, name: str) -> list[str] | None:
    values = [*params.getlist(f"{name}[]"), *params.getlist(name)]
    if len(values) > _MAX_VALUES:
        raise _invalid(name, f"must have at most {_MAX_VALUES} values, got {len(values)}")
    return values or None


def _integer(params: QueryDict, name: str, low: int, high: int, *, default: int | None) -> int:
    text = params.get(name)
    if text is None:
        if default is None:
            raise ApiError(400, f"{name}: this parameter is required.", "missing_required_parameter", name)
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and low <= int(text) <= high):
        raise _invalid(name, f"must be in {low}..{high}, got {text[:40]!r}")
    return int(text)


def _invalid(name: str, message: str) -> ApiError:
    return ApiError(400, f"{name} {message}", "invalid_value", name)
