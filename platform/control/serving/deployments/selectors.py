"""Queries for deployments. A deployment of another organization is treated as one that does not exist."""

from collections.abc import Sequence
from typing import Any

from django.db.models import F, Prefetch, QuerySet
from django.db.models.functions import Now

from control.core.api.errors import ApiError
from control.core.api.lookup import one_of
from control.models.adapters.models import is_fine_tuned
from control.models.adapters.selectors import adapters_list
from control.models.catalog.selectors import base_models_list
from control.serving.deployments.models import UP, Deployment, Replica
from control.serving.deployments.states import RUNNING_STATES
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible

# The order in which deployments of the same adapter are preferred.
_READINESS = {Deployment.State.READY: 0, Deployment.State.SLEEPING: 1, Deployment.State.PROVISIONING: 2}


def deployments_list(organization: Organization, *, only: Sequence[str] | None = None) -> QuerySet[Deployment]:
    """Args: only: ids of the deployments to which the caller's key is restricted; None: it is not restricted."""
    rows = Deployment.objects.filter(visible(organization), deleted_at=None, canary_of=None)
    if only is not None:
        rows = rows.filter(pk__in=only)
    return rows.select_related("base_model", "speculator", "acceptance_watch").prefetch_related("adapters", "replicas")


def deployment_get(organization: Organization, deployment_id: str, *, only: Sequence[str] | None = None) -> Deployment:
    """Raises: ApiError: 404."""
    return one_of(deployments_list(organization, only=only), deployment_id, kind="deployment", param="deployment_id")


def deployment_lock(deployment: Deployment) -> None:
    """Locks the deployment's row until the transaction ends."""
    Deployment.objects.select_for_update().only("pk").get(pk=deployment.pk)


def deployments_check(organization: Organization, deployment_ids: Sequence[str], **_: Any) -> None:
    """Receives the signal `key_restricting`: an API key is about to be restricted to these deployments.

    Raises: ApiError: 404, the organization has no such deployment.
    """
    for deployment_id in deployment_ids:
        deployment_get(organization, deployment_id)


def deployment_by_name(organization: Organization, name: str, *, only: Sequence[str] | None = None) -> Deployment:
    """Finds the deployment that the `model` of a request names: as `name`, as `name:adapter`, or by the name of a
    fine-tuned adapter.

    Raises: ApiError: 404, code model_not_found.
    """
    if is_fine_tuned(name):
        return _deployment_of_adapter(organization, name, only)
    own_name, _, adapter = name.partition(":")
    deployment = deployments_list(organization, only=only).filter(name=own_name).first()
    if deployment is None or (adapter and adapter not in {served.name for served in deployment.adapters.all()}):
        raise ApiError(404, _unknown(organization, name), "model_not_found", "model")
    return deployment


def _deployment_of_adapter(organization: Organization, name: str, only: Sequence[str] | None) -> Deployment:
    """Returns a deployment that serves the adapter. Prefers deployments that can answer now, and then older ones."""
    serving = list(deployments_list(organization, only=only).filter(adapters__name=name).distinct().order_by("pk"))
    if not serving:
        raise ApiError(404, _not_served(organization, name), "model_not_found", "model")
    return min(serving, key=lambda deployment: _READINESS.get(Deployment.State(deployment.state), len(_READINESS)))


def _not_served(organization: Organization, name: str) -> str:
    adapter = adapters_list(organization).filter(name=name).first()
    if adapter is None:
        return f"The model {name[:80]!r} does not exist or you do not have access to it."
    return (
        f"No deployment serves {name!r}. Add the adapter {adapter.pk} to a deployment of {adapter.base_model.name!r}."
    )


def _unknown(organization: Organization, name: str) -> str:
    if base_models_list(organization).filter(name=name).exists():
        return f"{name!r} is a base model. Deploy it (POST /v1/deployments) and put the deployment's name into `model`."
    return f"The model {name[:80]!r} does not exist or you do not have access to it."


def canary_of(deployment: Deployment) -> Deployment | None:
    """The canary that gets a share of the deployment's requests, if there is one."""
    return Deployment.objects.filter(canary_of=deployment, deleted_at=None, canary_percent__gt=0).first()


def replicas_up(deployment: Deployment) -> QuerySet[Replica]:
    """The replicas that may answer requests now."""
    rows = Replica.objects.filter(deployment=deployment, state__in=UP, port__isnull=False)
    return rows.order_by("number") if deployment.state in RUNNING_STATES else rows.none()


def has_crashed(deployment: Deployment) -> bool:
    """Whether a replica has crashed within the last ten minutes or so, and nobody has changed the deployment since."""
    return Replica.objects.filter(deployment=deployment).exclude(crashes=[]).exists()


def has_given_up(deployment: Deployment) -> bool:
    """Whether the supervisors gave up a replica after too many crashes. Other replicas may still serve."""
    return Replica.objects.filter(deployment=deployment, state=Replica.State.FAILED).exists()


def deployments_to_supervise() -> QuerySet[Deployment]:
    """For supervisors only: deployments, of any organization, that run, should run, or are being stopped."""
    return Deployment.objects.exclude(state__in=[Deployment.State.STOPPED, Deployment.State.FAILED])


def replicas_held(supervisor: str) -> QuerySet[Replica]:
    """For supervisors only: the replicas to supervise whose lease the supervisor has.

    The rows that a launch needs are prefetched, apart from adapters. The load of all replicas of the same deployments
    is prefetched, too. A row to which several deployments refer is read once.
    """
    used = Replica.objects.only("deployment_id", "number", "num_open", "used_at")
    related = ("base_model", "speculator", "canary_of", Prefetch("replicas", queryset=used))
    rows = Replica.objects.filter(
        supervisor=supervisor, lease_until__gt=Now(), deployment__in=deployments_to_supervise()
    )
    deployments = Prefetch("deployment", queryset=Deployment.objects.prefetch_related(*related))
    return rows.prefetch_related(deployments).order_by("pk")


def replicas_not_stray(supervisor: str, node: str) -> tuple[set[int], set[str]]:
    """For supervisors only: returns the session ids of this node's processes that a replica's row records, and the
    names of the replicas that other supervisors hold.

    The session id of an engine process equals its pid, because each process starts a session of its own.
    """
    here = Replica.objects.exclude(pid=None).filter(node__in=["", node])
    others = Replica.objects.filter(lease_until__gt=Now()).exclude(supervisor=supervisor)
    return {pid for pid in here.values_list("pid", flat=True) if pid is not None}, {str(replica) for replica in others}


def engines_recorded(launcher: str) -> set[str]:
    """For supervisors only: what identifies the engines that a launcher has started and whose end is not recorded."""
    rows = Replica.objects.filter(launcher=launcher).exclude(pid=None)
    return set(rows.values_list("process_started", flat=True))


def engines_to_adopt() -> set[str]:
    """For supervisors only: the names (see `process_name`) of engines that should run and that no row records."""
    rows = Replica.objects.filter(
        pid=None, deployment__state__in=RUNNING_STATES, number__lt=F("deployment__num_replicas")
    ).exclude(state=Replica.State.FAILED)
    return {replica.process_name(replica.deployment.generation) for replica in rows.select_related("deployment")}
