"""Queries for distillations."""

from django.db.models import Prefetch, QuerySet

from control.core.api.lookup import one_of
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible
from control.workflows.batches.selectors import batches_list
from control.workflows.distillations.models import Distillation


def distillations_list(organization: Organization) -> QuerySet[Distillation]:
    batches = Prefetch("batch", queryset=batches_list(organization))
    return Distillation.objects.filter(visible(organization)).prefetch_related(batches)


def distillation_get(organization: Organization, distillation_id: str, param: str = "distillation_id") -> Distillation:
    """Raises: ApiError: 404, also for another organization's distillation."""
    return one_of(distillations_list(organization), distillation_id, kind="distillation", param=param)
