"""The legal transitions of a deployment, and the function that makes them.

provisioning ⇄ ready ⇄ degraded ⇄ provisioning     the supervisors' observations while replicas should run
provisioning, ready, degraded ⇄ sleeping           the supervisors' observations of an idle endpoint
provisioning, ready, degraded, sleeping → failed   the supervisors gave up every replica (crash_loop)
running states, failed → stopping                  a customer stops or deletes the deployment
stopping → stopped                                 the supervisors observed the end of all processes
stopped, failed, stopping → provisioning           a customer starts the deployment

ready           all replicas are ready, or some are ready and the others sleep
sleeping        all replicas sleep; the next request wakes one
degraded        some replicas can answer; another one fails its health checks, crashed or was given up
provisioning    replicas are being started or replaced; those that are ready answer requests
"""

from django.db import transaction
from django.utils import timezone

from control.serving.deployments.models import Deployment
from control.tenants.events.services import event_record

State = Deployment.State

RUNNING_STATES = frozenset({State.PROVISIONING, State.READY, State.SLEEPING, State.DEGRADED})
MOVES: dict[Deployment.State, frozenset[Deployment.State]] = {
    State.PROVISIONING: RUNNING_STATES | {State.FAILED, State.STOPPING},
    State.READY: RUNNING_STATES - {State.READY} | {State.FAILED, State.STOPPING},
    State.SLEEPING: RUNNING_STATES - {State.SLEEPING} | {State.FAILED, State.STOPPING},
    State.DEGRADED: RUNNING_STATES - {State.DEGRADED} | {State.FAILED, State.STOPPING},
    State.STOPPING: frozenset({State.STOPPED, State.PROVISIONING}),
    State.STOPPED: frozenset({State.PROVISIONING}),
    State.FAILED: frozenset({State.PROVISIONING, State.STOPPING}),
}


def transition(
    deployment: Deployment, to: Deployment.State, *, expected_generation: int | None = None, **changes: object
) -> bool:
    """Sets the state to `to` and writes `changes`, in one compare-and-swap, if the transition is legal now.

    Args:
        expected_generation: change nothing unless the row still has this generation. The supervisor passes the
            generation that it observed, so that an observation of an older configuration has no effect.

    Returns: whether the state was set. `deployment` then has the new values.
    """
    sources = [source for source, targets in MOVES.items() if to in targets]
    rows = Deployment.objects.filter(pk=deployment.pk, state__in=sources)
    if expected_generation is not None:
        rows = rows.filter(generation=expected_generation)
    if to is State.READY:
        changes = {"healthy_at": timezone.now(), **changes}
    with transaction.atomic():
        # The customer did not create the canary and sees no events of it; its rollout has events of its own.
        is_news = deployment.canary_of_id is None and not Deployment.objects.filter(pk=deployment.pk, state=to).exists()
        if not rows.update(state=to, **changes):
            return False
        if is_news:
            event_record(
                organization_id=deployment.organization_id,
                project_id=deployment.project_id,
                type=f"deployment.{to.value}",
                object_id=deployment.pk,
            )
    deployment.refresh_from_db()
    return True
