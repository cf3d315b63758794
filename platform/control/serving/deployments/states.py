"""The legal moves of a deployment, and the one statement that makes them.

    provisioning ⇄ ready ⇄ degraded        the supervisor's findings while the process should run
    any of them  → stopping → stopped      a customer's stop, then the supervisor's finding
    any of them  → failed                  the supervisor gives up (crash_loop)
    stopped, failed, stopping → provisioning   a customer's start

`degraded` is a process that lives and was ready, but does not answer its health check at present.
"""

from django.db import transaction
from django.utils import timezone

from control.serving.deployments.models import Deployment
from control.tenants.events.services import event_record

State = Deployment.State

RUNNING_STATES = frozenset({State.PROVISIONING, State.READY, State.DEGRADED})
MOVES: dict[Deployment.State, frozenset[Deployment.State]] = {
    State.PROVISIONING: frozenset({State.PROVISIONING, State.READY, State.FAILED, State.STOPPING}),
    State.READY: frozenset({State.PROVISIONING, State.DEGRADED, State.FAILED, State.STOPPING}),
    State.DEGRADED: frozenset({State.PROVISIONING, State.READY, State.FAILED, State.STOPPING}),
    State.STOPPING: frozenset({State.STOPPED, State.PROVISIONING}),
    State.STOPPED: frozenset({State.PROVISIONING}),
    State.FAILED: frozenset({State.PROVISIONING, State.STOPPING}),
}


def transition(
    deployment: Deployment, to: Deployment.State, *, found_for: int | None = None, **changes: object
) -> bool:
    """Compare and swap, in one statement: moves the row to `to` and writes `changes` if the move is legal now.

    Args:
        found_for: refuse unless the row still has this generation. The supervisor passes the one it acted for, so
            that a finding about an older wish changes nothing.

    Returns: whether the row moved. `deployment` then has the new values.
    """
    sources = [source for source, targets in MOVES.items() if to in targets]
    rows = Deployment.objects.filter(pk=deployment.pk, state__in=sources)
    if found_for is not None:
        rows = rows.filter(generation=found_for)
    if to is State.READY:
        changes = {"healthy_at": timezone.now(), **changes}
    with transaction.atomic():
        # A canary is no deployment of the customer's: its rollout tells of it.
        is_news = deployment.canary_of_id is None and not Deployment.objects.filter(pk=deployment.pk, state=to).exists()
        if not rows.update(state=to, **changes):
            return False
        if is_news:
            event_record(
                organization_id=deployment.organization_id, type=f"deployment.{to.value}", object_id=deployment.pk
            )
    deployment.refresh_from_db()
    return True
