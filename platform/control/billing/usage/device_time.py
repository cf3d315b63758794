"""Records device time at the current price of its kind of device, and sums its costs."""

import datetime as dt
from collections.abc import Sequence

from django.db.models import Q, QuerySet, Sum

from control.billing.ledger.models import LedgerLine, Subject
from control.billing.ledger.services import device_kind, ledger_add
from control.billing.usage.models import DevicePrice
from control.billing.usage.selectors import COUNTS, Bucket, Sums, UsageFilter, Window
from control.billing.usage.services import spend_add
from control.core.settings.config import get_config
from control.tenants.accounts.models import Organization
from control.tenants.authentication.caller import Caller

NANO = 10**9
_MILLISECOND = dt.timedelta(milliseconds=1)
_MILLISECONDS_AN_HOUR = 3_600_000


def device_time_add(
    *,
    caller: Caller,
    subject: Subject,
    object_id: str,
    sequence: str,
    device_kind: str,
    since: dt.datetime,
    until: dt.datetime,
    hour_nanousd: int | None = None,
) -> bool:
    """Records and charges the use of one device. Call this in the transaction of the change that ends the use.

    Args: hour_nanousd: the price of this device; None: the price of its kind.
    Returns: as `ledger_add`.
    """
    count = _milliseconds(since, until)
    price = hour_price(device_kind) if hour_nanousd is None else hour_nanousd
    line = LedgerLine(
        organization_id=caller.organization_id,
        project_id=caller.project_id,
        api_key_id=caller.api_key_id,
        subject=subject,
        object_id=object_id,
        sequence=sequence,
        device_kind=device_kind,
        count=count,
        started_at=since,
        ended_at=max(since, until),
        price_nanousd=price,
        cost_nanousd=_cost(count, price),
    )
    if not ledger_add(line):
        return False
    spend_add([(caller, line.ended_at, line.cost_nanousd)])
    return True


def device_time_nanousd(
    *, device_kind: str, since: dt.datetime, until: dt.datetime, hour_nanousd: int | None = None
) -> int:
    """Returns what `device_time_add` would charge now."""
    price = hour_price(device_kind) if hour_nanousd is None else hour_nanousd
    return _cost(_milliseconds(since, until), price)


def hour_price(device_kind: str) -> int | None:
    """Returns the current price of one hour of a device of this kind; None: operators have set none."""
    return DevicePrice.objects.filter(device_kind=device_kind).values_list("hour_nanousd", flat=True).first()


def _milliseconds(since: dt.datetime, until: dt.datetime) -> int:
    return max(0, (until - since) // _MILLISECOND)


def _cost(milliseconds: int, hour_nanousd: int | None) -> int:
    return milliseconds * (hour_nanousd or 0) // _MILLISECONDS_AN_HOUR


def device_price_set(*, device_kind: str, hour_nanousd: int) -> DevicePrice:
    """Sets the price from now on."""
    price, _ = DevicePrice.objects.update_or_create(device_kind=device_kind, defaults={"hour_nanousd": hour_nanousd})
    return price


def device_price_remove(*, device_kind: str) -> bool:
    """Removes the price. Returns: False if the kind of device has no price."""
    return bool(DevicePrice.objects.filter(device_kind=device_kind).delete()[0])


def device_prices() -> dict[str, float]:
    """Returns the price of one device hour in USD for each kind of device whose price the operators have set."""
    prices = {price.device_kind: price.hour_nanousd / NANO for price in DevicePrice.objects.all()}
    default = get_config().price_per_gpu_hour
    return prices if default is None else {device_kind(): default, **prices}


def device_nanousd(organization: Organization, *, start: dt.datetime, end: dt.datetime) -> int:
    """Returns the cost of the device time whose use ended in `[start, end)`, less its credits."""
    return _charged(organization, start, end).aggregate(sum=Sum("cost_nanousd"))["sum"] or 0


def device_costs_add(
    buckets: Sequence[Bucket],
    organization: Organization,
    *,
    window: Window,
    group_by: Sequence[str],
    usage_filter: UsageFilter,
) -> None:
    """Adds the costs of device time to the buckets in which its use ended.

    If usage is grouped by model, device time has separate sums for each kind of device and subject. The group of such
    a sum has the key `device` instead of `model`.
    Args: usage_filter: if it filters by models, no device time is added.
    """
    if usage_filter.models is not None:
        return
    columns = [name for name in group_by if name != "model"]
    devices = ["device_kind", "subject"] if "model" in group_by else []
    rows = (
        _filtered(_charged(organization, window.start, window.end), usage_filter)
        .annotate(bucket=window.width.truncate("ended_at", tzinfo=dt.UTC))
        .values("bucket", *columns, *devices)
        .annotate(milliseconds=Sum("count"), device_nanousd=Sum("cost_nanousd"))
        .order_by("bucket", *columns, *devices)
    )
    by_start = {bucket.start: bucket for bucket in buckets}
    for row in rows:
        group = {name: row[name] for name in columns}
        if devices:
            group["device"] = ", ".join(row[name] for name in devices)
        counts = {name: row[name] for name in ("milliseconds", "device_nanousd")}
        _add(by_start[row["bucket"]].sums, Sums(group, {**dict.fromkeys(COUNTS, 0), **counts}))


def _add(sums: list[Sums], added: Sums) -> None:
    for position, existing in enumerate(sums):
        if existing.group == added.group:
            sums[position] = Sums(existing.group, {**added.counts, **existing.counts})
            return
    sums.append(added)


def _filtered(lines: QuerySet[LedgerLine], usage_filter: UsageFilter) -> QuerySet[LedgerLine]:
    for name, values in (("project_id__in", usage_filter.project_ids), ("api_key_id__in", usage_filter.api_key_ids)):
        if values is not None:
            lines = lines.filter(**{name: values})
    if usage_filter.is_batch is None:
        return lines
    of_batches = Q(subject=Subject.BATCH_TIME)
    return lines.filter(of_batches if usage_filter.is_batch else ~of_batches)


def _charged(organization: Organization, start: dt.datetime, end: dt.datetime) -> QuerySet[LedgerLine]:
    lines = LedgerLine.objects.filter(organization=organization, ended_at__gte=start, ended_at__lt=end)
    return lines.filter(Q(cost_nanousd__gt=0) & ~Q(device_kind="") | Q(credit_reason__isnull=False))
