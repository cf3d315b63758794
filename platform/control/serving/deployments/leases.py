"""Leases on replicas: any number of supervisors may run, and one works on a replica at a time.

A supervisor claims replicas for some seconds and renews its claims. Each claim increments a counter of the replica, the
fence. A later write names the fence of its claim and changes nothing if the replica has been claimed again since. So a
supervisor that was suspended for longer than its lease cannot overwrite what its successor wrote. All times are by the
database's clock.

A process can be watched and signalled only on its own machine, its node. There is therefore a second lease, with one
row for each node (`Node.lease_until`), which the supervisors of the node renew. A supervisor claims a replica only if
no other supervisor has a valid lease on it and one of these is true: the replica has no process; its process runs on
the supervisor's node; its process runs on a node whose lease has expired. The machines of a Ray cluster have no such
lease, so every supervisor with the launcher `ray` may claim the replicas on them.
"""

from collections.abc import Sequence

from django.db import transaction
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from control.core.database_clock import from_now
from control.serving.deployments.models import Deployment, Node, Replica

LEASE_SECONDS = 15.0  # the length of a replica's lease
NODE_LEASE_SECONDS = 60.0
MAX_CLAIMS = 50  # claims at a time; the limit distributes the replicas among supervisors that start together


def replicas_ensure(deployments: QuerySet[Deployment]) -> None:
    """Creates the missing rows of replicas."""
    num_existing = Count("replicas", filter=Q(replicas__number__lt=F("num_replicas")))
    incomplete = deployments.annotate(num_existing=num_existing).filter(num_existing__lt=F("num_replicas"))
    missing = [
        Replica(deployment=deployment, number=number)
        for deployment in incomplete.prefetch_related("replicas")
        for number in {*range(deployment.num_replicas)} - {replica.number for replica in deployment.replicas.all()}
    ]
    if missing:
        Replica.objects.bulk_create(missing, ignore_conflicts=True)


def leases_renew(*, supervisor: str, node: str) -> None:
    """Renews the lease of the node, and the leases of the replicas that the supervisor still holds."""
    renewed = from_now(NODE_LEASE_SECONDS)
    Node.objects.update_or_create(name=node, defaults={"lease_until": renewed})
    Replica.objects.filter(supervisor=supervisor, lease_until__gt=Now()).update(lease_until=from_now(LEASE_SECONDS))


def replicas_claim(deployments: QuerySet[Deployment], *, supervisor: str, node: str, launchers: Sequence[str]) -> int:
    """Claims replicas of these deployments that no supervisor holds. Returns the number of claimed replicas.

    Args: launchers: the supervisor's launchers. A replica is not claimed if another launcher has started its process.
    """
    with transaction.atomic():
        free = _free(node, launchers).filter(deployment__in=deployments)
        chosen = list(free.order_by("pk").values_list("pk", flat=True)[:MAX_CLAIMS])
        if not chosen:
            return 0
        return (
            _free(node, launchers)
            .filter(pk__in=chosen)
            .update(supervisor=supervisor, lease_until=from_now(LEASE_SECONDS), fence=F("fence") + 1)
        )


def replicas_release(replicas: QuerySet[Replica]) -> None:
    """Lets other supervisors claim the replicas at once."""
    replicas.update(supervisor="", lease_until=None)


def _free(node: str, launchers: Sequence[str]) -> QuerySet[Replica]:
    is_lost = ~Exists(Node.objects.filter(name=OuterRef("node"), lease_until__gt=Now()))
    return Replica.objects.filter(
        Q(lease_until=None) | Q(lease_until__lte=Now()),
        Q(node="") | Q(node=node) | Q(is_lost),
        Q(pid=None) | Q(launcher__in=launchers),
    )
