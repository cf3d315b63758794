"""Makes deployments with captured requests, and advances rounds as workers and supervisors do."""

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

from django.utils import timezone

from control.billing.ledger.models import Subject
from control.billing.usage.device_time import device_time_add
from control.core.api.requests import parse_request
from control.models.catalog.models import Speculator
from control.queue.jobs.models import Job
from control.serving.acceptance.models import AcceptanceWatch
from control.serving.captures.models import CapturedRequest
from control.serving.captures.services import capture_set, request_capture
from control.serving.deployments.models import Deployment, Replica
from control.serving.rollouts.evidence import Side
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.services import rollouts_reconcile
from control.tenants.accounts.models import Organization
from control.tenants.authentication.caller import Caller
from control.workflows.batches.models import Batch
from control.workflows.loops import rounds
from control.workflows.loops.models import Loop, LoopRound
from control.workflows.loops.requests import set_from
from control.workflows.loops.rounds import rounds_reconcile
from control.workflows.loops.schemas import LoopInput
from control.workflows.loops.selectors import round_fresh
from control.workflows.loops.triggers import round_begin
from control.workflows.pipelines.models import Pipeline
from tests.control.factories import make_base_model
from tests.control.serving.deployments.support import make_replica, make_speculator
from tests.control.serving.rollouts.support import add_better_canary, add_evidence
from tests.control.workflows.pipelines.helpers import end_batch, end_evaluation, end_training

NUM_REQUESTS = 30
SETTINGS: dict[str, Any] = {
    "recipe": {"min_rows": 20, "held_out": 5},
    "limits": {"min_seconds_between_rounds": 0},
    "rollout": {"min_requests": 10, "share_percent": 20},
}


def make_deployment(organization: Organization, name: str = "support") -> Deployment:
    """Makes a deployment that is ready, serves a speculator, and has captured requests."""
    model = make_base_model()
    made = Deployment.objects.create(
        organization=organization,
        name=name,
        base_model=model,
        speculator=make_speculator(model, organization, name=name),
        state=Deployment.State.READY,
        observed_generation=1,
    )
    make_replica(made, state="ready", port=1)
    capture_set(deployment=made, hours=24)
    capture_requests(made, NUM_REQUESTS)
    return made


def capture_requests(deployment: Deployment, number: int, *, text: str = "question") -> None:
    before = CapturedRequest.objects.filter(deployment=deployment).count()
    for place in range(before, before + number):
        body = {"messages": [{"role": "user", "content": f"{text} number {place}: {place * 7919}"}]}
        assert request_capture(deployment_id=deployment.pk, endpoint="/v1/chat/completions", body=body)


def make_loop(deployment: Deployment, **settings: Any) -> Loop:
    values = {**SETTINGS, **settings}
    for name, defaults in SETTINGS.items():
        values[name] = {**defaults, **values[name]}
    return set_from(deployment, parse_request(LoopInput, json.loads(json.dumps(values))))


def drop_acceptance(deployment: Deployment, *, minutes_ago: int = 60) -> AcceptanceWatch:
    """Writes the row that the detector writes when it reports a drop."""
    now = timezone.now()
    values = {
        "organization": deployment.organization,
        "speculator_id": deployment.speculator_id,
        "state": "dropped",
        "until": now,
        "dropped_at": now,
        "drop_began_at": now - dt.timedelta(minutes=minutes_ago),
    }
    return AcceptanceWatch.objects.update_or_create(deployment=deployment, defaults=values)[0]


def begin(deployment: Deployment, **settings: Any) -> LoopRound:
    """Sets a loop, reports a drop, and begins the round."""
    loop = make_loop(deployment, **settings)
    drop_acceptance(deployment)
    made = round_begin(loop=loop)
    assert made is not None
    return made


def pipeline_of(of: LoopRound) -> Pipeline:
    return Pipeline.objects.get(loop_round=of)


def report(new: float, old: float, of: LoopRound) -> dict[str, Any]:
    """Returns the report of an evaluation that compares the new speculator with the serving speculator."""
    pipeline = pipeline_of(of)
    point = {"concurrency": 1, "speedup": 1.5, "acceptance_length": new, "tokens_per_second": 30.0}
    old_point = {"concurrency": 1, "acceptance_length": old, "tokens_per_second": 25.0}
    arms = [
        {"name": pipeline.speculator_id, "concurrencies": [point]},
        {"name": LoopRound.objects.get(pk=of.pk).previous_id, "concurrencies": [old_point]},
    ]
    return {"acceptance_length": new, "concurrencies": [point], "arms": arms}


def advance(of: LoopRound) -> LoopRound:
    rounds_reconcile()
    return LoopRound.objects.get(pk=of.pk)


def advance_to(status: str, of: LoopRound, *, new: float = 2.4, old: float = 1.8) -> LoopRound:
    """Ends the steps of the round that come before `status`, as workers do."""
    of = advance(of)
    steps: dict[str, Callable[[], object]] = {
        "training": lambda: end_batch(pipeline_of(of)),
        "evaluating": lambda: end_training(pipeline_of(of)),
        "rolling_out": lambda: end_evaluation(pipeline_of(of), **report(new, old, of)),
    }
    if status == "distilling":
        return of
    for name, step in steps.items():
        step()
        if status == "gating" and name == "rolling_out":
            rounds._follow_pipeline(round_fresh(of))
            return LoopRound.objects.get(pk=of.pk)
        of = advance(of)
        if name == status:
            break
    return of


def decide_rollout(of: LoopRound, *, is_better: bool) -> Rollout:
    """Adds evidence for or against the canary, depending on `is_better`, and lets the rollout be decided."""
    rollout = Rollout.objects.get(loop_round=of)
    set_ready(rollout.canary, port=2)
    rollouts_reconcile()
    if is_better:
        add_better_canary(rollout)
    else:
        add_evidence(rollout, Side.STABLE, num_requests=400, acceptance_length=2.0)
        add_evidence(rollout, Side.CANDIDATE, num_requests=400, acceptance_length=1.1)
    rollouts_reconcile()
    rollout.refresh_from_db()
    if rollout.status == Rollout.Status.PROMOTING:
        deployment = Deployment.objects.get(pk=rollout.deployment_id)
        set_ready(deployment, port=3, observed_generation=deployment.generation)
        rollouts_reconcile()
    return rollout


def set_ready(deployment: Deployment, *, port: int, **values: Any) -> None:
    process = {"port": port, "host": "127.0.0.1", "state": "ready"}
    Replica.objects.update_or_create(deployment=deployment, number=0, defaults=process)
    Deployment.objects.filter(pk=deployment.pk).update(state=Deployment.State.READY, **values)


def spend(of: LoopRound, dollars: float) -> None:
    """Records device time of the round's batch, at a cost of `dollars`."""
    batch = Batch.objects.get(pk=pipeline_of(of).batch_id)
    spend_on(Subject.BATCH_TIME, batch.job_id, of, dollars)


def spend_on(subject: Subject, object_id: str, of: LoopRound, dollars: float) -> None:
    now = timezone.now()
    assert device_time_add(
        caller=Caller(organization_id=of.organization_id),
        subject=subject,
        object_id=object_id,
        sequence=str(dollars),
        device_kind="cpu",
        since=now - dt.timedelta(hours=1),
        until=now,
        hour_nanousd=round(dollars * 1e9),
    )


def row_counts() -> dict[str, int]:
    models = (LoopRound, Pipeline, Batch, Job, Rollout, Speculator, Deployment)
    return {model.__name__: model._default_manager.count() for model in models}
