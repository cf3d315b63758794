"""Selectors for usage: sums over buckets of time, as in OpenAI's API."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import TruncDay, TruncHour, TruncMinute

from control.billing.ledger.models import LedgerLine
from control.billing.usage.models import Price, UsageRecord
from control.core.api.errors import ApiError
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible

FREE = Price(base_model_id="", input_nanousd=0, output_nanousd=0)
COUNTS = ("input_tokens", "cached_tokens", "output_tokens", "requests", "input_nanousd", "output_nanousd")


@dataclass(frozen=True, slots=True)
class Width:
    """A width of buckets, and OpenAI's limits for the number of buckets in a response."""

    seconds: int
    truncate: Any  # database function that rounds a time down to the bucket's start
    default_limit: int
    max_limit: int


WIDTHS: Mapping[str, Width] = {
    "1m": Width(60, TruncMinute, 60, 1440),
    "1h": Width(3600, TruncHour, 24, 168),
    "1d": Width(86400, TruncDay, 7, 31),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The half-open interval `[start, end)`. Both ends are boundaries of buckets."""

    start: dt.datetime
    end: dt.datetime
    width: Width

    def starts(self) -> Iterable[dt.datetime]:
        moment = self.start
        while moment < self.end:
            yield moment
            moment += dt.timedelta(seconds=self.width.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """Restricts usage records; None means no restriction."""

    models: Sequence[str] | None = None
    project_ids: Sequence[str] | None = None
    api_key_ids: Sequence[str] | None = None
    is_batch: bool | None = None

    def apply(self, records: QuerySet[UsageRecord]) -> QuerySet[UsageRecord]:
        for name, values in (
            ("model__in", self.models),
            ("project_id__in", self.project_ids),
            ("api_key_id__in", self.api_key_ids),
            ("is_batch", self.is_batch),
        ):
            if values is not None:
                records = records.filter(**{name: values})
        return records


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over one bucket and one group, that is, one combination of values of the columns in `group_by`."""

    group: Mapping[str, Any]
    counts: Mapping[str, int]


@dataclass(slots=True)
class Bucket:
    start: dt.datetime
    end: dt.datetime
    sums: list[Sums] = field(default_factory=list)


def usage_buckets(
    organization: Organization, *, window: Window, group_by: Sequence[str] = (), usage_filter: UsageFilter | None = None
) -> list[Bucket]:
    """Returns all buckets of the window, including those without usage."""
    records = UsageRecord.objects.filter(visible(organization), minute__gte=window.start, minute__lt=window.end)
    rows = (
        (usage_filter or UsageFilter())
        .apply(records)
        .annotate(bucket=window.width.truncate("minute", tzinfo=dt.UTC))
        .values("bucket", *group_by)
        .annotate(**{f"sum_{name}": Sum(name) for name in COUNTS})
        .order_by("bucket", *group_by)
    )
    step = dt.timedelta(seconds=window.width.seconds)
    buckets = {start: Bucket(start, start + step) for start in window.starts()}
    for row in rows:
        counts = {name: row[f"sum_{name}"] for name in COUNTS}
        buckets[row["bucket"]].sums.append(Sums({name: row[name] for name in group_by}, counts))
    return list(buckets.values())


def usage_total(organization: Organization, *, start: dt.datetime, end: dt.datetime) -> Sums:
    records = UsageRecord.objects.filter(visible(organization), minute__gte=start, minute__lt=end)
    sums = records.aggregate(**{f"sum_{name}": Sum(name) for name in COUNTS})
    return Sums({}, {name: sums[f"sum_{name}"] or 0 for name in COUNTS})


def ledger_lines(
    organization: Organization, *, start: dt.datetime, end: dt.datetime, subject: str | None, device_kind: str | None
) -> QuerySet[LedgerLine]:
    """Returns the lines that ended within `[start, end)`."""
    lines = LedgerLine.objects.filter(organization=organization, ended_at__gte=start, ended_at__lt=end)
    equal = {"subject": subject, "device_kind": device_kind}
    return lines.filter(**{name: value for name, value in equal.items() if value is not None})


def line_id(line: LedgerLine) -> str:
    """Returns the line's public id. The primary key is not public, because it shows how much all organizations use."""
    return f"{line.subject}:{line.object_id}:{line.sequence}"


def is_line(identity: str) -> Q:
    """Returns a condition that matches the line with this public id."""
    subject, _, rest = identity.partition(":")
    object_id, _, sequence = rest.partition(":")
    return Q(subject=subject, object_id=object_id, sequence=sequence)


def price_of(base_model_id: str) -> Price:
    """Returns the base model's current price. If it has none, returns the general price, or zero if there is none."""
    return _own_or_general_price(base_model_id) or FREE


def require_price(*, base_model_id: str, name: str) -> None:
    """Refuses a model without a price. Called by every service that starts work for a model, and by the gateway for
    each request.

    Args: name: the base model's name, for the message.
    Raises: ApiError: 403, prices are in use on this installation, and this model has none.
    """
    if _own_or_general_price(base_model_id) is None and Price.objects.exists():
        message = f"The model {name[:120]!r} has no price on this installation, so it is not served. Ask the operator."
        raise ApiError(403, message, "model_not_priced", "model")


def _own_or_general_price(base_model_id: str) -> Price | None:
    prices = {price.base_model_id: price for price in Price.objects.filter(base_model_id__in=(base_model_id, ""))}
    return prices.get(base_model_id) or prices.get("")


def prices_unassigned() -> QuerySet[Price]:
    """Returns prices of earlier releases under names that no shared base model has. They apply to no model."""
    return Price.objects.filter(base_model_id=None)
