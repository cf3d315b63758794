"""Feeds the detector with the acceptance length of each running deployment, and records its alarms as events.

Workers call `acceptance_watch_all` every minute. The row of `AcceptanceWatch` stores the time up to which the samples
have been read. The transaction that writes the event moves this time by a compare-and-swap. Each minute is therefore
counted once and each drop is reported once, even if several workers read at the same time, or if a worker dies.
"""

import datetime as dt
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.db import transaction
from django.utils import timezone

from control.billing.usage.selectors import WIDTHS, Window
from control.serving.acceptance.detector import Change, Detector, observe
from control.serving.acceptance.models import AcceptanceWatch
from control.serving.acceptance.options import alarm_of
from control.serving.deployments.figures import figures_by_bucket
from control.serving.deployments.models import UP, Deployment, Replica
from control.tenants.events.services import event_record
from control.tenants.row_security.each import each_as_tenant

State = AcceptanceWatch.State

MIN_DRAFTS = 100  # successive minutes are added to a bin until the bin has at least this many drafts
MAX_LOOKBACK = dt.timedelta(hours=1)  # older samples are skipped, for example if no worker has run for some hours
SETTLE = dt.timedelta(seconds=30)  # a minute is read this long after its end
_CHUNK = 100
_DETECTOR_FIELDS = ("num_bins", "num_drafts", "mean", "squares", "statistic", "current")


def acceptance_watch_all() -> None:
    """Reads the samples of all deployments that serve with a speculator and that have a process."""
    each_as_tenant(
        _running(),
        lambda deployment: acceptance_watch(deployment=deployment),
        failure="could not watch the acceptance length",
        name="deployment_id",
    )


def _running() -> Iterator[Deployment]:
    """Yields the deployments that have a speculator and a process.

    The query starts from the replicas, because the table of deployments keeps all deleted deployments.
    """
    ids = sorted(set(Replica.objects.filter(state__in=UP).values_list("deployment_id", flat=True)))
    for start in range(0, len(ids), _CHUNK):
        rows = Deployment.objects.filter(pk__in=ids[start : start + _CHUNK], deleted_at=None, canary_of=None)
        yield from rows.exclude(speculator=None).select_related("acceptance_watch")


def acceptance_watch(*, deployment: Deployment) -> list[Change]:
    """Reads the minutes since the last call. Returns the changes that this call recorded, oldest first.

    After a change of the speculator, nothing is read until all processes serve with the new speculator, because the
    samples of processes that are still being replaced belong to the old speculator.
    """
    watch: AcceptanceWatch | None = getattr(deployment, "acceptance_watch", None)
    if watch is None or watch.speculator_id != deployment.speculator_id:
        if deployment.observed_generation == deployment.generation:
            _begin(deployment)
        return []
    end = (timezone.now() - SETTLE).astimezone(dt.UTC).replace(second=0, microsecond=0)
    start = max(watch.until, end - MAX_LOOKBACK)
    if start >= end:
        return []
    return _read(deployment, watch, Window(start=start, end=end, width=WIDTHS["1m"]))


def _begin(deployment: Deployment) -> None:
    """Starts to learn the reference of the speculator, from the next full minute on."""
    next_minute = timezone.now().astimezone(dt.UTC).replace(second=0, microsecond=0) + dt.timedelta(minutes=1)
    fresh = AcceptanceWatch(deployment=deployment, organization_id=deployment.organization_id, until=next_minute)
    fresh.speculator_id = str(deployment.speculator_id)
    AcceptanceWatch.objects.update_or_create(deployment=deployment, defaults=_columns(fresh))


def _columns(watch: AcceptanceWatch) -> dict[str, Any]:
    columns = [field.attname for field in AcceptanceWatch._meta.concrete_fields if not field.primary_key]
    return {name: getattr(watch, name) for name in columns}


def _read(deployment: Deployment, watch: AcceptanceWatch, window: Window) -> list[Change]:
    until, changes = watch.until, list[Change]()
    for minute, figures in sorted(figures_by_bucket(deployment, window).items()):
        watch.pending_drafts += max(0.0, figures.counts["drafts"])
        watch.pending_accepted += max(0.0, figures.counts["accepted_tokens"])
        if watch.pending_drafts >= MIN_DRAFTS:
            changes += _close_bin(watch, minute, alarm_of(deployment).reference_minutes)
    watch.until = window.end
    with transaction.atomic():
        unread = AcceptanceWatch.objects.filter(pk=watch.pk, until=until, speculator_id=watch.speculator_id)
        if not unread.update(**_columns(watch)):
            return []  # another worker has read these minutes
        for change in changes:
            event_record(
                organization_id=deployment.organization_id,
                project_id=deployment.project_id,
                type=f"acceptance.{change.value}",
                object_id=deployment.pk,
            )
    return changes


def _close_bin(watch: AcceptanceWatch, minute: dt.datetime, num_learned: int) -> list[Change]:
    """Gives the pending minutes to the detector. Args: minute: the start of the last of them."""
    before = Detector(
        num_learned=num_learned,
        is_dropped=watch.state == State.DROPPED,
        **{name: getattr(watch, name) for name in _DETECTOR_FIELDS},
    )
    length = 1.0 + watch.pending_accepted / watch.pending_drafts
    after, change = observe(before, length, watch.pending_drafts)
    values = asdict(after)
    for name in _DETECTOR_FIELDS:
        setattr(watch, name, values[name])
    watch.pending_drafts = watch.pending_accepted = 0.0
    if after.statistic == 0.0:
        watch.rising_since = None
    elif watch.rising_since is None:
        watch.rising_since = minute
    if change is Change.DROPPED:
        watch.dropped_at, watch.drop_began_at = minute + dt.timedelta(minutes=1), watch.rising_since
    watch.state = State.LEARNING if after.is_learning else State.DROPPED if after.is_dropped else State.WATCHING
    return [] if change is None else [change]
