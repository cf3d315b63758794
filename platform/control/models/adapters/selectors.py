"""Queries for adapters."""

from collections.abc import Sequence

from django.db.models import QuerySet

from control.core.api.lookup import one_of
from control.models.adapters.models import Adapter
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible


def adapters_list(organization: Organization) -> QuerySet[Adapter]:
    return Adapter.objects.filter(visible(organization)).select_related("base_model")


def adapter_get(organization: Organization, adapter_id: str, param: str = "adapter_id") -> Adapter:
    """Raises: ApiError: 404, also for another organization's adapter."""
    return one_of(adapters_list(organization), adapter_id, kind="adapter", param=param)


def adapters_get(organization: Organization, adapter_ids: Sequence[str]) -> list[Adapter]:
    """Returns each adapter once, even if its id is repeated. Raises: ApiError: 404, an adapter does not exist."""
    return [adapter_get(organization, identity, param="adapters") for identity in dict.fromkeys(adapter_ids)]
