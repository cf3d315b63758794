"""Readers of adapters."""

from collections.abc import Sequence

from django.db.models import QuerySet

from control.accounts.models import Organization
from control.adapters.models import Adapter
from control.api.errors import ApiError


def adapters_list(organization: Organization) -> QuerySet[Adapter]:
    return Adapter.objects.filter(organization=organization).select_related("base_model")


def adapter_get(organization: Organization, adapter_id: str, param: str = "adapter_id") -> Adapter:
    """Raises: ApiError: 404, also for another organization's adapter."""
    adapter = adapters_list(organization).filter(pk=adapter_id).first()
    if adapter is None:
        raise ApiError(404, f"No such adapter: {adapter_id[:80]!r}.", "adapter_not_found", param)
    return adapter


def adapters_get(organization: Organization, adapter_ids: Sequence[str]) -> list[Adapter]:
    """In no order, each once. Raises: ApiError: 404."""
    return [adapter_get(organization, identity, param="adapters") for identity in dict.fromkeys(adapter_ids)]
