"""Helpers for tests of rollouts. They send requests, and change rows as supervisors and gateways do."""

from dataclasses import replace
from typing import Any

from django.test import Client

from control.models.catalog.models import Speculator
from control.serving.deployments.models import Deployment, Replica
from control.serving.gateway.routes import OpenByTarget, Route, route_read
from control.serving.rollouts.evidence import Observation, Side, evidence_add
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.services import rollouts_reconcile
from tests.control.factories import make_key
from tests.control.serving.deployments.support import State


def start_rollout(
    client: Client, deployment: Deployment, new_speculator: Speculator, *, status: int = 201, **body: Any
) -> Any:
    body = {"speculator_id": new_speculator.pk, "min_requests": 10, "share_percent": 20, **body}
    response = client.post(f"/v1/deployments/{deployment.pk}/rollouts", body, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json()


def update_deployment(deployment: Deployment, **values: Any) -> Deployment:
    """Changes the rows of a deployment and its replica as the supervisor does. Without a process, `port` is None."""
    if "port" in values:
        port = values.pop("port")
        process = {"port": port, "host": "127.0.0.1", "state": "provisioning" if port is None else "ready"}
        Replica.objects.update_or_create(deployment=deployment, number=0, defaults=process)
    Deployment.objects.filter(pk=deployment.pk).update(**values)
    return Deployment.objects.get(pk=deployment.pk)


def start_canary(
    client: Client, deployment: Deployment, new_speculator: Speculator, **body: Any
) -> tuple[Any, Deployment]:
    made = start_rollout(client, deployment, new_speculator, **body)
    canary = update_deployment(Rollout.objects.get().canary, state=State.READY, port=2)
    rollouts_reconcile()
    return made, canary


def chosen_id(route: Route) -> str:
    process = route.choose("", OpenByTarget())
    assert process is not None
    return process.deployment_id


def route_of(deployment: Deployment) -> Route:
    return route_read(make_key(deployment.organization)[0], deployment.name)


def get_rollout(client: Client, made: Any) -> Any:
    return client.get(f"/v1/deployments/{made['deployment_id']}/rollouts/{made['id']}").json()


def add_evidence(
    rollout: Rollout,
    side: str,
    *,
    num_requests: int = 0,
    acceptance_length: float = 2.0,
    num_failed: int = 0,
    num_equal: int = 0,
    num_different: int = 0,
    first_seconds: float | None = None,
) -> None:
    """Adds requests that all have the same acceptance length."""
    request = Observation(organization_id=rollout.organization_id, rollout_id=rollout.pk, side=side)
    complete = replace(request, ended="complete", passes_per_token=1.0 / acceptance_length, first_seconds=first_seconds)
    observations = [complete] * num_requests + [replace(request, ended="failed")] * num_failed
    observations += [replace(request, compared="equal")] * num_equal
    observations += [replace(request, compared="different", request_id="req_1")] * num_different
    evidence_add(observations)


def add_better_canary(rollout: Rollout, *, num_requests: int = 400) -> None:
    """Adds evidence that lets the rollout be promoted, unless its rules are stricter than usual."""
    add_evidence(rollout, Side.STABLE, num_requests=num_requests, acceptance_length=2.0)
    add_evidence(rollout, Side.CANDIDATE, num_requests=num_requests, acceptance_length=3.0, num_equal=num_requests)
