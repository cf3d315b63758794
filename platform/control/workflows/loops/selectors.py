"""Queries for loops, their rounds and the cost of the rounds."""

import datetime as dt

from django.db.models import BigIntegerField, F, OuterRef, QuerySet, Subquery, Sum, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce
from django.utils import timezone

from control.billing.ledger.models import LedgerLine, Subject
from control.billing.ledger.months import end_of, month_of, start_of
from control.core.api.errors import ApiError
from control.core.api.lookup import one_of
from control.serving.deployments.models import Deployment
from control.workflows.loops.models import Loop, LoopRound
from control.workflows.loops.state import ACTIVE
from control.workflows.pipelines.selectors import device_time_column


def loop_get(deployment: Deployment) -> Loop:
    """Raises: ApiError: 404, the deployment has no loop."""
    loop = Loop.objects.filter(deployment=deployment).select_related("deployment__speculator").first()
    if loop is None:
        message = f"Deployment {deployment.pk} has no loop."
        raise ApiError(404, message, "loop_not_found", "deployment_id")
    return loop


def rounds_list(deployment: Deployment) -> QuerySet[LoopRound]:
    """The rounds of a deployment with all that the API shows, and their cost as `cost_nanousd`."""
    related = ("pipeline__batch", "pipeline__evaluation_job__evaluation")
    return with_cost(LoopRound.objects.filter(deployment=deployment)).select_related(*related)


def round_get(deployment: Deployment, round_id: str) -> LoopRound:
    """Raises: ApiError: 404, also for a round of another deployment."""
    return one_of(rounds_list(deployment), round_id, kind="loop round", param="round_id")


def round_fresh(of: LoopRound) -> LoopRound:
    """Reads the round and its related rows again."""
    related = ("organization", "deployment__base_model", "deployment__speculator", "deployment__loop", "previous")
    return LoopRound.objects.select_related(*related, "pipeline__evaluation_job", "rollout").get(pk=of.pk)


def rounds_active() -> QuerySet[LoopRound]:
    return LoopRound.objects.filter(status__in=ACTIVE).order_by("pk")


def round_running(deployment: Deployment) -> LoopRound | None:
    return rounds_active().filter(deployment=deployment).first()


def month_spend(deployment: Deployment, moment: dt.datetime | None = None) -> int:
    """Returns the cost so far of the rounds that began in a month (UTC), in billionths of a dollar.

    Args: moment: a time in the month; None: now.
    """
    month = month_of(moment or timezone.now())
    began = {"created_at__gte": start_of(month), "created_at__lt": end_of(month)}
    rounds = LoopRound.objects.filter(deployment=deployment, **began)
    return with_cost(rounds).aggregate(total=Sum("cost_nanousd"))["total"] or 0


def with_cost(rounds: QuerySet[LoopRound]) -> QuerySet[LoopRound]:
    """Adds `cost_nanousd`: the tokens and device time of the pipeline, and the device time of the canary."""
    return rounds.annotate(
        cost_nanousd=Coalesce(  # type: ignore[no-redef]  # the model declares its type
            F("pipeline__batch__cost_nanousd"), Value(0), output_field=BigIntegerField()
        )
        + device_time_column("pipeline__")
        + _canary_time()
    )


def _canary_time() -> Combinable:
    lines = LedgerLine.objects.filter(subject=Subject.ENDPOINT_TIME, object_id=OuterRef("rollout__canary_id"))
    cost = lines.order_by().values("object_id").annotate(cost=Sum("cost_nanousd")).values("cost")
    return Coalesce(Subquery(cost, output_field=BigIntegerField()), Value(0), output_field=BigIntegerField())
