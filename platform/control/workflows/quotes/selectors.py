"""Queries for quotes."""

from django.db.models import QuerySet

from control.core.api.lookup import one_of
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible
from control.workflows.quotes.models import Quote


def quotes_list(organization: Organization) -> QuerySet[Quote]:
    return Quote.objects.filter(visible(organization)).select_related("dataset__base_model", "pilot")


def quote_get(organization: Organization, quote_id: str) -> Quote:
    """Raises: ApiError: 404, also for another organization's quote."""
    return one_of(quotes_list(organization), quote_id, kind="quote", param="quote_id")
