"""Queries for base speculators. They take no organization, because every organization sees all rows."""

from django.db.models import QuerySet

from control.core.api.errors import ApiError
from control.models.catalog.models import BaseSpeculator


def base_speculators_list() -> QuerySet[BaseSpeculator]:
    """Returns the base speculators that are offered."""
    return BaseSpeculator.objects.filter(withdrawn_at=None).select_related("base_model")


def base_speculator_get(base_speculator_id: str, *, param: str = "speculator_id") -> BaseSpeculator:
    """Raises: ApiError: 404, also for a withdrawn base speculator."""
    found = base_speculators_list().filter(pk=base_speculator_id).first()
    if found is None:
        message = f"No such speculator: {base_speculator_id[:80]}"
        raise ApiError(404, message, "speculator_not_found", param)
    return found
