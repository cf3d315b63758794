"""Decides when a round begins. Any number of workers may decide at the same time: the loop's row is locked."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

from django.db import IntegrityError, transaction
from django.utils import timezone

from control.billing.usage.schemas import Amount
from control.serving.acceptance.models import AcceptanceWatch
from control.serving.captures.models import Capture
from control.serving.captures.selectors import requests_kept
from control.serving.deployments.models import Deployment
from control.tenants.events.services import event_record
from control.tenants.row_security.each import each_as_tenant
from control.workflows.loops.models import Loop, LoopRound
from control.workflows.loops.schemas import LoopTriggers
from control.workflows.loops.selectors import month_spend, round_running
from control.workflows.loops.state import Status

State, Trigger = Deployment.State, LoopRound.Trigger

_CHUNK = 100
_SERVING = (State.READY, State.SLEEPING, State.DEGRADED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    trigger: LoopRound.Trigger
    alarm_at: dt.datetime | None = None
    data_since: dt.datetime | None = None


def rounds_begin() -> None:
    """Begins the rounds that are due. Workers call this every half a minute."""
    each_as_tenant(_enabled(), _begin_if_due, failure="could not begin a round", name="loop_id")


def _begin_if_due(loop: Loop) -> None:
    if _due(loop) is not None:  # checked without the lock first, because a round is rarely due
        round_begin(loop=loop)


def _enabled() -> Iterator[Loop]:
    ids = list(
        Loop.objects.filter(enabled=True, deployment__deleted_at=None).order_by("pk").values_list("pk", flat=True)
    )
    for start in range(0, len(ids), _CHUNK):
        rows = Loop.objects.filter(pk__in=ids[start : start + _CHUNK])
        yield from rows.select_related("deployment__acceptance_watch", "organization")


@transaction.atomic
def round_begin(*, loop: Loop) -> LoopRound | None:
    """Begins a round if a trigger applies and no limit forbids it. Decides again under the lock of the loop's row.

    Effects: if a limit forbids the round, `blocked` and an event say so. The event is not repeated for the same limit
        until the loop is set or a round begins.
    """
    locked = Loop.objects.select_for_update().filter(pk=loop.pk, enabled=True).first()
    if locked is None or (due := _due(locked)) is None:
        return None
    if (blocked := _blocked(locked)) is not None:
        _record_blocked(locked, *blocked)
        return None
    settings = {"recipe": locked.recipe, "gate": locked.gate, "rollout": locked.rollout}
    try:
        with transaction.atomic():
            made = LoopRound.objects.create(
                organization_id=locked.organization_id,
                project_id=locked.project_id,
                deployment_id=locked.deployment_id,
                trigger=due.trigger,
                alarm_at=due.alarm_at,
                data_since=due.data_since,
                settings={**settings, "max_rows": locked.limits["max_rows"], "caller": locked.pk},
                timeline=[{"status": Status.CAPTURING.value, "at": int(timezone.now().timestamp())}],
            )
    except IntegrityError:  # the deployment still has a running round of a loop that was deleted
        return None
    Loop.objects.filter(pk=locked.pk).update(blocked=None)
    event_record(
        organization_id=made.organization_id,
        project_id=made.project_id,
        type=f"loop.round.{Status.CAPTURING.value}",
        object_id=made.pk,
    )
    return made


def _due(loop: Loop) -> _Due | None:
    """Returns the first trigger that applies.

    None: no trigger applies, a round is running, or the last round began too recently.
    """
    deployment = loop.deployment
    is_serving = deployment.state in _SERVING and deployment.desired_state == Deployment.Desired.RUNNING
    if deployment.deleted_at is not None or not is_serving or round_running(deployment) is not None:
        return None
    now, last = timezone.now(), LoopRound.objects.filter(deployment=deployment).order_by("-pk").first()
    if last is not None and now - last.created_at < dt.timedelta(seconds=loop.limits["min_seconds_between_rounds"]):
        return None
    since = loop.created_at if last is None else max(last.created_at, loop.created_at)
    triggers = LoopTriggers.model_validate(loop.triggers)
    if triggers.acceptance_drop and (drop := _drop(deployment)) is not None:
        return drop
    if triggers.every_hours is not None and now - since >= dt.timedelta(hours=triggers.every_hours):
        return _Due(trigger=Trigger.SCHEDULE)
    if triggers.new_requests is not None and has_captured(deployment, triggers.new_requests, since):
        return _Due(trigger=Trigger.NEW_REQUESTS)
    return None


def _drop(deployment: Deployment) -> _Due | None:
    """Returns the drop that the detector has reported.

    None: there is no drop, a round has begun because of it, or the acceptance has recovered.
    """
    watch: AcceptanceWatch | None = getattr(deployment, "acceptance_watch", None)
    if watch is None or watch.state != AcceptanceWatch.State.DROPPED:
        return None
    if watch.speculator_id != deployment.speculator_id:
        return None
    if LoopRound.objects.filter(deployment=deployment, alarm_at=watch.dropped_at).exists():
        return None
    return _Due(trigger=Trigger.ACCEPTANCE_DROP, alarm_at=watch.dropped_at, data_since=watch.drop_began_at)


def has_captured(deployment: Deployment, num_requests: int, since: dt.datetime | None) -> bool:
    """Returns whether at least `num_requests` requests that were captured since `since` are kept."""
    capture = Capture.objects.filter(deployment=deployment).first()
    if capture is None:
        return False
    kept = requests_kept(capture)
    if since is not None:
        kept = kept.filter(created_at__gte=since)
    return kept.order_by("created_at").values("pk")[num_requests - 1 : num_requests].first() is not None


def _blocked(loop: Loop) -> tuple[str, str] | None:
    """Returns the code and the message of the reason that forbids a round; None: nothing forbids it."""
    if not Capture.objects.filter(deployment_id=loop.deployment_id).exists():
        return "capture_not_found", "The requests to the deployment are not kept any more, so there is no data."
    return budget_spent(loop)


def budget_spent(loop: Loop, began: dt.datetime | None = None) -> tuple[str, str] | None:
    """Returns a code and a message if the rounds of a month have spent the budget, otherwise None.

    Args: began: the start of a running round, in the month to check; None: the present month.
    """
    if loop.budget_nanousd is None:
        return None
    spent = month_spend(loop.deployment, began)
    if spent < loop.budget_nanousd:
        return None
    amounts = (Amount.of(spent).value, Amount.of(loop.budget_nanousd).value)
    message = "The rounds of the month have cost {:.2f} USD, and the budget of the month is {:.2f} USD."
    return "budget_reached", message.format(*amounts)


def _record_blocked(loop: Loop, code: str, message: str) -> None:
    is_new = (loop.blocked or {}).get("code") != code
    Loop.objects.filter(pk=loop.pk).update(blocked={"code": code, "message": message})
    if is_new:
        event_record(
            organization_id=loop.organization_id,
            project_id=loop.project_id,
            type="loop.blocked",
            object_id=loop.deployment_id,
        )
